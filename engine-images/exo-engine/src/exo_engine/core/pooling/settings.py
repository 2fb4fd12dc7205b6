"""Settings of models that generate, given to one that embeds or scores: each is used, refused or harmless, and said so.

What is refused would be a promise that nobody keeps. What is harmless bounds or speeds up what such a model does not
have; deployments of several models may share such flags, and platforms pass some. The README has the same list.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Final

from exo_engine.config import EngineConfig
from exo_engine.errors import ConfigurationError

REFUSED: Final[Mapping[str, str]] = {
    "async_scheduling": "async-scheduling",
    "attention_backend": "attention-backend",
    "batch_invariant": "batch-invariant",
    "executor_backend": "distributed-executor-backend",
    "kv_cache_dtype": "kv-cache-dtype",
    "long_prefill_tokens": "long-prefill-token-threshold",
    "max_long_partial_prefills": "max-long-partial-prefills",
    "max_partial_prefills": "max-num-partial-prefills",
    "num_gpu_blocks_override": "num-gpu-blocks-override",
    "tensor_parallel_size": "tensor-parallel-size",
}
"""Fields of `EngineConfig` and their flags; off and the default are no request."""
HARMLESS: Final[Mapping[str, str]] = {
    "block_size": "block-size",
    "enable_chunked_prefill": "enable-chunked-prefill",
    "enable_prefix_caching": "enable-prefix-caching",
    "enforce_eager": "enforce-eager",
    "gpu_memory_utilization": "gpu-memory-utilization",
    "kv_cache_bytes": "kv-cache-memory-bytes",
    "max_logprobs": "max-logprobs",
    "seed": "seed",
}
"""Likewise; they change nothing, whatever they say."""


def check_settings(config: EngineConfig) -> None:
    """Refuse settings that such a model cannot keep to.

    Raises:
        ConfigurationError: naming the flag.
    """
    defaults = {each.name: each.default for each in fields(config)}
    for name, flag in REFUSED.items():
        value = getattr(config, name)
        if value is not False and value != defaults[name]:
            raise ConfigurationError(
                f"--{flag} is for models that generate, and this one embeds or scores",
                param=flag,
                hint=f"Leave --{flag} out.",
            )
