"""Reads a model directory's config.json and generation_config.json into a `DecoderSpec`.

Called once at start by the core and by the API process; the only place that touches these files.
Every problem is a `ModelUnusable` that names the file, the key, what was found and what is expected.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from exo_engine.config import DType, ModelLimits
from exo_engine.errors import ModelUnusable
from exo_engine.foreign_files import MissingFile, parse_object, read_regular, shown
from exo_engine.models.pooling.spec import EncoderSpec
from exo_engine.models.spec import DecoderSpec
from exo_engine.weight_formats import PLAIN, format_of_checkpoint

FAMILIES: Mapping[str, str] = {
    "DeepseekV2ForCausalLM": "exo_engine.models.deepseek",
    "DeepseekV3ForCausalLM": "exo_engine.models.deepseek",
    "Gemma2ForCausalLM": "exo_engine.models.gemma2",
    "Gemma3ForCausalLM": "exo_engine.models.gemma3",
    "Gemma4ForCausalLM": "exo_engine.models.gemma4",
    "GptOssForCausalLM": "exo_engine.models.gpt_oss",
    "LlamaForCausalLM": "exo_engine.models.llama",
    "MistralForCausalLM": "exo_engine.models.mistral",
    "Qwen2ForCausalLM": "exo_engine.models.qwen2",
    "Qwen3ForCausalLM": "exo_engine.models.qwen3",
    "Qwen3_5ForCausalLM": "exo_engine.models.qwen3_5",
    "Qwen3MoeForCausalLM": "exo_engine.models.qwen3_moe",
    "Qwen3NextForCausalLM": "exo_engine.models.qwen3_next",
}
"""Architecture in config.json to the module whose `spec_from_config` understands it."""

AnySpec = TypeVar("AnySpec", DecoderSpec, EncoderSpec)

_MISSING: Any = object()
_MOST = 2**31 - 1
"""No size in a model is near it; larger ones break the arithmetic of tensors."""
_MOST_LAYERS = 10_000
_MOST_EOS_TOKENS = 1024
_TYPE_NAMES = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}


@dataclass(frozen=True, slots=True)
class ConfigReader:
    """Typed access to one JSON object of a configuration file."""

    path: Path
    values: Mapping[str, Any]
    prefix: str = ""

    def integer(self, key: str, default: int | None = _MISSING, *, at_least: int = 1) -> int:
        """Return an integer of at least `at_least`; null counts as absent."""
        value = self._get(key, default, int)
        if value < at_least:
            raise self.unusable(key, value, f"an integer of {at_least} or more")
        if value > _MOST:
            raise self.unusable(key, value, f"an integer of at most {_MOST}")
        return int(value)

    def number(self, key: str, default: float | None = _MISSING) -> float:
        """Return a number above 0; null counts as absent."""
        value = float(self._get(key, default, float))
        if not 0.0 < value < float("inf"):
            raise self.unusable(key, value, "a number above 0")
        return value

    def boolean(self, key: str, default: bool) -> bool:
        """Return true or false; null counts as absent."""
        return bool(self._get(key, default, bool))

    def text(self, key: str, default: str) -> str:
        """Return a string; null counts as absent."""
        return str(self._get(key, default, str))

    def child(self, key: str) -> ConfigReader | None:
        """Return the object under `key`, or None when it is absent or null."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.unusable(key, value, "an object")
        return ConfigReader(self.path, value, f"{self.prefix}{key}.")

    def kinds(self, key: str, count: int, known: Collection[str]) -> list[str] | None:
        """Return the kind of each of `count` layers; None where the key is absent or null."""
        value = self.values.get(key)
        if value is None:
            return None
        is_list = isinstance(value, list) and len(value) == count
        if not is_list or any(not isinstance(each, str) or each not in known for each in value):
            raise self.unusable(key, value, f"{count} of {', '.join(known)}")
        return list(value)

    def has(self, key: str) -> bool:
        """Whether the key is there and not null."""
        return self.values.get(key) is not None

    def refuse(self, *keys: str) -> None:
        """Raise unless all of these are false, null or absent."""
        for key in keys:
            if self.boolean(key, False):
                raise self.unusable(key, True, "false")

    def unusable(
        self, key: str, found: object, expected: str, *, hint: str | None = None
    ) -> ModelUnusable:
        """Build the error for one key."""
        return ModelUnusable(
            f"cannot use {self.path}: {self.prefix}{key} is {_shorten(found)}, expected {expected}",
            hint=hint,
        )

    def _get(self, key: str, default: Any, kind: type) -> Any:
        value = self.values.get(key)
        if value is None:
            if default is _MISSING:
                raise ModelUnusable(
                    f"cannot use {self.path}: {self.prefix}{key} is missing, expected "
                    f"{_TYPE_NAMES[kind]}"
                )
            return default
        is_bool = isinstance(value, bool)
        if kind is float and isinstance(value, int) and not is_bool:
            try:
                value = float(value)
            except OverflowError as exc:
                raise self.unusable(key, value, "a number that a float can hold") from exc
        if kind is int and isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, kind) or (is_bool and kind is not bool):
            raise self.unusable(key, value, _TYPE_NAMES[kind])
        return value


