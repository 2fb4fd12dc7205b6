"""Attention over the paged KV cache: one interface, one file per backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exo_engine.errors import ConfigurationError

if TYPE_CHECKING:
    from exo_engine.attention.base import AttentionBackend
    from exo_engine.attention.kv_cache import KVCache
    from exo_engine.models.spec import DecoderSpec


def create_backend(name: str, spec: DecoderSpec, cache: KVCache) -> AttentionBackend:
    """Build the backend called `name` over a cache."""
    if name == "reference":
        from exo_engine.attention.reference import ReferenceAttention

        return ReferenceAttention(spec, cache)
    raise ConfigurationError(
        f"there is no attention backend {name!r}, expected reference", param="attention-backend"
    )
