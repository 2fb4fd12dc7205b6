"""In which type a GGUF file has each tensor, by the quantization that its name says. Pure data and its rules.

Source: `llama_tensor_get_type_impl`, `tensor_allows_quantization` and `tensor_type_fallback` of llama.cpp's
src/llama-quant.cpp (0c1e5709), without an importance matrix, but for types of which public files have one (IQ2 and
IQ3_XXS); block sizes as in ggml-common.h. Mixes of other makers, such as UD-Q4_K_XL, have rules of their own, which are
in no source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

BITS: Mapping[str, float] = {
    "F32": 32.0, "F16": 16.0, "BF16": 16.0, "Q8_0": 8.5, "Q6_K": 6.5625, "Q5_K": 5.5, "Q5_1": 6.0, "Q5_0": 5.5,
    "Q4_K": 4.5, "Q4_1": 5.0, "Q4_0": 4.5, "Q3_K": 3.4375, "Q2_K": 2.625, "IQ4_NL": 4.5, "IQ4_XS": 4.25,
    "IQ3_S": 3.4375, "IQ3_XXS": 3.0625, "IQ2_S": 2.5625, "IQ2_XS": 2.3125, "IQ2_XXS": 2.0625, "IQ1_M": 1.75,
    "IQ1_S": 1.5625, "MXFP4": 4.25,
}  # fmt: skip
"""Bits per weight, scales included."""

_DEFAULTS: Mapping[str, str] = {
    "F32": "F32", "F16": "F16", "BF16": "BF16", "Q8_0": "Q8_0", "Q6_K": "Q6_K", "Q5_K_M": "Q5_K", "Q5_K_S": "Q5_K",
    "Q5_1": "Q5_1", "Q5_0": "Q5_0", "Q4_K_M": "Q4_K", "Q4_K_S": "Q4_K", "Q4_1": "Q4_1", "Q4_0": "Q4_0",
    "Q3_K_L": "Q3_K", "Q3_K_M": "Q3_K", "Q3_K_S": "Q3_K", "Q2_K": "Q2_K", "IQ4_NL": "IQ4_NL", "IQ4_XS": "IQ4_XS",
    "IQ3_M": "IQ3_S", "IQ3_XXS": "IQ3_XXS", "IQ2_M": "IQ2_S", "IQ2_XS": "IQ2_XS", "IQ2_XXS": "IQ2_XXS",
    "IQ1_M": "IQ1_M", "IQ1_S": "IQ1_S", "MXFP4_MOE": "MXFP4",
}  # fmt: skip
_PLAIN = frozenset({"F32", "F16", "BF16"})
_SMALL = frozenset({"IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_M"})
_OF_32 = frozenset({"Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0", "IQ4_NL", "MXFP4"})
_FALLBACK: Mapping[str, str] = {
    "IQ1_S": "IQ4_NL", "IQ1_M": "IQ4_NL", "IQ2_XXS": "IQ4_NL", "IQ2_XS": "IQ4_NL", "IQ2_S": "IQ4_NL",
    "IQ3_XXS": "IQ4_NL", "IQ3_S": "IQ4_NL", "IQ4_XS": "IQ4_NL", "Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0",
    "Q5_K": "Q5_1", "Q6_K": "Q8_0",
}  # fmt: skip

KNOWN = frozenset(_DEFAULTS)
"""Quantizations whose tensors are known."""


@dataclass(frozen=True, slots=True)
class Mix:
    """The quantization of a file, of a model with these traits.

    Attributes:
        name: such as `Q4_K_M`.
        num_layers: of the model.
        shared_heads: query heads to each KV head.
        num_experts: 0 for a dense model.
        is_tied: the embedding is the output too.
        is_70b: one of the dense models of 80 layers whose values have more bits.
        experts: the type that experts keep whatever the name says; empty: none.
    """

    name: str
    num_layers: int
    shared_heads: int = 1
    num_experts: int = 0
    is_tied: bool = False
    is_70b: bool = False
    experts: str = ""

    def group(self, layer: int) -> tuple[bool, ...]:
        """Return what the types of a layer hang on beside its tensors: those of one group have the same."""
        eighth, sixteenth = self.num_layers // 8, self.num_layers // 16
        return self._has_more_bits(layer), *(layer < end for end in (2, 4, sixteenth, eighth))

    def kind(self, role: str, layer: int, columns: int) -> str:
        """Return the type of a tensor.

        Args:
            role: what it is: `v`, `k`, `down`, `o`, `output`, `embedding`, `expert-down`, `expert` or `other`.
            layer: the index of its layer.
            columns: its rows are so long.
        """
        if self.experts and role.startswith("expert"):
            return self.experts
        kind = self._type(role, layer)
        if columns % (32 if kind in _OF_32 else 256) and kind not in _PLAIN:
            kind = _FALLBACK.get(kind, "F16")
            kind = kind if columns % 32 == 0 else "F16"
        return kind

    def _type(self, role: str, layer: int) -> str:
        default = _DEFAULTS[self.name]
        if default in _PLAIN:
            return default
        if self.name == "MXFP4_MOE":
            return "MXFP4" if role.startswith("expert") else "Q8_0"
        if role == "output" or (role == "embedding" and self.is_tied):
            return self._output_type(default)
        rule = {
            "embedding": self._embedding_type,
            "v": self._value_type,
            "o": self._attention_output_type,
        }
        if role in rule:
            return rule[role](default, layer)
        if role in ("down", "expert-down"):
            return self._down_type(default, layer)
        if role == "k" and self.num_experts == 8:
            return "Q4_K" if self.name in _SMALL else "Q8_0"
        if role in ("k", "q") and self.name == "IQ3_XXS":
            return "IQ2_S"
        return default

    def _output_type(self, default: str) -> str:
        if self.name in _SMALL or self.name == "IQ3_XXS":
            return "Q5_K"
        return default if default == "Q8_0" else "Q6_K"

    def _embedding_type(self, default: str, layer: int) -> str:
        if self.name in _SMALL:
            return "IQ3_S" if self.name == "IQ2_M" else "Q2_K"
        return "IQ3_S" if self.name == "IQ3_XXS" else default

    def _value_type(self, default: str, layer: int) -> str:
        is_shared = self.shared_heads >= 4
        if self.name in _SMALL:
            if is_shared or self.num_experts >= 4:
                return "Q4_K"
            return "IQ3_S" if self.name == "IQ2_M" else "Q2_K"
        found = default
        if self.name in ("Q4_K_M", "Q5_K_M"):
            found = "Q6_K" if self._has_more_bits(layer) else default
        elif self.name == "Q4_K_S" and layer < 4:
            found = "Q5_K"
        elif self.name == "Q3_K_M":
            found = "Q5_K" if layer < 2 else "Q4_K"
        elif self.name == "Q2_K":
            found = "Q4_K" if is_shared else "Q3_K"
        elif self.name == "IQ3_XXS":
            found = "Q4_K" if is_shared else "IQ3_S"
        elif self.name in ("IQ4_NL", "IQ4_XS") and is_shared:
            found = "Q5_K"
        else:
            found = {"Q3_K_L": "Q5_K", "IQ3_M": "Q4_K"}.get(self.name, default)
        if self.is_70b and found in ("Q3_K", "Q4_K"):
            found = "Q5_K"
        return "Q8_0" if self.num_experts == 8 else found

    def _down_type(self, default: str, layer: int) -> str:
        is_first = layer < self.num_layers // 8
        if self.name in ("Q4_K_M", "Q5_K_M"):
            return "Q6_K" if self._has_more_bits(layer) else default
        if self.name == "Q3_K_M":
            return "Q5_K" if layer < self.num_layers // 16 else "Q4_K"
        if self.name in _SMALL:
            small = "IQ3_S" if self.name == "IQ2_M" else "Q2_K"
            return small if is_first else default
        if self.name == "IQ3_M":
            is_more = is_first or (self.num_experts == 8 and self._has_more_bits(layer))
            return "Q4_K" if is_more else default
        if self.name in ("Q4_K_S", "IQ4_NL", "IQ4_XS"):
            return "Q5_K" if is_first else default
        return {"Q2_K": "Q3_K", "Q3_K_L": "Q5_K"}.get(self.name, default)

    def _attention_output_type(self, default: str, layer: int) -> str:
        if self.name in _SMALL:
            if self.num_experts == 8:
                return "Q5_K"
            return {"IQ1_S": "IQ2_XXS", "IQ1_M": "IQ2_XXS", "IQ2_M": "IQ3_S"}.get(
                self.name, default
            )
        if self.num_experts == 8:
            return (
                default
                if self.name
                in ("Q8_0", "Q6_K", "Q5_K_M", "Q5_K_S", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q3_K_L")
                else "Q5_K"
            )
        rule = {
            "Q2_K": "Q3_K",
            "Q3_K_M": "Q4_K",
            "Q3_K_L": "Q5_K",
            "IQ3_M": "Q4_K",
            "IQ3_XXS": "IQ3_S",
        }
        return rule.get(self.name, default)

    def _has_more_bits(self, layer: int) -> bool:
        eighth = self.num_layers // 8
        return layer < eighth or layer >= 7 * self.num_layers // 8 or (layer - eighth) % 3 == 2
