"""By what prompts are computed, and from how many tokens on: measured at a start, on the device itself.

Used for `--attention-backend auto` on a GPU. The kernels that compute every step stay unless another way (`_WAYS`) is
faster; of those that are, the fastest at the longest length is taken, from the shortest length on from which it was
faster at every length. A way that fails, or whose numbers differ from the kernels' by more than `TOLERANCE`, is left out
and logged by its name: both are tried in a step of random pages first, and at each length.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from exo_engine.attention.gathering import MAX_GATHERED, Gathering, attend_by_torch
from exo_engine.attention.layout import Ints, StepArrays, make_inputs
from exo_engine.attention.paged_flash import PagedFlash
from exo_engine.attention.prompts import PromptWay
from exo_engine.attention.triton import TritonAttention

logger = logging.getLogger(__name__)

LENGTHS = (512, 2048, 8192)
TOLERANCE = 2e-2
"""How far a number of a head may be from the kernels', as a share of that head's largest one."""
_MOST_CHECKED = 1024
"""Tokens of a sequence in the step of random pages; no fewer than a block's."""
_NO_NUMBER = 255
"""A byte that in every type of the cache, or in its scales, makes what is no number."""
_TIMES = 3

Seconds = Callable[[Callable[[], object]], float]
"""Returns how long some work takes on the device."""


def choose_for_prompts(backend: TritonAttention, seconds: Seconds) -> tuple[str, int] | None:
    """Have a backend compute prompts in the way that is fastest, from that length on from which it is.

    Args:
        backend: over a cache that nobody uses yet, in which the prompts are written.
        seconds: takes the time.

    Returns:
        The name of the way and the length; None: the kernels compute all prompts.
    """
    index, ways = _possible_ways(backend)
    ways = _right_ways(backend, index, ways)
    room = min(backend.num_blocks * backend.block_size, MAX_GATHERED)
    chosen: dict[str, int] = {}
    at_longest: dict[str, float] = {}
    for length in reversed([each for each in LENGTHS if each <= room]):
        if not ways:
            break
        in_place, taken = _measure(backend, index, ways, length, seconds)
        for way in ways:
            if way.name not in taken:  # it failed
                chosen.pop(way.name, None)
            elif taken[way.name] < in_place:
                chosen[way.name] = length
                at_longest.setdefault(way.name, taken[way.name])
        ways = [way for way in ways if chosen.get(way.name) == length]
    best = min(chosen, key=lambda name: at_longest[name], default=None)
    if best is None:
        backend.compute_prompts(None)
        return None
    way = next(way for way in _WAYS if way.name == best)
    backend.compute_prompts(way, least_tokens=chosen[best])
    return best, chosen[best]


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


_WAYS: tuple[PromptWay, ...] = (Gathering(attend_by_torch), PagedFlash())


def _possible_ways(backend: TritonAttention) -> tuple[int, list[PromptWay]]:
    """Return a layer with keys of its own, and the ways in which it can be computed."""
    own = [index for index, layer in backend.layers.items() if layer.kv_layer is None]
    found: dict[int, list[PromptWay]] = {
        index: [way for way in _WAYS if backend.why_not(index, way) is None] for index in own
    }
    index = next((index for index in own if found[index]), own[0])
    for way in _WAYS:
        if way in found[index]:
            backend.compute_prompts(way)  # so that a start takes memory for it, whatever is chosen
        else:
            problem = backend.why_not(index, way)
            logger.info("prompts are not computed %s: %s", way.name, problem)
    return index, found[index]


@torch.inference_mode()
def _right_ways(backend: TritonAttention, index: int, ways: Sequence[PromptWay]) -> list[PromptWay]:
    """Compute a single token, two tokens, a chunk and a prompt in random pages; return who gives the kernels' numbers."""
    each = min(backend.num_blocks // 4, -(-_MOST_CHECKED // backend.block_size))
    most = each * backend.block_size - 1
    if not ways or most < 4:
        return []
    pages = np.random.default_rng(0).permutation(backend.num_blocks)[: 4 * each].astype(np.int32)
    table = pages.reshape(4, each)
    contexts, news = [most - 1, most, most // 2 + 2, most], [1, 2, most // 2, most]
    backend.fill_blocks(pages.tolist(), _NO_NUMBER)
    try:
        _Step(backend, index, contexts, contexts, table).attend(None)  # writes what came before
        step = _Step(backend, index, contexts, news, table)
        expected = step.attend(None)
        return [way for way in ways if _is_same(step, way, expected)]
    finally:
        backend.fill_blocks(pages.tolist(), 0)


@torch.inference_mode()
def _measure(
    backend: TritonAttention,
    index: int,
    ways: Sequence[PromptWay],
    length: int,
    seconds: Seconds,
) -> tuple[float, dict[str, float]]:
    """Return how long one prompt takes by the kernels, and in each way that gives the same."""
    table = np.arange(-(-length // backend.block_size), dtype=np.int32)[None]
    step = _Step(backend, index, [length], [length], table)
    expected = step.attend(None)
    in_place = seconds(step.again)
    taken = {}
    for way in ways:
        if _is_same(step, way, expected):
            taken[way.name] = seconds(step.again)
    logger.info(
        "a prompt of %d tokens: %.0f us of attention per layer in place%s",
        length,
        in_place * 1e6,
        "".join(f", {each * 1e6:.0f} us {name}" for name, each in taken.items()),
    )
    return in_place, taken


class _Step:
    """A step of random heads, which may be computed in several ways.

    Args:
        backend: to compute it by.
        index: of the layer.
        contexts: of each sequence, the tokens up to its last one.
        news: of each sequence, its last tokens, which are in the step; single tokens come first.
        table: (S, M), the blocks of each sequence.
    """

    def __init__(
        self,
        backend: TritonAttention,
        index: int,
        contexts: Sequence[int],
        news: Sequence[int],
        table: Ints,
    ) -> None:
        starts = np.cumsum([0, *news], dtype=np.int32)
        lengths = np.array(contexts, dtype=np.int32)
        arrays = StepArrays(starts, lengths, (table,) * backend.num_groups)
        count = int(starts[-1])
        self._layout = make_inputs(
            np.zeros(count, dtype=np.int32),
            arrays,
            block_size=backend.block_size,
            device=backend.device,
        ).layout
        layer = backend.layers[index]
        self._heads = [
            torch.randn(count, each, layer.head_dim, dtype=backend.dtype, device=backend.device)
            for each in (layer.num_heads, layer.num_kv_heads, layer.num_kv_heads)
        ]
        self._backend, self._index = backend, index

    def attend(self, way: PromptWay | None) -> Tensor:
        """Return what the queries see, (T, H, D), computed in a way; None: by the kernels."""
        self._backend.compute_prompts(way)
        self._backend.begin(self._layout)
        return self.again()

    def again(self) -> Tensor:
        """Return the same in the same way."""
        queries, keys, values = self._heads
        return self._backend.attend(self._index, queries, keys, values)


def _is_same(step: _Step, way: PromptWay, expected: Tensor) -> bool:
    """Whether a way gives what is expected of a step; where it does not, or fails, that is logged."""
    try:
        found = step.attend(way)
    except (RuntimeError, TypeError, ValueError) as exc:  # FlashAttention is not for every GPU
        logger.warning("prompts are not computed %s, which failed: %s", way.name, exc)
        return False
    largest = expected.abs().amax(dim=-1, keepdim=True)
    is_same = bool(((found - expected).abs() <= TOLERANCE * largest).all())
    if not is_same:
        logger.warning("prompts are not computed %s, which gives other numbers", way.name)
    return is_same
