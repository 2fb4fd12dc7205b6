"""How long a device stands idle between the kernels of a step.

On a GPU the profiler says when each kernel and copy ran. A CPU computes while it is told, so there the time in which
the runner is told a step counts as the device's: a double, which tries the arithmetic and measures no GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch

Span = tuple[float, float]


def idle_share(spans: Iterable[Span]) -> float:
    """Return which part of the time from the first begin to the last end is in no span; they may overlap."""
    ordered = sorted(spans)
    begin = reached = ordered[0][0]
    idle = 0.0
    for start, end in ordered:
        idle += max(0.0, start - reached)
        reached = max(reached, end)
    return idle / (reached - begin) if reached > begin else 0.0


def busy_spans(llm: Any, work: Callable[[], object], *, is_cuda: bool) -> list[Span]:
    """Return when the device computed while `work` ran; of one clock, in microseconds on a GPU, else in seconds."""
    return _of_kernels(work) if is_cuda else _of_steps(llm, work)


def _of_kernels(work: Callable[[], object]) -> list[Span]:
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        work()
        torch.cuda.synchronize()
    cuda = torch.autograd.DeviceType.CUDA
    ranges = [each.time_range for each in profile.events() if each.device_type == cuda]
    return [(each.start, each.end) for each in ranges]


def _of_steps(llm: Any, work: Callable[[], object]) -> list[Span]:
    runner, spans = llm.core.executor.runner, []
    dispatch = runner.dispatch

    def timed(frame: Any) -> Any:
        begun = time.perf_counter()
        pending = dispatch(frame)
        spans.append((begun, time.perf_counter()))
        return pending

    runner.dispatch = timed
    try:
        work()
    finally:
        runner.dispatch = dispatch
    return spans
