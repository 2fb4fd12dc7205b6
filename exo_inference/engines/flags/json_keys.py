"""Which values the keys of JSON objects take, beyond their types. Data, and its look-up.

`values.py` asks for one key in one release. Where a flag says the same as a key (`--spec-method`), its
choices are taken, so that they follow the releases. Others are the limits that the classes below
`vllm/config/` declare; keys that plug-ins or kernels extend have none here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from exo_inference.engines.flags.catalogue import choices_of


@dataclass(frozen=True, slots=True)
class Limits:
    """What the value of a key has to be.

    Attributes:
        bounds: `gt`, `ge`, `lt`, `le` with their numbers; of each member where the value is an array.
        choices: texts that exist; empty where any is taken.
        like: the flag whose choices of that release are taken.
        folded: choices are compared in upper case, and numbers stand for them as well.
    """

    bounds: Mapping[str, float] = field(default_factory=dict)
    choices: tuple[str, ...] = ()
    like: str | None = None
    folded: bool = False


_POSITIVE = Limits({"gt": 0})
_NOT_NEGATIVE = Limits({"ge": 0})

_LIMITS: Mapping[str, Mapping[str, Limits]] = {
    "speculative-config": {
        "method": Limits(like="spec-method"),
        "kv_cache_dtype": Limits(like="kv-cache-dtype"),
        "moe_backend": Limits(like="moe-backend"),
        "num_speculative_tokens": _POSITIVE,
        "max_model_len": _POSITIVE,
        "draft_tensor_parallel_size": _POSITIVE,
        "prompt_lookup_max": _POSITIVE,
        "prompt_lookup_min": _POSITIVE,
        "disable_by_batch_size": Limits({"ge": 2}),
        "suffix_decoding_max_tree_depth": _POSITIVE,
        "suffix_decoding_max_cached_requests": _NOT_NEGATIVE,
        "suffix_decoding_max_spec_factor": _NOT_NEGATIVE,
        "suffix_decoding_min_token_prob": Limits({"ge": 0, "le": 1}),
    },
    "compilation-config": {
        "cudagraph_capture_sizes": _POSITIVE,
        "max_cudagraph_capture_size": _POSITIVE,
        "level": Limits({"ge": 0, "le": 3}),
        "mode": Limits(
            {"ge": 0, "le": 3},
            ("NONE", "STOCK_TORCH_COMPILE", "DYNAMO_TRACE_ONCE", "VLLM_COMPILE"),
            folded=True,
        ),
        "cudagraph_mode": Limits(
            choices=("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"),
            folded=True,
        ),
    },
    "kernel-config": {
        "linear_backend": Limits(like="linear-backend"),
        "moe_backend": Limits(like="moe-backend"),
    },
    "kv-transfer-config": {
        "kv_role": Limits(choices=("kv_producer", "kv_consumer", "kv_both")),
    },
    "structured-outputs-config": {
        "backend": Limits(
            choices=("auto", "xgrammar", "guidance", "outlines", "lm-format-enforcer")
        ),
    },
}

RENAMED_KEYS: Mapping[tuple[str, str], str] = {("compilation-config", "level"): "mode"}
"""Keys that are gone, each with the one that takes the same values now."""


def limits_of(flag: str, key: str, listed: str) -> Limits | None:
    """Return what the value of a key has to be in a listed release; None where anything goes."""
    limits = _LIMITS.get(flag, {}).get(key)
    if limits is None or limits.like is None:
        return limits
    return Limits(choices=choices_of(limits.like, listed))
