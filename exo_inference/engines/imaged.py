"""Engines that only a cluster runs: each is an image with its own release and flags. Pure.

One module per engine (`sglang.py`, `tensorrt_llm.py`, `tgi.py`, `llama_cpp.py`) says what is known of
it: the flags that the platform sets, how its parser reads, where it runs. The flags themselves are in
`catalog/NAME.json`, with the release and the source they are from; `engine-images/NAME/Dockerfile`
names the same release. Choices that grow with every release, such as parsers and kernels, are text there.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

from exo_inference.engines.base import (
    GPU,
    EngineNotInstalled,
    Failure,
    ReplicaCommand,
    UnknownEngineRelease,
)
from exo_inference.engines.parameters import (
    Dialect,
    ParameterProblem,
    check_parameters,
    read_parameters,
)
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
REPLICAS = "use the deployment's replicas"
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


@dataclass(frozen=True, slots=True)
class VllmMeaning:
    """Which flags mean for memory what flags of vLLM mean, so that vLLM's arithmetic holds.

    Attributes:
        flags: names of flags, each with vLLM's flag.
        values: values that vLLM spells otherwise.
        others: flags, or values of flags, that change what memory is needed in ways not known here.
    """

    flags: Mapping[str, str]
    values: Mapping[str, str]
    others: frozenset[str]


@dataclass(frozen=True, slots=True)
class Known:
    """The catalogue of one engine."""

    title: str
    release: str
    parameters: tuple[EngineParameter, ...]
    values: Mapping[str, int | None]
    repeatable: frozenset[str]


@dataclass(frozen=True)
class ImagedEngine:
    """An engine that runs in pods alone.

    Attributes:
        name: as deployments name it; also that of its catalogue.
        owned: names of flags that a user must not set, with the reason or the field to use instead.
        dialect: how its parser reads; what the catalogue says of single flags is added.
        devices: where it runs.
        spans_nodes: a replica may be several pods.
        sizes: None where `gpu-count` says it all.
        meaning: None where its memory is not judged.
    """

    name: str
    owned: Mapping[str, str]
    dialect: Dialect
    devices: tuple[str, ...] = (GPU,)
    spans_nodes: bool = False
    sizes: Sizes | None = None
    meaning: VllmMeaning | None = None

    @property
    def title(self) -> str:
        """The engine's name for people."""
        return load_catalogue(self.name).title

    @property
    def version(self) -> str:
        """The release whose flags are known, which is that of the image."""
        return load_catalogue(self.name).release

    def parameters(self, version: str | None = None) -> tuple[EngineParameter, ...]:
        """Return the flags a user may set.

        Raises:
            UnknownEngineRelease: the flags of that release are not known.
        """
        self._check_release(version)
        known = load_catalogue(self.name).parameters
        return tuple(parameter for parameter in known if parameter.name not in self.owned)

    def check(
        self, parameters: Sequence[str], version: str | None = None
    ) -> list[ParameterProblem]:
        """Return everything that is wrong with a user's flags.

        Raises:
            UnknownEngineRelease: the flags of that release are not known.
        """
        owned = {
            flag: self.owned[parameter.name]
            for parameter in load_catalogue(self.name).parameters
            for flag in parameter.flags
            if parameter.name in self.owned
        }
        return check_parameters(parameters, self.parameters(version), owned, self._spoken)

    def read(self, parameters: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Return what flags set that were found good, by their names."""
        return read_parameters(parameters, load_catalogue(self.name).parameters, self._spoken)

    def check_sizes(self, parameters: Sequence[str], gpu_count: int) -> list[ParameterProblem]:
        """Return what is wrong with how flags share the model out over a replica's GPUs."""
        if self.sizes is None:
            return []
        found = self.read(parameters)
        sizes = self.sizes
        names = [name for name in (sizes.tensor, sizes.pipeline, sizes.data) if name in found]
        if not names:
            return []
        tensor = int(found.get(sizes.tensor, (str(gpu_count),))[0])
        pipeline = int(found.get(sizes.pipeline, ("1",))[0])
        data = int(found.get(sizes.data or "", ("1",))[0])
        if sizes.shared_by in found:
            data = 1
        if min(tensor, pipeline, data) > 0 and tensor * pipeline * data == gpu_count:
            return []
        index, flag = self._find(parameters, names[0])
        parts = {"tensor": tensor, "pipeline": pipeline, "data": data}
        shown = " x ".join(f"{part} {size}" for part, size in parts.items() if size != 1)
        text = (
            f"{flag}: parallel sizes ({shown or 'tensor 1'}) make {tensor * pipeline * data}, "
            f"expected the {gpu_count} of the deployment's gpu-count; change it, or leave it out"
        )
        return [ParameterProblem(index, text, flag, "model")]

    def command(self, replica: ReplicaCommand) -> tuple[str, ...]:
        """Refuse: its command line is made by the entrypoint of its image.

        Raises:
            EngineNotInstalled
        """
        raise EngineNotInstalled(
            f"{self.title} runs on a cluster only, not as a process of this machine",
            hint="Create the deployment with the engine `exo`.",
        )

    def diagnose(self, exit_code: int | None, log_tail: Sequence[str]) -> Failure:
        """Say no more than the exit code does; on a cluster `container_failures.py` reads the log."""
        return Failure(f"{self.title} ended (exit code {exit_code})", retry=True)

    @property
    def _spoken(self) -> Dialect:
        known = load_catalogue(self.name)
        return replace(
            self.dialect,
            engine=f"{known.title} {known.release}",
            values=known.values,
            repeatable=known.repeatable,
        )

    def _check_release(self, version: str | None) -> None:
        if version is not None and version != self.version:
            raise UnknownEngineRelease(
                f"the flags of {self.title} {version[:64]} are not known, only those of {self.version}",
                hint=f"Leave the version out, or name {self.version}.",
            )

    def _find(self, parameters: Sequence[str], name: str) -> tuple[int, str]:
        known = load_catalogue(self.name).parameters
        spellings = next(each.flags for each in known if each.name == name)
        for index, item in enumerate(parameters):
            flag = item.partition("=")[0]
            if (flag.replace("_", "-") if self.dialect.underscores else flag) in spellings:
                return index, flag
        raise AssertionError(f"{name} was read from these flags")


@functools.cache
def load_catalogue(name: str) -> Known:
    """Return the catalogue of an engine; it is shared and does not change."""
    path = resources.files("exo_inference.engines") / "catalog" / f"{name}.json"
    loaded: dict[str, Any] = json.loads(path.read_text("utf-8"))
    records: list[dict[str, Any]] = loaded["flags"]
    return Known(
        title=loaded["engine"],
        release=loaded["release"],
        parameters=tuple(EngineParameter.model_validate({"description": "", **r}) for r in records),
        values={r["name"]: r["values"] for r in records if "values" in r},
        repeatable=frozenset(r["name"] for r in records if r.get("repeatable")),
    )
