"""What PyTorch's allocator takes from the GPU for weights, beside the weights themselves.

SGLang prints for weights by how much less of the GPU is free after they were loaded (srt/model_executor/model_runner.py,
`load_model`: `get_available_gpu_memory` before and after, which empties the allocator's cache first). So whole segments
count, not what the tensors in them take, as with vLLM. All sizes are bytes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import repeat

from exo_inference.planner.gpu_catalog import MIB
from exo_inference.planner.memory import (
    ExpertPadding,
    Ranks,
    fused_name,
    rank_bytes,
    stage_sizes,
    stage_weights,
)
from exo_inference.planner.model.architecture import Architecture
from exo_inference.planner.model.shapes import Layer

_ROUND = 512
_SMALL, _SMALL_SEGMENT = MIB, 2 * MIB
_LARGE, _MIDDLE_SEGMENT = 10 * MIB, 20 * MIB
_PAGE = 2 * MIB


def reserved_bytes(sizes: Iterable[float]) -> int:
    """Return the segments that hold tensors of these sizes, made in this order.

    As c10/cuda/CUDACachingAllocator.cpp has it: a tensor gets the smallest free block that holds it, of those of at most 1 MiB
    or of the larger ones, and else a segment: 2 MiB, 20 MiB, or from 10 MiB on its size in pages of 2 MiB. What is left of
    a block is split off, of larger ones where it is more than 1 MiB.
    """
    free: dict[bool, list[int]] = {True: [], False: []}
    total = 0
    for each in sizes:
        size = -(-int(each) // _ROUND) * _ROUND
        if not size:
            continue
        is_small = size <= _SMALL
        blocks = free[is_small]
        index = bisect_left(blocks, size)
        if index < len(blocks):
            block = blocks.pop(index)
        else:
            block = _segment(size)
            total += block
        rest = block - size
        if rest >= _ROUND if is_small else rest > _SMALL:
            insort(blocks, rest)
    return total


def _segment(size: int) -> int:
    if size <= _SMALL:
        return _SMALL_SEGMENT
    return _MIDDLE_SEGMENT if size < _LARGE else -(-size // _PAGE) * _PAGE


@lru_cache(maxsize=1024)
def loading_rest(
    model: Architecture,
    ranks: Ranks,
    stage: int,
    dtype_bytes: int,
    padding: ExpertPadding | None,
    rotary: int,
) -> int:
    """Return what the segments of a stage take beside its weights and its rotary tables."""
    sizes = list(_tensors(model, ranks, stage, dtype_bytes, padding))
    sizes.insert(1, rotary)
    return reserved_bytes(sizes) - int(sum(sizes))


def _tensors(
    model: Architecture, ranks: Ranks, stage: int, dtype_bytes: int, padding: ExpertPadding | None
) -> Iterator[float]:
    """Yield the sizes of a stage's tensors in the order they are made: those before the layers, layers, those after."""
    counts = stage_sizes(len(model.layers), ranks.pipeline)
    start = sum(counts[:stage])
    _, outer = stage_weights(model, ranks, stage)
    after = [weight for weight in outer if weight.part in ("lm_head", "norm")]
    for weight in outer:
        if weight not in after and weight.copies:
            size = rank_bytes(weight, ranks, dtype_bytes) / weight.copies
            yield from repeat(size, weight.copies)
    for layer in model.layers[start : start + counts[stage]]:
        yield from _layer_tensors(layer, ranks, dtype_bytes, padding)
    yield from (rank_bytes(weight, ranks, dtype_bytes) for weight in after)


@lru_cache(maxsize=1024)
def _layer_tensors(
    layer: Layer, ranks: Ranks, dtype_bytes: int, padding: ExpertPadding | None
) -> tuple[float, ...]:
    """Return the sizes of a layer's tensors as they are fused; scales are tensors of their own."""
    tensors: dict[tuple[str, bool], float] = {}
    for weight in layer.weights:
        key, size = fused_name(weight), rank_bytes(weight, ranks, dtype_bytes, padding)
        numbers = size
        if weight.format is not None:
            plain = replace(weight, format=None)
            numbers = rank_bytes(plain, ranks, 1, padding) * int(weight.format.bits) / 8
        for part, is_scale in ((numbers, False), (size - numbers, True)):
            tensors[key, is_scale] = tensors.get((key, is_scale), 0.0) + part
    return tuple(tensors.values())
