"""Attention over the paged KV cache: one interface, one file per backend."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from exo_engine.errors import ConfigurationError

if TYPE_CHECKING:
    from exo_engine.attention.base import AttentionBackend
    from exo_engine.attention.kv_cache import KVCache
    from exo_engine.attention.layer import CachedLayer
    from exo_engine.attention.triton import TritonAttention

BACKENDS: Mapping[str, str] = {
    "cpu": "exo_engine.attention.cpu:CpuAttention",
    "flashinfer": "exo_engine.attention.gathering:make_gathering",
    "reference": "exo_engine.attention.reference:ReferenceAttention",
    "torch": "exo_engine.attention.gathering:make_gathering",
    "triton": "exo_engine.attention.triton:TritonAttention",
}
"""Each backend by its name; loaded when it is used, as all of them import torch."""


def create_backend(
    name: str, layers: Sequence[CachedLayer], cache: KVCache, *, is_fixed: bool = False
) -> AttentionBackend:
    """Build a backend for a model's layers over a cache.

    Args:
        name: one of `BACKENDS`; auto: the device's kernels where they can serve all layers.
        layers: of the model.
        cache: of keys and values.
        is_fixed: whether a token's result may not depend on the tokens beside it, where a backend has the choice.

    Raises:
        ConfigurationError: there is no such backend, or it cannot serve this model here.
    """
    is_chosen = name == "auto"
    if is_chosen:
        name = _best(layers, cache)
    if name not in BACKENDS:
        raise ConfigurationError(
            f"there is no attention backend {name!r}, expected {', '.join(('auto', *BACKENDS))}",
            param="attention-backend",
        )
    if name in ("triton", "torch", "flashinfer") and not _has_triton():
        raise ConfigurationError(
            f"attention backend {name!r} needs the Python package triton, which is not there",
            param="attention-backend",
        )
    module, _, attribute = BACKENDS[name].partition(":")
    make = getattr(importlib.import_module(module), attribute)
    if name == "triton":
        make = partial(make, is_fixed=is_fixed)
    elif name in ("torch", "flashinfer"):
        make = partial(make, name, is_fixed=is_fixed)
    backend: AttentionBackend = make(layers, cache)
    if is_chosen and name == "triton" and not is_fixed:
        from exo_engine.attention.prompt_choice import choose_for_prompts, gpu_seconds

        choose_for_prompts(cast("TritonAttention", backend), gpu_seconds)
    return backend


def _best(layers: Sequence[CachedLayer], cache: KVCache) -> str:
    """Return the fastest backend that can serve these layers over this cache."""
    if cache.device.type == "cpu":
        from exo_engine.attention.cpu import CpuAttention

        return "cpu" if CpuAttention.can_serve(layers, cache) else "reference"
    if _has_triton():
        from exo_engine.attention.triton import TritonAttention

        if TritonAttention.can_serve(layers, cache):
            return "triton"
    return "reference"


def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None
