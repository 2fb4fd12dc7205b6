"""Reads the fields of a Hugging Face config.json, whatever the family calls them.

`architecture.py` and its builders use this; nothing else looks into a raw config. A field that is
missing or of the wrong type raises `FieldProblem`, whose text ends up in "cannot size this, because".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from exo_inference.planner.model.families import CLASS_LENGTHS, FAMILIES, Family

_ALIASES: Mapping[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size", "n_embd", "d_model", "model_dim"),
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "decoder_layers"),
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads"),
    "num_key_value_heads": (
        "num_key_value_heads", "num_kv_heads", "n_head_kv", "kv_n_heads", "num_attention_groups", "multi_query_group_num",
    ),
    "vocab_size": ("vocab_size", "padded_vocab_size"),
    "intermediate_size": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "block_ff_dim"),
    "max_position_embeddings": (
        "max_trained_positions", "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length", "max_target_positions",
        "max_sequence_length", "max_seq_length", "seq_len",
    ),
    "num_experts": ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
    "experts_per_token": (
        "num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_topk", "top_k_experts",
        "experts_per_token", "moe_k",
    ),
    "num_shared_experts": ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert"),
    "moe_intermediate_size": ("moe_intermediate_size", "expert_intermediate_size", "expert_ffn_hidden_size"),
    "head_dim": ("head_dim", "attention_head_dim", "kv_channels"),
    "first_k_dense_replace": ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index"),
    "dtype": ("dtype", "torch_dtype"),
}  # fmt: skip

_TEXT_KEYS = ("text_config", "llm_config", "language_config", "thinker_config")
_VISION_KEYS = ("vision_config", "vision_tower_config", "visual", "visual_tokenizer_config")


class FieldProblem(ValueError):
    """A field that is needed is missing, or holds something else than expected."""


class ConfigFields:
    """One level of a config, with lookups by our names.

    Attributes:
        raw: the text model's fields, those of the outer config where it has none of its own.
        outer: the config as given.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.outer = config
        inner = next((config[k] for k in _TEXT_KEYS if isinstance(config.get(k), Mapping)), None)
        holder: Mapping[str, Any] = {}
        if inner is not None and isinstance(inner.get("text_config"), Mapping):
            # Qwen's "thinker" has encoders beside its text model.
            holder, inner = inner, inner["text_config"]
        self.raw: Mapping[str, Any] = {**config, **holder, **inner} if inner is not None else config
        names = _family(config.get("model_type")).config_parts
        if names:
            parts = [config[name] for name in names if isinstance(config.get(name), Mapping)]
            self.raw = {
                **{k: v for part in parts for k, v in part.items() if k != "model_type"},
                **config,
            }
        parts_of = [each[k] for each in (config, holder) for k in _VISION_KEYS if k in each]
        self.vision: Mapping[str, Any] | None = next(
            (each for each in parts_of if isinstance(each, Mapping)), None
        )
        self.model_type = str(config.get("model_type") or "").lower()
        self.text_type = str((inner or config).get("model_type") or self.model_type).lower()
        if config.get("position_embedding_type") == "rotary":
            self.model_type = _family(self.model_type).with_rotary or self.model_type
            self.text_type = _family(self.text_type).with_rotary or self.text_type

    def get(self, name: str) -> Any:
        """Return the field under any of its names, or None."""
        for alias in _ALIASES.get(name, (name,)):
            value = self.raw.get(alias)
            if value is not None:
                return value
        return None

    def integer(self, name: str, default: int | None = None) -> int:
        """Return a whole number that is not negative; of a list that says the same for each layer, that.

        Raises:
            FieldProblem: it is missing without a default, or not such a number.
        """
        value = self.get(name)
        if isinstance(value, list) and value and all(each == value[0] for each in value):
            value = value[0]
        if value is None:
            if default is None:
                raise FieldProblem(f"config.json has no {name}")
            return default
        return whole_number(name, value)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Return a true-or-false field."""
        value = self.get(name)
        return default if value is None else bool(value)

    def sequence(self, name: str) -> list[Any] | None:
        """Return a list field, or None where there is none."""
        value = self.get(name)
        if isinstance(value, Sequence) and not isinstance(value, str):
            return list(value)
        return None

    def mapping(self, name: str) -> Mapping[str, Any]:
        """Return a nested object, empty where there is none."""
        value = self.get(name)
        return value if isinstance(value, Mapping) else {}

    def text(self, name: str) -> str:
        """Return a text field, empty where there is none."""
        value = self.get(name)
        return value if isinstance(value, str) else ""


def _family(model_type: object) -> Family:
    return FAMILIES.get(str(model_type)) or Family()


def check_positive(fields: ConfigFields) -> None:
    """Check that sizes of which a model has at least one are not zero.

    Raises:
        FieldProblem: one is.
    """
    for name in _AT_LEAST_ONE:
        alias = next((each for each in _ALIASES[name] if fields.raw.get(each) is not None), name)
        if fields.raw.get(alias) == 0:
            raise FieldProblem(f"{alias} in config.json is {fields.raw[alias]}, expected 1 or more")


_AT_LEAST_ONE = ("num_key_value_heads", "intermediate_size", "max_position_embeddings")


def quantized_count(
    config: Mapping[str, Any], names: Sequence[str], default: int, *, may_be_all: bool = False
) -> int:
    """Return a count of `quantization_config`: of bits, or of weights in a group.

    Args:
        config: that object.
        names: of the field, the usual one first.
        default: where it is missing.
        may_be_all: -1 stands for all weights of a row.

    Raises:
        FieldProblem: it is something else.
    """
    name = next((each for each in names if config.get(each) is not None), None)
    if name is None:
        return default
    value = config[name]
    path = f"quantization_config.{name}"
    if may_be_all and value == -1:
        return -1
    expected = "a whole number of 1 or more" + (", or -1 for all of a row" if may_be_all else "")
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or int(value) != value or value < 1:
        raise FieldProblem(f"{path} in config.json is {value!r:.60}, expected {expected}")
    return int(value)


def whole_number(name: str, value: object) -> int:
    """Return `value` as a count below 10^12.

    Raises:
        FieldProblem: it is something else.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FieldProblem(f"{name} in config.json is {value!r:.60}, expected a number")
    if not math.isfinite(value) or not 0 <= value < 10**12 or int(value) != value:
        raise FieldProblem(f"{name} in config.json is {value!r:.60}, expected a count")
    return int(value)


