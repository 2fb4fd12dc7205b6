"""Engines that only a cluster runs: each is an image with its own release and flags. Pure.

One module per engine (`sglang.py`, `tensorrt_llm.py`, `tgi.py`, `llama_cpp.py`) says what is known of
it: the flags that the platform sets, how its parser reads, where it runs. The flags themselves are in
`catalog/NAME.json`, with the release and the source they are from; `engine-images/NAME/Dockerfile`
names the same release. Where that source is a page and not the parser, choices that grow with every
release, such as parsers and kernels, are text there.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from exo_inference.engines.base import (
    GPU,
    ClusterOnly,
    UnknownEngineRelease,
)
from exo_inference.engines.flags.catalogue import ReleaseFlags, single_release
from exo_inference.engines.flags.dialects import PLAIN, Dialect
from exo_inference.engines.flags.problems import ParameterProblem
from exo_inference.engines.flags.reader import Reading, read_vector
from exo_inference.wire import EngineParameter

SOCKET = "pods listen where the platform looks"
GATEWAY = "the gateway is the only way in"
KEYS = "the gateway checks keys; use `deployment reveal-api-key`"
MODEL = "it is the deployment's model"
MODEL_NAME = "it is the deployment's model name"
PINNED = "the model's revision was pinned when it was created"
FILES = "the platform keeps the model's files"
METRICS = "the platform switches metrics on, by which it drains and watches replicas"
NODES = "the platform knows which pods make up a replica"
GPU_COUNT = "use the deployment's gpu-count"
GPU_TYPE = "use the deployment's gpu-type"
IN_DEPLOYMENT = "flags are given in the deployment"
DISAGGREGATION = "a replica reads prompts and answers itself"


@dataclass(frozen=True, slots=True)
class Sizes:
    """The flags that share a model out over GPUs; together they must make up the GPUs of a replica.

    Attributes:
        tensor, pipeline, data: names of flags; None where the engine has none.
        shared_by: a boolean flag with which data parallelism shares the GPUs of tensor parallelism.
    """

    tensor: str
    pipeline: str
    data: str | None = None
    shared_by: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The flags that there are."""
        return tuple(name for name in (self.tensor, self.pipeline, self.data) if name is not None)


@dataclass(frozen=True, slots=True)
class VllmMeaning:
    """Which flags mean for memory what flags of vLLM mean.

    Attributes:
        settings: names of flags, each with the planner's setting.
        values: values that vLLM spells otherwise.
        others: flags that change what weights take, in ways not known here.
        other_values: values of flags that do.
        of_traits: flags that change what the cache or weights take in ways not known here, of models that have a trait: `windows`
            with a pool of their own, `states`, `images` beside text, `text-first` where images are read only if asked, an `index`
            that attention looks up.
        of_share: flags that have a part in the share of memory that the engine takes where no flag says it.
    """

    settings: Mapping[str, str]
    values: Mapping[str, str] = field(default_factory=dict)
    others: frozenset[str] = frozenset()
    other_values: Mapping[str, frozenset[str]] = field(default_factory=dict)
    of_traits: Mapping[str, frozenset[str]] = field(default_factory=dict)
    of_share: frozenset[str] = frozenset()

    def name_of(self, setting: str) -> str:
        """Return the name of the flag that means a setting of the planner."""
        return next(name for name, meant in self.settings.items() if meant == setting)


@dataclass(frozen=True, slots=True)
class GgufMeaning:
    """What is not known of the memory of an engine that loads GGUF files; its other flags, planning reads or they take none.

    Attributes:
        unknown: flags that change what a GPU holds, in ways not known here.
        unknown_values: values of flags that do.
    """

    unknown: frozenset[str]
    unknown_values: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def find_unknown(self, found: Mapping[str, Any]) -> str:
        """Return the first flag that is not known, as it is written; empty where there is none."""
        for name, value in found.items():
            if name in self.unknown and value is not False:
                return f"--{name}"
            if str(value) in self.unknown_values.get(name, ()):
                return f"--{name} {value}"
        return ""


@dataclass(frozen=True)
class ClusterEngine(ClusterOnly):
    """An engine that runs in pods alone.

    Attributes:
        name: as deployments name it; also that of its catalogue.
        owned: names of flags that a user must not set, with the reason or the field to use instead.
        dialect: how its parser reads.
        devices: where it runs.
        spans_nodes: a replica may be several pods.
        sizes: None where `gpu-count` says it all.
        meaning: None where its memory is not judged by what flags of vLLM mean.
        gguf: of an engine that loads GGUF files and is planned by its own rules.
    """

    name: str
    owned: Mapping[str, str]
    dialect: Dialect = PLAIN
    devices: tuple[str, ...] = (GPU,)
    spans_nodes: bool = False
    sizes: Sizes | None = None
    meaning: VllmMeaning | None = None
    gguf: GgufMeaning | None = None

    @property
    def flags(self) -> ReleaseFlags:
        """Every flag of its release, those that the platform owns too."""
        return _load(self.name, self.dialect)

    @property
    def version(self) -> str:
        """The release whose flags are known, which is that of the image."""
        return self.flags.version

    def parameters(self, version: str | None = None) -> tuple[EngineParameter, ...]:
        """Return the flags a user may set.

        Raises:
            UnknownEngineRelease: the flags of that release are not known.
        """
        self._check_release(version)
        records = _read(self.name)["flags"]
        known = (EngineParameter.model_validate({"description": "", **each}) for each in records)
        return tuple(parameter for parameter in known if parameter.name not in self.owned)

    def read(self, parameters: Sequence[str], version: str | None = None) -> Reading:
        """Return what a user's flags set, and everything that is wrong with them.

        Raises:
            UnknownEngineRelease: the flags of that release are not known.
        """
        self._check_release(version)
        return read_vector(parameters, self.flags, self.owned)

    def check_sizes(self, reading: Reading, gpu_count: int) -> list[ParameterProblem]:
        """Return what is wrong with how flags share the model out over a replica's GPUs."""
        sizes, found = self.sizes, reading.values
        if sizes is None:
            return []
        use = next(filter(None, map(reading.find, sizes.names)), None)
        if use is None:
            return []
        tensor = found.get(sizes.tensor, gpu_count)
        pipeline, data = found.get(sizes.pipeline, 1), found.get(sizes.data or "", 1)
        if sizes.shared_by in found:
            data = 1
        if min(tensor, pipeline, data) > 0 and tensor * pipeline * data == gpu_count:
            return []
        parts = {"tensor": tensor, "pipeline": pipeline, "data": data}
        shown = " x ".join(f"{part} {size}" for part, size in parts.items() if size != 1)
        text = (
            f"{use.spelling}: parallel sizes ({shown or 'tensor 1'}) make {tensor * pipeline * data}, "
            f"expected the {gpu_count} of the deployment's gpu-count; change it, or leave it out"
        )
        return [ParameterProblem(use.index, text, use.spelling, "model")]

    def _check_release(self, version: str | None) -> None:
        if version is not None and version != self.version:
            raise UnknownEngineRelease(
                f"the flags of {self.title} {version[:64]} are not known, only those of {self.version}",
                hint=f"Leave the version out, or name {self.version}.",
            )


@functools.cache
def _read(name: str) -> dict[str, Any]:
    path = resources.files("exo_inference.engines") / "catalog" / f"{name}.json"
    loaded: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return loaded


@functools.cache
def _load(name: str, dialect: Dialect) -> ReleaseFlags:
    loaded = _read(name)
    return single_release(loaded["engine"], loaded["release"], loaded["flags"], dialect)
