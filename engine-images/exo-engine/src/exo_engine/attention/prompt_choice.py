"""From how many tokens on prompts are gathered and given to PyTorch: measured at a start, on the device itself.

Used for `--attention-backend auto` on a GPU. Both ways compute the same prompts over the empty cache; gathering is taken
from the shortest length on from which it was faster at every length, and only where its results are the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import torch

from exo_engine.attention.gathering import MAX_GATHERED, attend_by_torch
from exo_engine.attention.layout import StepArrays, make_inputs
from exo_engine.attention.triton import TritonAttention

logger = logging.getLogger(__name__)

LENGTHS = (512, 2048, 8192)
_TOLERANCE = 2e-2
_TIMES = 3

Seconds = Callable[[Callable[[], object]], float]
"""Returns how long some work takes on the device."""


def choose_for_prompts(backend: TritonAttention, seconds: Seconds) -> int | None:
    """Have a backend gather prompts from that length on from which it is faster; return the length.

    Args:
        backend: over a cache that nobody uses yet, in which the prompts are written.
        seconds: takes the time.
    """
    chosen: int | None = None
    index = next((i for i in backend.layers if backend.can_gather(i)), None)
    lengths = [length for length in LENGTHS if length <= min(backend.num_tokens, MAX_GATHERED)]
    for length in reversed(lengths if index is not None else []):
        assert index is not None, "there is a layer"
        try:
            is_faster = _is_faster(backend, index, length, seconds)
        except (RuntimeError, NotImplementedError) as exc:  # FlashAttention is not for every GPU
            logger.info("prompts are not gathered: PyTorch's attention failed: %s", exc)
            chosen = None
            break
        if not is_faster:
            break
        chosen = length
    backend.gather_prompts(None if chosen is None else attend_by_torch, least_tokens=chosen or 0)
    return chosen


def gpu_seconds(work: Callable[[], object]) -> float:
    """Return how long some work takes on the current GPU."""
    work()  # compiles
    begun = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    ended = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    begun.record()
    for _ in range(_TIMES):
        work()
    ended.record()
    ended.synchronize()
    return float(begun.elapsed_time(ended)) / 1000 / _TIMES


@torch.inference_mode()
def _is_faster(backend: TritonAttention, index: int, length: int, seconds: Seconds) -> bool:
    """Compute one prompt in both ways; return whether gathering is faster and gives the same."""
    layer, size = backend.layers[index], backend.block_size
    table = np.arange(-(-length // size), dtype=np.int32)[None]
    arrays = StepArrays(
        np.array([0, length], dtype=np.int32),
        np.array([length], dtype=np.int32),
        (table,) * backend.num_groups,
    )
    tokens = np.zeros(length, dtype=np.int32)
    inputs = make_inputs(tokens, arrays, block_size=size, device=backend.device)
    heads = (layer.num_heads, layer.num_kv_heads, layer.num_kv_heads)
    queries, keys, values = (
        torch.randn(length, count, layer.head_dim, dtype=backend.dtype, device=backend.device)
        for count in heads
    )
    found, taken = [], []
    for attend in (None, attend_by_torch):
        backend.gather_prompts(attend)
        backend.begin(inputs.layout)
        found.append(backend.attend(index, queries, keys, values))
        taken.append(seconds(lambda: backend.attend(index, queries, keys, values)))
    one, other = (each.float() for each in found)
    is_same = torch.allclose(one, other, rtol=_TOLERANCE, atol=_TOLERANCE)
    logger.info(
        "a prompt of %d tokens: %.0f us of attention per layer in place, %.0f us gathered%s",
        length,
        taken[0] * 1e6,
        taken[1] * 1e6,
        "" if is_same else ", which gives other numbers",
    )
    return is_same and taken[1] < taken[0]
