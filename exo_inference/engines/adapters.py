"""The names of adapters (LoRA) that flags of an engine load: clients send them as `model`. Pure.

A platform asks for those of a replica that runs, to tell the gateway what it answers to. What is loaded while
an engine runs is not known here, and flags are not judged: that was done when they were admitted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

_FLAGS = ("lora-modules", "lora-paths", "lora-adapters")
"""Of vLLM, of SGLang and of TGI: `NAME=PATH`, one item after the other or with commas between them."""


def adapter_names(flags: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the adapters that an engine's flags load, each once."""
    return tuple(dict.fromkeys(name for item in _items(flags) for name in _names(item)))


def _items(flags: Sequence[str]) -> Iterator[str]:
    """Return what follows the flags of adapters."""
    is_meant = False
    for word in flags:
        if not word.startswith("--"):
            if is_meant:
                yield word
            continue
        flag, _, value = word[2:].partition("=")
        is_meant = flag.replace("_", "-") in _FLAGS
        if is_meant and value:
            yield value


def _names(item: str) -> Iterator[str]:
    if not item.lstrip().startswith(("{", "[")):
        pairs = (part.partition("=") for part in item.split(","))
        yield from (name.strip() for name, equals, _ in pairs if name.strip() and equals)
        return
    try:
        found = json.loads(item)
    except ValueError:
        return
    for each in found if isinstance(found, list) else [found]:
        name = each.get("name", each.get("lora_name")) if isinstance(each, dict) else None
        if isinstance(name, str) and name:
            yield name