def read_spec(model_dir: Path) -> DecoderSpec:
    """Read what the model in `model_dir` is.

    Raises:
        ModelUnusable: there is no model there, or not one this engine can compute.
    """
    reader = open_config(model_dir)
    return read_decoder(reader, _architecture(reader))


def open_config(model_dir: Path) -> ConfigReader:
    """Open config.json of the model in `model_dir`.

    Raises:
        ModelUnusable: it cannot be read.
    """
    if not model_dir.is_dir():
        raise ModelUnusable(
            f"model directory {model_dir} does not exist or is not a directory",
            hint="Give the path of a directory with config.json and *.safetensors.",
        )
    return ConfigReader(model_dir / "config.json", _read_json(model_dir / "config.json"))


def read_decoder(reader: ConfigReader, architecture: str) -> DecoderSpec:
    """Read what a decoder is, of an architecture in `FAMILIES`.

    Raises:
        ModelUnusable: not one this engine can compute.
    """
    check_num_layers(reader)
    family = importlib.import_module(FAMILIES[architecture])
    spec: DecoderSpec = family.spec_from_config(reader)
    if spec.activation == "silu":
        _check_activation(reader)
    spec = replace(spec, eos_token_ids=_eos_token_ids(reader.path.parent, reader))
    return read_checkpoint_facts(reader, spec)


def read_checkpoint_facts(reader: ConfigReader, spec: AnySpec) -> AnySpec:
    """Return `spec` with what config.json says of the files.

    Raises:
        ModelUnusable: they are quantized in a way that is not known.
    """
    return replace(
        spec,
        checkpoint_dtype=_checkpoint_dtype(reader),
        checkpoint_format=_checkpoint_format(reader),
    )


def check_num_layers(reader: ConfigReader) -> None:
    """Refuse an absurd number of layers before anything is made for each.

    Raises:
        ModelUnusable: it is one, or missing.
    """
    if reader.integer("num_hidden_layers") > _MOST_LAYERS:
        layers = reader.values["num_hidden_layers"]
        raise reader.unusable("num_hidden_layers", layers, f"{_MOST_LAYERS} or fewer")


def limits_of(spec: DecoderSpec | EncoderSpec) -> ModelLimits:
    """Return what `config.resolve` needs to know of a model."""
    dtypes: dict[str, DType] = {
        "float32": "float32",
        "bfloat16": "bfloat16",
        "float16": "float16",
    }
    return ModelLimits(
        max_position_embeddings=spec.max_position_embeddings,
        checkpoint_dtype=dtypes.get(spec.checkpoint_dtype or ""),
        checkpoint_format=spec.checkpoint_format,
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return parse_object(read_regular(path), path)
    except MissingFile as exc:
        raise ModelUnusable(
            f"{path} does not exist",
            hint="Give the directory that holds config.json and *.safetensors.",
        ) from exc


def _architecture(reader: ConfigReader) -> str:
    architectures = reader.values.get("architectures")
    if not isinstance(architectures, list) or not architectures:
        raise reader.unusable("architectures", architectures, "a list with one name")
    for name in architectures:
        if isinstance(name, str) and name in FAMILIES:
            return name
    raise reader.unusable(
        "architectures",
        architectures,
        f"one of {', '.join(sorted(FAMILIES))}",
        hint="This engine does not know the model; another engine may.",
    )


def _check_activation(reader: ConfigReader) -> None:
    activation = reader.text("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise reader.unusable("hidden_act", activation, "silu")


def _eos_token_ids(model_dir: Path, reader: ConfigReader) -> tuple[int, ...]:
    found: dict[int, None] = {}  # in order
    path = model_dir / "generation_config.json"
    readers = [reader]
    if path.exists():
        readers.insert(0, ConfigReader(path, _read_json(path)))
    for source in readers:
        value = source.values.get("eos_token_id")
        ids = value if isinstance(value, list) else [] if value is None else [value]
        for token_id in ids:
            if not isinstance(token_id, int) or isinstance(token_id, bool):
                raise source.unusable("eos_token_id", value, "an integer or a list of integers")
            found[token_id] = None
        if len(found) > _MOST_EOS_TOKENS:
            raise source.unusable("eos_token_id", ids, f"{_MOST_EOS_TOKENS} tokens at most")
    return tuple(found)


def _checkpoint_dtype(reader: ConfigReader) -> str | None:
    name = reader.text("dtype", reader.text("torch_dtype", ""))
    return name.removeprefix("torch.") or None


def _checkpoint_format(reader: ConfigReader) -> str:
    quantization = reader.child("quantization_config")
    if quantization is None:
        return PLAIN
    method = quantization.text("quant_method", "unknown")
    found = format_of_checkpoint(method)
    if found is None:
        raise ModelUnusable(
            f"cannot use {reader.path}: the checkpoint is quantized ({shown(method)}), which this "
            "version does not support",
            hint="Use the unquantized checkpoint of the same model.",
        )
    return found


def _shorten(value: object) -> str:
    if isinstance(value, list | dict) and len(value) > 16:
        return shown(value)
    text = repr(value)  # shallow, and numbers are short: `parse_object` saw to it
    return shown(text if len(text) <= 120 else f"{text[:117]}...")
