"""How long a device stands idle between steps, scheduled one after the other and ahead.

The device is a double: a stream that takes a fixed time per step and computes nothing. Everything else is
the engine's own: scheduler, block manager, frames, and a runner's inputs. Idle is the time between the end
of a step on the device and the moment at which the next one was submitted, as a share of the whole. What the
host works per step (`host_ms`, the processor's time) says how much of that is its own fault on a busy machine.

    python benchmarks/async_scheduling.py --device-ms 5 --sequences 32
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections import deque

import numpy as np
from exo_engine.core.batch import Batch
from exo_engine.core.block_manager import BlockManager
from exo_engine.core.pipeline import Pipeline
from exo_engine.core.request import EngineRequest
from exo_engine.core.scheduling.scheduler import Scheduler
from exo_engine.core.scheduling.token_budget import SchedulerLimits
from exo_engine.core.step import SequenceResult, StepFrame, StepResult
from exo_engine.sampling_params import SamplingParams

_BLOCK_SIZE = 16
_PROMPT = 100


class DoubleDevice:
    """An executor whose device needs `seconds` for each step, in order, whatever is in it."""

    def __init__(self, num_slots: int, seconds: float) -> None:
        self._batch = Batch(num_slots, num_groups=1, block_size=_BLOCK_SIZE)
        self._seconds = seconds
        self._busy_until = 0.0
        self._begun: deque[tuple[float, StepFrame, np.ndarray, np.ndarray]] = deque()
        self.idle: list[float] = []

    def submit(self, frame: StepFrame) -> None:
        """Prepare the step, then hand it to the device."""
        self._batch.apply(frame)
        inputs = self._batch.inputs(frame)
        slots = frame.slots[frame.num_samples > 0]
        self._batch.expect(slots.astype(np.int64))
        places = self._batch.num_tokens[slots] - 1
        now = time.perf_counter()
        if self._busy_until:
            self.idle.append(max(0.0, now - self._busy_until))
        self._busy_until = max(now, self._busy_until) + self._seconds
        del inputs
        self._begun.append((self._busy_until, frame, places, self._batch.epochs[frame.slots]))

    def result(self) -> StepResult:
        """Wait for the device and make up tokens."""
        end, frame, places, epochs = self._begun.popleft()
        while (left := end - time.perf_counter()) > 0:
            time.sleep(left)
        told = iter(places.tolist())
        results = []
        for slot, epoch, samples in zip(
            frame.slots.tolist(), epochs.tolist(), frame.num_samples.tolist(), strict=True
        ):
            if samples:
                self._batch.fill(slot, epoch, next(told), 1)
            results.append(SequenceResult(slot, epoch, (1,) if samples else ()))
        return StepResult(tuple(results))

    def close(self) -> None:
        """Nothing is held."""


def measure(num_seqs: int, num_steps: int, device_seconds: float, depth: int) -> dict[str, float]:
    """Answer `num_seqs` requests; return the median step and the device's idle share, in percent."""
    length = _PROMPT + num_steps
    blocks = BlockManager(
        num_seqs * (length // _BLOCK_SIZE + 2), _BLOCK_SIZE, enable_prefix_caching=True
    )
    limits = SchedulerLimits(num_seqs, num_seqs * _PROMPT, length + 1)
    device = DoubleDevice(num_seqs, device_seconds)
    pipeline = Pipeline(Scheduler(limits, blocks), device, depth)
    for index in range(num_seqs):
        params = SamplingParams(temperature=0.0, max_tokens=num_steps, ignore_eos=True)
        prompt = tuple((index + each) % 1000 for each in range(_PROMPT))
        pipeline.scheduler.add(EngineRequest(str(index), prompt, params))
    pipeline.step()
    device.idle.clear()
    steps = []
    begin = before = time.perf_counter()
    worked = time.process_time()
    while pipeline.has_unfinished():
        pipeline.step()
        now = time.perf_counter()
        steps.append(now - before)
        before = now
    worked = time.process_time() - worked
    return {
        "host_ms": round(1000 * worked / len(steps), 3),
        "idle_percent": round(100 * sum(device.idle) / (time.perf_counter() - begin), 2),
        "median_idle_percent": round(
            100 * statistics.median(device.idle) / statistics.median(steps), 2
        ),
        "median_step_ms": round(1000 * statistics.median(steps), 3),
    }


def main() -> None:
    """Print both, in turns."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--device-ms", type=float, default=5.0)
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    rows: dict[str, list[dict[str, float]]] = {"one after the other": [], "ahead": []}
    for _ in range(arguments.rounds):
        for depth, found in zip((1, 2), rows.values(), strict=True):
            seconds = arguments.device_ms / 1000
            found.append(measure(arguments.sequences, arguments.steps, seconds, depth))
    print(
        json.dumps({"load_average": os.getloadavg()[0], **vars(arguments), "rows": rows}, indent=2)
    )


if __name__ == "__main__":
    main()
