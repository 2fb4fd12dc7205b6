"""The names of adapters (LoRA) that flags of an engine load: clients send them as `model`. Pure.

A platform asks for those of a replica that runs, to tell the gateway what it answers to. What is loaded while
an engine runs is not known here, and flags are not judged: that was done when they were admitted.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator

from exo_inference.engines.base import UnknownEngine
from exo_inference.engines.registry import get_engine

_FLAGS = ("lora-modules", "lora-paths", "lora-adapters")
"""Names of flags of vLLM, of SGLang and of TGI: `NAME=PATH` or JSON."""
_MAX_KEPT = 256
"""Vectors that are kept: a platform asks about every pod again and again."""


@functools.lru_cache(maxsize=_MAX_KEPT)
def adapter_names(engine: str, flags: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the adapters that an engine's flags load, each once; none of an engine that is not known."""
    try:
        values = get_engine(engine).read(flags).values
    except UnknownEngine:
        return ()
    loaded = (values[name] for name in _FLAGS if name in values)
    items = (item for value in loaded for item in _split(value))
    return tuple(dict.fromkeys(name for item in items for name in _names(item)))


def _split(value: str | tuple[str, ...]) -> tuple[str, ...] | list[str]:
    """Return the adapters of a flag: its values, or those between commas where it takes one."""
    return value.split(",") if isinstance(value, str) else value


def _names(item: str) -> Iterator[str]:
    if not item.lstrip().startswith(("{", "[")):
        name, equals, _ = item.partition("=")
        if name.strip() and equals:
            yield name.strip()
        return
    try:
        found = json.loads(item)
    except ValueError:
        return
    for each in found if isinstance(found, list) else [found]:
        told = each.get("name", each.get("lora_name")) if isinstance(each, dict) else None
        if isinstance(told, str) and told:
            yield told
