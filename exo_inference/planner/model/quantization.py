"""What a weight costs in each quantized form, and which weights of a checkpoint have that form.

`architecture.py` asks `read_quantization` once per model and then, for each module, which format it
is stored in. Bytes per weight include scales and zero points. Sources: the layouts vLLM creates
(`model_executor/layers/quantization/*.py`), GGML's block table (`gguf.GGML_QUANT_SIZES`), checked
against published checkpoint sizes; the project's page on quantization lists them per format.
This module does not decide whether a GPU can run a format; it only states what the format needs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from exo_inference.planner.model.config_fields import quantized_count
from exo_inference.planner.model.module_paths import normalise_path


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How the numbers of one matrix are stored.

    Attributes:
        name: as users know it.
        bits: per weight, group scales and zeros included.
        row_bytes: extra bytes per output row (one scale per channel).
        block: side of the square that shares one 4-byte scale, if it is stored that way.
        min_capability: lowest CUDA compute capability that vLLM accepts for it.
        native: the GPU's own number type that computes it directly (`Gpu.native`), where it matters.
    """

    name: str
    bits: float
    row_bytes: int = 0
    block: int | None = None
    min_capability: float = 0.0
    native: str | None = None

    def matrix_bytes(self, out_features: int, in_features: int) -> float:
        """Return the bytes of one matrix."""
        size = out_features * in_features * self.bits / 8 + out_features * self.row_bytes
        if self.block is not None:
            size += 4 * -(-out_features // self.block) * -(-in_features // self.block)
        return size


FP32 = WeightFormat("fp32", 32)
BF16 = WeightFormat("bf16", 16)
FP8_TENSOR = WeightFormat("fp8", 8, min_capability=7.5, native="fp8")
FP8_CHANNEL = WeightFormat("fp8-channel", 8, row_bytes=4, min_capability=7.5, native="fp8")
FP8_BLOCK = WeightFormat("fp8-block", 8, block=128, min_capability=7.5, native="fp8")
INT8_CHANNEL = WeightFormat("int8", 8, row_bytes=4, min_capability=7.5, native="int8")
INT8_WEIGHT_ONLY = WeightFormat("int8-weight-only", 8, row_bytes=4)
# exo-engine's: a float16 scale per so many weights.
INT4_GROUPS = {
    group: WeightFormat(f"int4-group-{group}", 4 + 16 / group) for group in (32, 64, 128)
}
NVFP4 = WeightFormat("nvfp4", 4.5, min_capability=7.5, native="nvfp4")
MXFP4 = WeightFormat("mxfp4", 4.25, min_capability=8.0, native="mxfp4")
MXFP8 = WeightFormat("mxfp8", 8.25, min_capability=8.0, native="fp8")
BNB_NF4 = WeightFormat("bitsandbytes-nf4", 4.5, min_capability=7.0)
BNB_NF4_DOUBLE = WeightFormat(
    "bitsandbytes-nf4-double", 4 + 8 / 64 + 32 / 16384, min_capability=7.0
)
BNB_INT8 = WeightFormat("bitsandbytes-int8", 8, row_bytes=4, min_capability=7.5)

GGUF_BITS: Mapping[str, float] = {
    "IQ1_S": 2.0042, "IQ1_M": 2.1460, "IQ2_XXS": 2.3824, "IQ2_XS": 2.5882, "IQ2_M": 2.9294,
    "IQ3_XXS": 3.2548, "IQ3_M": 3.7628, "IQ4_XS": 4.4597, "IQ4_NL": 4.6818, "Q2_K": 3.1593,
    "Q3_K_S": 3.6429, "Q3_K_M": 3.9960, "Q3_K_L": 4.2979, "Q4_K_S": 4.6672, "Q4_K_M": 4.8944, "Q5_K_S": 5.5704,
    "Q5_K_M": 5.7036, "Q6_K": 6.5633, "Q8_0": 8.5008, "Q4_0": 4.5, "Q4_1": 5.0, "Q5_0": 5.5,
    "Q5_1": 6.0, "BF16": 16.0, "F16": 16.0, "MXFP4_MOE": 4.632,
}  # fmt: skip
"""Bits per weight over the whole file: llama.cpp tools/quantize/README.md@311c2c9f (Llama-3.1-8B
mixes; other shapes differ by a few per cent). Q4_0 to Q5_1 are the pure block sizes. MXFP4_MOE is that of
gpt-oss-20b's file: experts in 4.25 bits, all else in Q8_0 (src/llama-quant.cpp)."""

_SHORT = {"MXFP4": "MXFP4_MOE"}
"""Types as names of files shorten them (`gpt-oss-20b-MXFP4.gguf`)."""


def gguf_type_of(file_name: str) -> str | None:
    """Return the type that a GGUF file's name ends with (`Llama-3.1-8B-Q4_K_M.gguf`), or None."""
    stem = re.sub(r"(-\d{5}-of-\d{5})?\.gguf$", "", file_name, flags=re.IGNORECASE).upper()
    known = [mix for mix in (*GGUF_BITS, *_SHORT) if re.search(rf"(^|[-_.]){mix}$", stem)]
    found = max(known, key=len, default=None)
    return found and _SHORT.get(found, found)


def gguf_type_of_bits(bits: float) -> str | None:
    """Return the type whose files come nearest to so many bits per weight, or None beyond all of them."""
    known = GGUF_BITS.keys() - _SHORT.values()  # of a dense model no file is in them
    mix = min(sorted(known), key=lambda each: abs(GGUF_BITS[each] - bits))
    return mix if abs(GGUF_BITS[mix] / bits - 1) < 0.2 else None


def grouped_int(bits: int, group_size: int, *, has_zeros: bool, name: str) -> WeightFormat:
    """Return a 4 or 8 bit integer format with one 16-bit scale (and one zero point) per group."""
    overhead = (16 + (bits if has_zeros else 0)) / group_size if group_size > 0 else 0.0
    row_bytes = 2 if group_size <= 0 else 0
    capability = 7.5 if name == "awq" else 7.0
    return WeightFormat(name, bits + overhead, row_bytes=row_bytes, min_capability=capability)


@dataclass(frozen=True, slots=True)
class Quantization:
    """Which modules of a checkpoint are stored in which format.

    Attributes:
        method: `quant_method` as the checkpoint names it, or what was asked for.
        default: format of every linear layer that no other rule names.
        experts_only: only the routed experts are quantized.
        includes_embeddings: embeddings and output head are quantized as well (GGUF).
        kv_cache_dtype: the KV cache type the checkpoint asks for (`fp8`), if it does.
        is_complete: false where the source names only examples of what stays in 16 bit.
    """

    method: str
    default: WeightFormat
    exact: frozenset[str] = frozenset()
    pattern: str | None = None
    overrides: tuple[tuple[str, WeightFormat], ...] = ()
    experts_only: bool = False
    includes_embeddings: bool = False
    kv_cache_dtype: str | None = None
    is_complete: bool = True
    expert_format: WeightFormat | None = None
    """Of routed experts, where it is not the default."""

    def formats(self) -> tuple[WeightFormat, ...]:
        """Return every quantized format in use."""
        experts = () if self.expert_format is None else (self.expert_format,)
        return tuple(dict.fromkeys((self.default, *(form for _, form in self.overrides), *experts)))


class FormatChooser:
    """Answers, for one checkpoint, the format of each module. Built once per architecture."""

    def __init__(self, quantization: Quantization | None, plain: WeightFormat) -> None:
        self._quantization = quantization
        self._plain = plain
        pattern = quantization.pattern if quantization is not None else None
        self._pattern = re.compile(pattern) if pattern else None
        self._overrides = dict(quantization.overrides) if quantization is not None else {}
        named = [*(quantization.exact if quantization is not None else ()), *self._overrides]
        self.is_active = quantization is not None
        self.is_uniform = not any(_LAYER_NUMBER.search(path) for path in named) and not (
            self._pattern is not None and re.search(r"\\?\.\d", self._pattern.pattern)
        )

    def choose(self, path: str, part: str) -> WeightFormat:
        """Return the format of the linear layer at `path` (`layers.3.self_attn.q_proj`)."""
        quantization = self._quantization
        if quantization is None or part in _NEVER_QUANTIZED:
            return self._plain
        if part == "routed_experts" and quantization.expert_format is not None:
            return quantization.expert_format
        if part in ("embedding", "lm_head") and quantization.includes_embeddings:
            return quantization.default
        if self._overrides:
            found = next(
                (self._overrides[p] for p in _prefixes(path) if p in self._overrides), None
            )
            return found or self._plain
        if part in ("embedding", "lm_head") or (
            quantization.experts_only and part != "routed_experts"
        ):
            return self._plain
        return self._plain if self._is_ignored(path) else quantization.default

    def _is_ignored(self, path: str) -> bool:
        assert self._quantization is not None, "only asked where there is a quantization"
        exact = self._quantization.exact
        if any(prefix in exact for prefix in _prefixes(path)):
            return True
        pieces = path.split(".")
        if any(".".join(pieces[i:]) in exact for i in range(1, len(pieces))):
            return True
        if any(piece in exact for piece in pieces):
            return True
        return self._pattern is not None and self._pattern.match(path) is not None


_LAYER_NUMBER = re.compile(r"(^|\.)\d+(\.|$)")
_NEVER_QUANTIZED = frozenset(
    {"norm", "router", "compressor", "vision", "projector", "per_layer_embedding"}
)


def read_quantization(
    config: Mapping[str, Any] | None, hf_quant_config: Mapping[str, Any] | None = None
) -> Quantization | None:
    """Return the quantization of a checkpoint.

    Args:
        config: `quantization_config` of config.json.
        hf_quant_config: ModelOpt's `quantization` object of hf_quant_config.json.

    Returns:
        None for a checkpoint that is not quantized.

    Raises:
        ValueError: the method is unknown, with its name.
    """
    if not config and not hf_quant_config:
        return None
    if not config:
        assert hf_quant_config is not None, "one of the two is there"
        return _read_modelopt(hf_quant_config)
    method = str(config.get("quant_method") or "").lower()
    if method == "modelopt" or ("quant_algo" in config and not _has_other_experts(config)):
        return _read_modelopt(config)
    reader = _READERS.get(method)
    if reader is None:
        raise ValueError(f"its quantization method {method or 'without a name'!r} is unknown here")
    found = reader(config)
    if _has_other_experts(config):
        found = replace(found, expert_format=_algo_format(str(config["moe_quant_algo"])))
    return found


def _has_other_experts(config: Mapping[str, Any]) -> bool:
    """Whether ModelOpt quantized the experts of an FP8 checkpoint alone: the rest stays as it was (DeepSeek-V4)."""
    return bool(config.get("moe_quant_algo")) and config.get("quant_method") == "fp8"


def quantization_named(name: str) -> Quantization:
    """Return the usual form of a method that is only known by name (`awq`, `nvfp4`, `Q4_K_M`).

    Raises:
        ValueError: no such method.
    """
    key = name.lower().replace("_", "-")
    gguf = next(
        (bits for mix, bits in GGUF_BITS.items() if mix.lower() == key.replace("-", "_")), None
    )
    if gguf is not None:
        form = WeightFormat(f"gguf-{name.upper()}", gguf, min_capability=6.0)
        return Quantization("gguf", form, includes_embeddings=True)
    known: dict[str, WeightFormat] = {
        "fp8": FP8_TENSOR, "fp8-channel": FP8_CHANNEL, "fp8-block": FP8_BLOCK,
        "int8": INT8_CHANNEL, "w8a8": INT8_CHANNEL, "int8-weight-only": INT8_WEIGHT_ONLY, **{form.name: form for form in INT4_GROUPS.values()}, "nvfp4": NVFP4, "mxfp4": MXFP4, "mxfp8": MXFP8,
        "awq": grouped_int(4, 128, has_zeros=True, name="awq"),
        "gptq": grouped_int(4, 128, has_zeros=True, name="gptq"),
        "w4a16": grouped_int(4, 128, has_zeros=False, name="w4a16"),
        "bitsandbytes": BNB_NF4, "bitsandbytes-double": BNB_NF4_DOUBLE,
    }  # fmt: skip
    if key in _IN_8_BIT:
        method, form = _IN_8_BIT[key]
        return Quantization(method, form, exact=frozenset({"lm_head"}))
    if key not in known:
        raise ValueError(f"the quantization {name!r} is unknown here")
    return Quantization(key, known[key], exact=frozenset({"lm_head"}))


_IN_8_BIT: Mapping[str, tuple[str, WeightFormat]] = {
    "gptq-8bit": ("gptq", grouped_int(8, 128, has_zeros=True, name="gptq")),
    "bitsandbytes-8bit": ("bitsandbytes", BNB_INT8),
}
"""Methods that are 4 bit unless a name says 8; the method is that of config.json."""


def _read_fp8(config: Mapping[str, Any]) -> Quantization:
    form = FP8_BLOCK if config.get("weight_block_size") else FP8_TENSOR
    return _with_ignored("fp8", form, config.get("modules_to_not_convert"))


def _read_fbgemm(config: Mapping[str, Any]) -> Quantization:
    return _with_ignored("fbgemm_fp8", FP8_CHANNEL, config.get("modules_to_not_convert"))


def _read_int_groups(config: Mapping[str, Any]) -> Quantization:
    method = str(config["quant_method"]).lower()
    bits = quantized_count(config, ("bits", "w_bit"), 4)
    group = quantized_count(config, ("group_size", "q_group_size"), 128, may_be_all=True)
    name = "awq" if method == "awq" else "gptq"
    form = grouped_int(bits, group, has_zeros=True, name=name)
    ignored = config.get("modules_to_not_convert")
    return _with_ignored(name, form, ignored)


def _read_bitsandbytes(config: Mapping[str, Any]) -> Quantization:
    if config.get("load_in_8bit"):
        form = BNB_INT8
    else:
        form = BNB_NF4_DOUBLE if config.get("bnb_4bit_use_double_quant") else BNB_NF4
    return _with_ignored("bitsandbytes", form, config.get("llm_int8_skip_modules"))


def _read_hqq(config: Mapping[str, Any]) -> Quantization:
    """Read HQQ's form: a scale and a zero point of 16 bit per group (vLLM: hqq_marlin.py, 4 bit in groups of 64)."""
    params = (config.get("quant_config") or {}).get("weight_quant_params") or {}
    bits, group = int(params.get("nbits") or 4), int(params.get("group_size") or 64)
    if (bits, group) != (4, 64):
        raise ValueError(f"its HQQ form, {bits} bit in groups of {group}, is unknown here")
    form = WeightFormat("hqq", bits + 2 * 16 / group, min_capability=8.0)
    return _with_ignored("hqq", form, config.get("skip_modules"))


def _read_mxfp4(config: Mapping[str, Any]) -> Quantization:
    ignored = config.get("modules_to_not_convert")
    return _with_ignored("mxfp4", MXFP4, ignored, experts_only=True)


def _read_gguf(config: Mapping[str, Any]) -> Quantization:
    return quantization_named(str(config.get("file_type") or config.get("mix") or "Q4_K_M"))


def _read_compressed_tensors(config: Mapping[str, Any]) -> Quantization:
    kv_dtype = "fp8" if config.get("kv_cache_scheme") else None
    ignored = config.get("ignore")
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        bits = quantized_count(config, ("num_bits",), 4)
        group = quantized_count(config, ("group_size",), 128, may_be_all=True)
        form = grouped_int(bits, group, has_zeros=False, name="compressed-tensors")
        note = str(config.get("note") or "")
        return _with_ignored(
            "compressed-tensors", form, ignored, experts_only="experts only" in note
        )
    forms = [
        (_targets(group), _scheme_format(group.get("weights") or {})) for group in groups.values()
    ]
    named = tuple((t, form) for targets, form in forms for t in targets if t != "Linear")
    default = forms[0][1]
    if named and not any("Linear" in targets for targets, _ in forms):
        overrides = tuple((normalise_path(target), form) for target, form in named)
        if not any(target.startswith("re:") for target, _ in named):
            return Quantization(
                "compressed-tensors", default, overrides=overrides, kv_cache_dtype=kv_dtype
            )
    return _with_ignored("compressed-tensors", default, ignored, kv_cache_dtype=kv_dtype)


def _targets(group: Mapping[str, Any]) -> list[str]:
    return [str(target) for target in group.get("targets") or ["Linear"]]


def _scheme_format(weights: Mapping[str, Any]) -> WeightFormat:
    """Return the format of a compressed-tensors weight scheme."""
    bits, kind = quantized_count(weights, ("num_bits",), 16), str(weights.get("type") or "int")
    group, strategy = int(weights.get("group_size") or 0), str(weights.get("strategy") or "")
    if kind == "float" and bits == 4:
        return MXFP4 if group == 32 else NVFP4
    if kind == "float" and bits == 8:
        if strategy == "block":
            return FP8_BLOCK
        return FP8_CHANNEL if strategy == "channel" else FP8_TENSOR
    if bits == 8 and group <= 0:
        return INT8_CHANNEL
    zeros = not weights.get("symmetric", True)
    return grouped_int(bits, group, has_zeros=zeros, name=f"int{bits}")


def _read_modelopt(config: Mapping[str, Any]) -> Quantization:
    """Read ModelOpt's form; the method has the name that vLLM gives it by what it finds."""
    algo = str(config.get("quant_algo") or "").upper()
    asked_kv = config.get("kv_cache_quant_algo") or config.get("kv_cache_scheme")
    kv_dtype = "fp8" if asked_kv else None
    layers = config.get("quantized_layers")
    if isinstance(layers, Mapping):
        overrides = tuple(
            (normalise_path(str(path)), _algo_format(str(layer.get("quant_algo") or "")))
            for path, layer in layers.items()
        )
        default = overrides[0][1] if overrides else NVFP4
        return Quantization("modelopt_mixed", default, overrides=overrides, kv_cache_dtype=kv_dtype)
    ignored = config.get("exclude_modules") or config.get("ignore")
    form = _algo_format(algo)
    method = {"nvfp4": "modelopt_fp4", "mxfp8": "modelopt_mxfp8"}.get(form.name, "modelopt")
    return _with_ignored(method, form, ignored, kv_cache_dtype=kv_dtype)


def _algo_format(algo: str) -> WeightFormat:
    algo = algo.upper()
    for word, form in (("NVFP4", NVFP4), ("MXFP8", MXFP8), ("MXFP4", MXFP4)):
        if word in algo:
            return form
    if "FP8" in algo:
        return FP8_BLOCK if "BLOCK" in algo or "PB" in algo else FP8_TENSOR
    if "INT8" in algo or "SQ" in algo:
        return INT8_CHANNEL
    if "W4A16" in algo or "AWQ" in algo:
        return grouped_int(4, 128, has_zeros=False, name="modelopt-w4a16")
    raise ValueError(f"its ModelOpt algorithm {algo!r} is unknown here")


_READERS = {
    "fp8": _read_fp8,
    "fbgemm_fp8": _read_fbgemm,
    "awq": _read_int_groups,
    "gptq": _read_int_groups,
    "auto-round": _read_int_groups,
    "bitsandbytes": _read_bitsandbytes,
    "hqq": _read_hqq,
    "mxfp4": _read_mxfp4,
    "gguf": _read_gguf,
    "compressed-tensors": _read_compressed_tensors,
}


def _with_ignored(
    method: str,
    form: WeightFormat,
    ignored: object,
    *,
    experts_only: bool = False,
    kv_cache_dtype: str | None = None,
) -> Quantization:
    """Build a quantization from a list of modules that keep their 16 bits."""
    is_complete = True
    if isinstance(ignored, str):  # the catalogue's summary: a count and examples
        is_complete = False
        names = re.findall(r"'([^']+)'", ignored)
        ignored = [re.sub(r"\.\d+\.", ".*.", name) for name in names]
    entries = [str(entry) for entry in ignored] if isinstance(ignored, Sequence) else []
    exact: set[str] = {"lm_head"}
    patterns: list[str] = []
    for entry in entries:
        if entry.startswith("re:"):
            patterns.append(rf"(?:model\.|language_model\.)*(?:{entry[3:]})")
            continue
        name = normalise_path(entry)
        bare = name.rstrip("*").rstrip(".")
        if "*" in bare:
            patterns.append(re.escape(bare).replace(r"\*", ".*") + r"(\..*)?$")
        elif bare:
            exact.add(bare)
    # Regular expressions see the path with each of the prefixes a checkpoint may use.
    pattern = "|".join(f"(?:{p})" for p in patterns) or None
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as exc:
            raise ValueError(
                f"its list of unquantized modules has a broken pattern: {exc}"
            ) from exc
    return Quantization(
        method, form, exact=frozenset(exact), pattern=pattern, experts_only=experts_only,
        kv_cache_dtype=kv_cache_dtype, is_complete=is_complete,
    )  # fmt: skip


def _prefixes(path: str) -> list[str]:
    """Return the path and every module that holds it, the innermost first."""
    pieces = path.split(".")
    return [".".join(pieces[:count]) for count in range(len(pieces), 0, -1)]