_MAX_LENGTH = 10**9

ASSUMED_MAX_MODEL_LEN = 2048
"""What vLLM assumes where neither config.json nor the config's class names a length (config/model.py
`_get_and_verify_max_len`)."""


def derived_max_model_len(fields: ConfigFields, family: Family) -> int | None:
    """Return the context length that vLLM derives from the config.

    Raises:
        FieldProblem: the fields lead to no usable length.
    """
    derived = rotary_len(fields)
    if not family.states_stretched_length or derived is None:
        return derived
    return min(derived, _stated_or_default(fields) or derived)


def rotary_len(fields: ConfigFields) -> int | None:
    """Return the positions that the stretched rotary table has.

    Raises:
        FieldProblem: the fields lead to no usable length.
    """
    length = _derived_length(fields)
    if length is None:
        return None
    if not 1 <= length <= _MAX_LENGTH:
        raise FieldProblem(f"its context length comes to {length:.3g} tokens")
    return int(length)


def longest_model_len(fields: ConfigFields, family: Family) -> int | None:
    """Return the context length that may be asked for: LongRoPE is for more than engines take by themselves.

    Source: vLLM's config/model.py, `_get_and_verify_max_len` (0.32.0).
    """
    derived = derived_max_model_len(fields, family)
    if derived is None or _rope_kind(fields) not in _LONGROPE:
        return derived
    stated = whole_number("max_position_embeddings", fields.get("max_position_embeddings") or 0)
    return max(derived, stated) if stated <= _MAX_LENGTH else derived


def stated_model_len(fields: ConfigFields) -> int | None:
    """Return the context length that the config names, whatever its rotary positions are stretched by; None for none."""
    stated = fields.get("max_position_embeddings")
    length = 0 if stated is None else whole_number("max_position_embeddings", stated)
    return length if 1 <= length <= _MAX_LENGTH else None


_LONGROPE = ("longrope", "su")


def _rope_scaling(fields: ConfigFields) -> dict[str, Any]:
    return {**fields.mapping("rope_scaling"), **fields.mapping("rope_parameters")}


def _rope_kind(fields: ConfigFields) -> str:
    scaling = _rope_scaling(fields)
    return str(scaling.get("rope_type") or scaling.get("type") or "")


def _stated_or_default(fields: ConfigFields) -> int | None:
    longest = fields.get("max_position_embeddings")
    longest = longest if longest is not None else CLASS_LENGTHS.get(fields.text_type)
    return None if longest is None else whole_number("max_position_embeddings", longest)


def _derived_length(fields: ConfigFields) -> float | None:
    length = _stated_or_default(fields)
    if length is None:
        return None
    scaling, kind = _rope_scaling(fields), _rope_kind(fields)
    original = scaling.get("original_max_position_embeddings")
    original = fields.get("original_max_position_embeddings") if original is None else original
    if kind in _LONGROPE:
        return int(original) if isinstance(original, int) and original > 0 else length
    factor = scaling.get("factor")
    if factor is not None and not _is_factor(factor):
        where = (
            "rope_parameters" if "factor" in fields.mapping("rope_parameters") else "rope_scaling"
        )
        raise FieldProblem(
            f"{where}.factor in config.json is {factor!r:.60}, expected a number above 0"
        )
    if not isinstance(factor, int | float) or kind in (
        "",
        "default",
        "llama3",
        "mrope",
        "ntk",  # GTE: `max_position_embeddings` is what it stretches to
        "proportional",
    ):
        return length
    if kind == "yarn" and isinstance(original, int) and original > 0:
        return float(original) * factor
    return length if kind == "yarn" else length * factor


def _is_factor(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and value > 0  # type: ignore[arg-type, operator]
