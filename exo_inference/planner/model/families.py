"""What sets each family of decoder models apart from Llama, as a table.

`layers.py` reads the table; the shapes themselves come from the config. Each row was checked by
instantiating the family's published configs (transformers 5.23.0, meta device) and comparing the
parameter counts; `tests/planner/test_architecture.py` repeats the comparison against the catalogue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Family:
    """How a family's decoder layer differs from Llama's.

    Attributes:
        qkv_bias, o_bias, mlp_bias: biases; None for qkv: as `attention_bias` says.
        qk_norm: one norm per head, one over all heads, or none.
        norms: vectors of hidden size per layer.
        norm_bias: norms have a bias as well.
        gated_mlp: three matrices rather than two.
        ties_by_default: embeddings are shared with the output head unless the config says otherwise.
        default_head_dim: where the config has none and it is not hidden size / heads.
        rope_caches: rotary tables that vLLM keeps (one per kind of attention layer).
        mrope: the tables are four times as long (multimodal rotary positions).
        positions: rows added to a learned position table; None: no such table.
        min_batched_tokens: vLLM raises max-num-batched-tokens to the largest image or video item.
    """

    qkv_bias: bool | None = None
    o_bias: bool | None = None
    mlp_bias: bool | None = None
    qk_norm: Literal["none", "head", "full"] = "none"
    norms: int = 2
    norm_bias: bool = False
    gated_mlp: bool = True
    ties_by_default: bool = False
    default_head_dim: int | None = None
    rope_caches: int = 1
    mrope: bool = False
    positions: int | None = None
    min_batched_tokens: int = 0


_LLAMA = Family()
_QWEN2 = Family(qkv_bias=True, o_bias=False)
_QWEN3 = Family(qk_norm="head")
_GEMMA3 = Family(qk_norm="head", norms=4, ties_by_default=True, default_head_dim=256, rope_caches=2)
_GEMMA4 = Family(
    qk_norm="head", norms=4, ties_by_default=True, default_head_dim=256, rope_caches=2,
    min_batched_tokens=2496,
)  # fmt: skip  # 2496: printed by vLLM 0.25.1 for Gemma 4 (vllm-memory.md §3)

FAMILIES: Mapping[str, Family] = {
    "llama": _LLAMA, "llava": _LLAMA, "llava_next": _LLAMA, "idefics3": _LLAMA, "smolvlm": _LLAMA, "mistral": _LLAMA, "ministral3": _LLAMA, "mistral3": _LLAMA, "granite": _LLAMA,
    "smollm3": _LLAMA, "mixtral": _LLAMA, "phi3": _LLAMA, "nemotron-nas": _LLAMA, "llama4": _LLAMA,
    "llama4_text": _LLAMA, "seed_oss": Family(qkv_bias=True, o_bias=False), "mimo": _QWEN2,
    "qwen2": _QWEN2, "qwen2_moe": _QWEN2,
    "qwen2_vl": Family(qkv_bias=True, o_bias=False, mrope=True),
    "qwen2_5_vl": Family(qkv_bias=True, o_bias=False, mrope=True),
    "qwen3": _QWEN3, "qwen3_moe": _QWEN3,
    "qwen3_vl": Family(qk_norm="head", mrope=True),
    "qwen3_vl_moe": Family(qk_norm="head", mrope=True),
    "qwen3_next": _QWEN3, "qwen3_5": Family(qk_norm="head", mrope=True),
    "qwen3_5_moe": Family(qk_norm="head", mrope=True),
    "gemma": Family(ties_by_default=True, default_head_dim=256),
    "gemma2": Family(norms=4, ties_by_default=True, default_head_dim=256),
    "gemma3": _GEMMA3, "gemma3_text": _GEMMA3, "gemma4": _GEMMA4, "gemma4_text": _GEMMA4,
    "gemma3n": _GEMMA3, "gemma3n_text": _GEMMA3, "deepseek_v4": Family(rope_caches=2),
    "olmo2": Family(qk_norm="full"), "olmo3": Family(qk_norm="full"),
    "exaone4": _QWEN3, "apertus": Family(qk_norm="head", gated_mlp=False),
    "glm4_moe": Family(o_bias=False), "gpt_oss": Family(qkv_bias=True, o_bias=True),
    "minimax_m2": Family(qk_norm="full"), "minimax_m3": Family(qk_norm="head"),
    "mimo_v2_flash": Family(rope_caches=2), "step3p7": Family(qk_norm="head"),
    "deepseek_v2": _LLAMA, "deepseek_v3": _LLAMA, "deepseek_v32": _LLAMA, "kimi_k2": _LLAMA,
    "kimi_k25": _LLAMA, "glm4_moe_lite": _LLAMA, "glm_moe_dsa": _LLAMA,
    "kimi_linear": Family(), "kimi_k3": Family(),
    "nemotron_h": Family(norms=1, gated_mlp=False, rope_caches=0),
    "granitemoehybrid": Family(ties_by_default=True),
    "falcon": Family(
        qkv_bias=False, o_bias=False, gated_mlp=False, norms=1, norm_bias=True, ties_by_default=True
    ),
    "gptj": Family(qkv_bias=False, o_bias=False, mlp_bias=True, gated_mlp=False, norms=1, norm_bias=True),
    "gpt2": Family(
        qkv_bias=True, o_bias=True, mlp_bias=True, gated_mlp=False, norm_bias=True,
        ties_by_default=True, rope_caches=0, positions=0,
    ),
    "opt": Family(
        qkv_bias=True, o_bias=True, mlp_bias=True, gated_mlp=False, norm_bias=True,
        ties_by_default=True, rope_caches=0, positions=2,
    ),
    "gpt_neox": Family(qkv_bias=True, o_bias=True, mlp_bias=True, gated_mlp=False, norm_bias=True),
    "gpt_bigcode": Family(
        qkv_bias=True, o_bias=True, mlp_bias=True, gated_mlp=False, norm_bias=True,
        ties_by_default=True, rope_caches=0, positions=0,
    ),
    "phi": Family(qkv_bias=True, o_bias=True, mlp_bias=True, gated_mlp=False, norms=1, norm_bias=True),
    "phimoe": Family(norm_bias=True), "stablelm": Family(o_bias=False, norm_bias=True),
    "cohere": Family(norms=1, ties_by_default=True), "cohere2": Family(norms=1, ties_by_default=True),
    "glm": Family(o_bias=False), "glm4": Family(o_bias=False, norms=4),
    "olmo": Family(norms=0), "olmoe": Family(qk_norm="full"), "arcee": Family(gated_mlp=False),
    "whisper": Family(norm_bias=True, ties_by_default=True, rope_caches=0), "helium": _LLAMA, "granitemoe": _LLAMA, "laguna": Family(qk_norm="head", rope_caches=2),
    "ernie4_5": Family(ties_by_default=True), "ernie4_5_moe": Family(ties_by_default=True),
    "internlm2": _LLAMA, "internlm3": _LLAMA, "exaone": _LLAMA, "baichuan": _LLAMA, "minicpm": Family(ties_by_default=True),
    "nemotron": Family(gated_mlp=False, norm_bias=True), "dbrx": _LLAMA, "bamba": _LLAMA,
    "bloom": Family(
        qkv_bias=True, o_bias=True, mlp_bias=True, gated_mlp=False, norm_bias=True, ties_by_default=True, rope_caches=0
    ),
    "mpt": Family(qkv_bias=False, o_bias=False, gated_mlp=False, ties_by_default=True, rope_caches=0),
    "dots1": _QWEN3, "hunyuan_v1_dense": _QWEN3, "granitemoeshared": _LLAMA,
    "lfm2": Family(qk_norm="head", ties_by_default=True, qkv_bias=False, o_bias=False),
    "starcoder2": Family(
        qkv_bias=True, o_bias=True, mlp_bias=True, gated_mlp=False, norm_bias=True, ties_by_default=True
    ),
}  # fmt: skip

UNCHECKED = frozenset({"kimi_linear", "kimi_k3", "minimax_m3"})
"""Families whose parameter count could not be compared with anything published."""
