"""Ways out of a start of llama.cpp that has no room, each planned as its flags are read when they are pasted. Pure.

`preflight/gguf_engine.py` asks. The least intrusive comes first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from exo_inference.planner.changes import SLIGHTLY, UNCHANGED, round_length
from exo_inference.planner.gpu_catalog import Gpu
from exo_inference.planner.llama_cpp.cache import element_bytes
from exo_inference.planner.llama_cpp.room import (
    Asked,
    fitted_context,
    has_room,
    longest,
    spilled,
)
from exo_inference.planner.llama_cpp.setting import read_setting

_LEAST = 1024
"""A shorter context is no way out."""
_SMALL_TYPE = "q8_0"
_SLOWER = "computed by the CPU, many times slower"


@dataclass(frozen=True, slots=True)
class Way:
    """A start that has room.

    Attributes:
        kinds: what changes.
        flags: names of flags and their values.
        effect: in words.
        asked: the start.
    """

    kinds: tuple[str, ...]
    flags: Mapping[str, int | str]
    effect: str
    asked: Asked
    quality: str = UNCHANGED
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_room(self) -> bool:
        """Whether it has room even at the worst, without that `--fit` moves layers."""
        return has_room(self.asked, fitted_context(self.asked))


@dataclass(frozen=True, slots=True)
class _Flagged:
    """A start with the values of its flags, by their names."""

    asked: Asked
    values: Mapping[str, Any]

    def having(self, flags: Mapping[str, int | str]) -> _Flagged:
        """Return the start with other flags."""
        values = {**self.values, **flags}
        setting = read_setting(values, self.asked.gpus)
        return _Flagged(replace(self.asked, setting=setting), values)

    def on(self, gpu: Gpu, count: int) -> Asked:
        """Return the start on other GPUs."""
        free = self.asked.free_bytes if gpu is self.asked.gpu else None
        setting = read_setting(self.values, count)
        return replace(self.asked, gpu=gpu, gpus=count, setting=setting, free_bytes=free)


def find_ways(asked: Asked, values: Mapping[str, Any], others: tuple[Gpu, ...]) -> tuple[Way, ...]:
    """Return ways out, each of which has room even at the worst.

    Args:
        asked: a start that has none.
        values: of its flags, by their names.
        others: GPUs that may be taken instead.
    """
    start = _Flagged(asked, values)
    found = (*_of_cache(start), *_of_layers(start), *_of_gpus(start, others))
    return tuple(each for each in found if each.has_room)


def _of_cache(start: _Flagged) -> Iterator[Way]:
    if start.asked.setting.sequences > 1:
        flags = {"parallel": 1}
        yield Way(("max-num-seqs",), flags, "one request at a time", start.having(flags).asked)
    small, shorter = _with_small_types(start), _shorter(start)
    if small is not None and small.has_room:
        yield small
    if shorter is not None:
        yield shorter
    if small is None or small.has_room:
        return
    both = _shorter(start.having(small.flags))
    if both is None:
        return
    if shorter is None or both.asked.setting.context > shorter.asked.setting.context:
        yield replace(
            both, kinds=(*small.kinds, *both.kinds), flags={**small.flags, **both.flags},
            effect=f"{small.effect}; {both.effect}", quality=SLIGHTLY,
        )  # fmt: skip


def _shorter(start: _Flagged) -> Way | None:
    before = fitted_context(start.asked)
    length = round_length(longest(start.asked, surely=True))
    if not _LEAST <= length < before.per_sequence:
        return None
    total = length * before.streams
    flags = {"ctx-size": total}
    effect = f"a context of {total:,} tokens instead of {before.total:,}"
    return Way(("max-model-len",), flags, effect, start.having(flags).asked)


def _with_small_types(start: _Flagged) -> Way | None:
    setting = start.asked.setting
    if not setting.flash_attention:
        return None
    if min(element_bytes(setting.key_type), element_bytes(setting.value_type)) < 2:
        return None
    flags = {"cache-type-k": _SMALL_TYPE, "cache-type-v": _SMALL_TYPE}
    asked = start.having(flags).asked
    return Way(("kv-cache-dtype",), flags, "the cache in 8 bit", asked, SLIGHTLY)


def _of_layers(start: _Flagged) -> Iterator[Way]:
    """Yield what keeps experts in main memory, and layers too where that is not enough; the most of them stay on GPUs."""
    asked = start.asked
    found = None if asked.setting.moves_layers else spilled(asked, fitted_context(asked))
    if found is None or 2 * (kept := found.gpu_layers or 0) <= asked.units:
        return
    flags: dict[str, int | str] = {}
    moved, layers = [], len(asked.model.layers)
    if found.cpu_moe != asked.setting.cpu_moe:
        flags["n-cpu-moe"] = found.cpu_moe
        moved.append(f"the experts of {found.cpu_moe} of {layers} layers")
    if kept != asked.units:
        flags["gpu-layers"] = kept
        moved.append(f"{layers + 1 - kept} of {layers + 1} layers, the output being one,")
    if flags:
        effect = f"{' and '.join(moved)} in main memory, {_SLOWER}"
        yield Way(("gpu-layers",), flags, effect, start.having(flags).asked)


def _of_gpus(start: _Flagged, others: tuple[Gpu, ...]) -> Iterator[Way]:
    asked = start.asked
    if asked.setting.splits or asked.setting.only_gpu is not None:
        return
    count = asked.gpus * 2
    while count <= asked.gpu.max_count:
        options = {"gpu-count": str(count)}
        more = Way(("gpu-count",), {}, f"{count} GPUs", start.on(asked.gpu, count), options=options)
        if more.has_room:
            yield more
            break
        count *= 2
    yield from _on_others(start, others)


def _on_others(start: _Flagged, others: tuple[Gpu, ...]) -> Iterator[Way]:
    """Yield the cheapest other kinds of GPU with room, three at most."""
    told, own, count = 0, start.asked.gpu, start.asked.gpus
    for gpu in sorted(others, key=lambda gpu: (gpu.price(count) is None, gpu.price(count) or 0.0)):
        is_own = gpu.family == own.family if gpu.family else gpu.key == own.key
        if is_own or gpu.vendor != own.vendor or count > gpu.max_count or told == 3:
            continue
        options = {"gpu-type": gpu.family or gpu.key}
        other = Way(("gpu-type",), {}, gpu.name, start.on(gpu, count), options=options)
        if other.has_room:
            told += 1
            yield other
