"""Ways out of a start of llama.cpp that has no room, each planned for itself. Pure.

`preflight/gguf_engine.py` asks and turns them into flags to be pasted. The least intrusive comes first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from exo_inference.planner.changes import SLIGHTLY, UNCHANGED, round_length
from exo_inference.planner.gpu_catalog import Gpu
from exo_inference.planner.llama_cpp.cache import element_bytes
from exo_inference.planner.llama_cpp.room import (
    Asked,
    fitted_context,
    has_room,
    longest,
    need,
    spilled,
    tightest,
)

_LEAST = 1024
"""A shorter context is no way out."""
_SMALL_TYPE = "q8_0"


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
    flags: Mapping[str, str]
    effect: str
    asked: Asked
    quality: str = UNCHANGED
    options: Mapping[str, str] = field(default_factory=dict)


def find_ways(asked: Asked, others: tuple[Gpu, ...]) -> tuple[Way, ...]:
    """Return ways out, each of which has room even at the worst.

    Args:
        asked: a start that has none.
        others: GPUs that may be taken instead.
    """
    found = [*_of_cache(asked), *_of_layers(asked), *_of_gpus(asked, others)]
    return tuple(each for each in found if _has_room(each.asked))


def _has_room(asked: Asked) -> bool:
    setting = asked.setting
    context = fitted_context(asked)
    sizes = asked.sizes(context)
    if setting.gpu_layers is None and setting.fits:  # else layers are moved
        spare = asked.room - need(asked, sizes, tightest(asked, sizes))
        return spare >= max(setting.fit_targets)
    return has_room(asked, context)


def _of_cache(asked: Asked) -> Iterator[Way]:
    yield from _fewer_slots(asked)
    small = _with_small_types(asked)
    if small is not None and _has_room(small.asked):
        yield small
    shorter = _shorter(asked)
    if shorter is not None:
        yield shorter
    both = _shorter(small.asked) if small is not None and not _has_room(small.asked) else None
    if small is None or both is None:
        return
    if shorter is None or both.asked.setting.context > shorter.asked.setting.context:
        yield replace(
            both, kinds=(*small.kinds, *both.kinds), flags={**small.flags, **both.flags},
            effect=f"{small.effect}; {both.effect}", quality=SLIGHTLY,
        )  # fmt: skip


def _shorter(asked: Asked) -> Way | None:
    before = fitted_context(asked)
    length = round_length(longest(asked, surely=True))
    if not _LEAST <= length < before.per_sequence:
        return None
    total = length * before.streams
    changed = replace(asked, setting=replace(asked.setting, context=total))
    effect = f"a context of {total:,} tokens instead of {before.total:,}"
    flags = {"ctx-size": str(total)}
    return Way(("max-model-len",), flags, effect, changed)


def _with_small_types(asked: Asked) -> Way | None:
    setting = asked.setting
    if not setting.flash_attention:
        return None
    if min(element_bytes(setting.key_type), element_bytes(setting.value_type)) < 2:
        return None
    changed = replace(setting, key_type=_SMALL_TYPE, value_type=_SMALL_TYPE)
    flags = {"cache-type-k": _SMALL_TYPE, "cache-type-v": _SMALL_TYPE}
    return Way(
        ("kv-cache-dtype",), flags, "the cache in 8 bit", replace(asked, setting=changed), SLIGHTLY
    )


def _fewer_slots(asked: Asked) -> Iterator[Way]:
    setting = asked.setting
    if setting.sequences > 1:
        changed = replace(asked, setting=replace(setting, sequences=1, unified=False))
        yield Way(("max-num-seqs",), {"parallel": "1"}, "one request at a time", changed)


def _of_layers(asked: Asked) -> Iterator[Way]:
    if asked.setting.gpu_layers is None:
        return
    found = spilled(asked, fitted_context(asked), 0)
    if found is None:
        return
    changed, layers = replace(asked, setting=found), len(asked.model.layers)
    slower = "computed by the CPU, many times slower"
    if found.cpu_moe:
        effect = f"the experts of {found.cpu_moe} of {layers} layers in main memory, {slower}"
        yield Way(("gpu-layers",), {"n-cpu-moe": str(found.cpu_moe)}, effect, changed)
    elif 2 * (found.gpu_layers or 0) > layers:
        effect = f"{found.gpu_layers} of {layers + 1} layers on the GPU, the others in main memory, {slower}"
        yield Way(("gpu-layers",), {"gpu-layers": str(found.gpu_layers)}, effect, changed)


def _of_gpus(asked: Asked, others: tuple[Gpu, ...]) -> Iterator[Way]:
    if asked.setting.splits or asked.setting.only_gpu is not None:
        return
    count = asked.gpus * 2
    while count <= asked.gpu.max_count:
        more = _on(asked, asked.gpu, count, free_bytes=asked.free_bytes)
        if _has_room(more):
            yield Way(("gpu-count",), {}, f"{count} GPUs", more, options={"gpu-count": str(count)})
            break
        count *= 2
    yield from _on_others(asked, others)


def _on_others(asked: Asked, others: tuple[Gpu, ...]) -> Iterator[Way]:
    """Yield the cheapest other kinds of GPU with room, three at most."""
    told = 0
    priced = sorted(
        others, key=lambda gpu: (gpu.price(asked.gpus) is None, gpu.price(asked.gpus) or 0.0)
    )
    for gpu in priced:
        is_own = gpu.family == asked.gpu.family if gpu.family else gpu.key == asked.gpu.key
        if is_own or gpu.vendor != asked.gpu.vendor or asked.gpus > gpu.max_count or told == 3:
            continue
        other = _on(asked, gpu, asked.gpus)
        if _has_room(other):
            told += 1
            yield Way(
                ("gpu-type",), {}, gpu.name, other, options={"gpu-type": gpu.family or gpu.key}
            )


def _on(asked: Asked, gpu: Gpu, count: int, free_bytes: int | None = None) -> Asked:
    targets = asked.setting.fit_targets
    setting = replace(asked.setting, fit_targets=(targets * count)[:count])
    return replace(asked, gpu=gpu, gpus=count, setting=setting, free_bytes=free_bytes)
