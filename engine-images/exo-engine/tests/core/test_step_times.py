"""Answers in progress and a long prompt share the time, on a device whose steps take a stated time."""

from __future__ import annotations

import math
import random
import statistics
from collections import deque
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from exo_engine.clock import Clock
from exo_engine.core.batch import Batch
from exo_engine.core.block_manager import BlockManager
from exo_engine.core.pipeline import Pipeline
from exo_engine.core.request import EngineRequest
from exo_engine.core.scheduling.scheduler import Scheduler
from exo_engine.core.scheduling.step_times import StepTimes
from exo_engine.core.scheduling.token_budget import SchedulerLimits
from exo_engine.core.step import SequenceResult, StepFrame, StepResult
from exo_engine.sampling_params import SamplingParams


class VirtualClock(Clock):
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


@dataclass(frozen=True)
class Cost:
    """What a step takes, in seconds."""

    step: float = 0.03
    token: float = 0.0015
    pair: float = 0.0
    """Of a token with one that it looks back at."""
    hiccup_every: int = 10**9
    hiccup: float = 0.0
    both: float = 0.0
    """Of a step with single tokens and a chunk."""
    noise: float = 0.0
    """Standard deviation of the logarithm of a step's time."""

    def of(self, number: int, starts: np.ndarray, lengths: np.ndarray) -> float:
        pairs = (lengths * (starts + (lengths + 1) / 2)).sum()
        hiccup = self.hiccup if number % self.hiccup_every == 0 else 0.0
        both = self.both if 1 < lengths.max() < lengths.sum() else 0.0
        chance = random.Random(number).gauss(0.0, self.noise)
        plain = self.step + self.token * lengths.sum() + self.pair * pairs + both
        return float(math.exp(chance) * plain + hiccup)


class TimedDevice:
    """Makes tokens up, and has the clock go on as the work says."""

    def __init__(self, clock: VirtualClock, cost: Cost, num_slots: int) -> None:
        self._clock, self._cost = clock, cost
        self._batch = Batch(num_slots, num_groups=1, block_size=16)
        self._results: deque[StepResult] = deque()
        self.sizes: list[list[int]] = []

    def submit(self, frame: StepFrame) -> None:
        self._batch.apply(frame)
        self.sizes.append(frame.num_tokens.tolist())
        self._clock.sleep(self._cost.of(len(self.sizes), frame.starts, frame.num_tokens))
        epochs = self._batch.epochs[frame.slots].tolist()
        self._results.append(
            StepResult(
                tuple(
                    SequenceResult(slot, epoch, (1,) if samples else ())
                    for slot, epoch, samples in zip(
                        frame.slots.tolist(), epochs, frame.num_samples.tolist(), strict=True
                    )
                )
            )
        )

    def result(self) -> StepResult:
        return self._results.popleft()

    def close(self) -> None:
        self._results.clear()


class Run:
    """An engine on such a device; `tell` runs it and writes down when each request got tokens."""

    def __init__(self, cost: Cost = Cost(), *, budget: int = 1024, depth: int = 1) -> None:
        self.clock = VirtualClock()
        self.device = TimedDevice(self.clock, cost, 64)
        blocks = BlockManager(8192, 16, enable_prefix_caching=True)
        scheduler = Scheduler(SchedulerLimits(64, budget, 8192), blocks, StepTimes())
        self.pipeline = Pipeline(scheduler, self.device, depth, self.clock)
        self.moments: dict[str, list[float]] = {}

    def add(self, name: str, num_prompt: int, max_tokens: int) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        first = sum(map(ord, name))
        prompt = tuple((first + index) % 997 for index in range(num_prompt))
        self.moments[name] = [self.clock.now()]
        self.pipeline.scheduler.add(EngineRequest(name, prompt, params))

    def step(self) -> None:
        for output in self.pipeline.step():
            self.moments[output.request_id] += [self.clock.now()] * len(output.token_ids)

    def step_until(self, name: str, num_tokens: int) -> None:
        while len(self.moments[name]) <= num_tokens:
            self.step()

    def gaps(self, names: list[str], begin: float, end: float) -> list[float]:
        return [
            late - early
            for name in names
            for early, late in pairwise(self.moments[name][1:])
            if begin <= early and late <= end
        ]


def first_token_alone(cost: Cost, num_prompt: int) -> float:
    run = Run(cost)
    run.add("long", num_prompt, 1)
    run.step_until("long", 1)
    return run.clock.now()


COSTS = {
    "small model": Cost(),
    "cost grows with context": Cost(pair=1e-6),
    "large model": Cost(step=0.5, token=0.02),
    "135M in bfloat16": Cost(step=0.0275, token=0.0019, pair=0.8e-6, both=0.013, noise=0.06),
    "hiccups": Cost(hiccup_every=17, hiccup=0.05),
    "weights hardly matter": Cost(step=0.001, token=0.005),
}


@pytest.mark.parametrize("cost", COSTS.values(), ids=COSTS)
@pytest.mark.parametrize("warm", [1, 40])
def test_a_long_prompt_and_others_beside_it_keep_their_shares(cost, warm):
    run = Run(cost)
    others = [f"other {index}" for index in range(8)]
    for name in others:
        run.add(name, 50, 2000)
    run.step_until(others[-1], warm)
    alone = statistics.median(run.gaps(others, 0.0, run.clock.now()) or [0.0])
    if not alone:
        alone = cost.of(1, np.full(8, 50), np.ones(8))
    begin = run.clock.now()
    run.add("long", 2000, 2)
    run.step_until("long", 1)
    waited = run.clock.now() - begin
    gaps = sorted(run.gaps(others, begin, run.clock.now()))
    assert statistics.median(gaps) <= 2 * alone
    assert gaps[int(0.99 * len(gaps))] <= 3 * alone
    assert waited <= 3 * first_token_alone(cost, 2000)


def beside(cost: Cost, *prompts: int) -> tuple[list[float], list[float]]:
    """Return what prompts that come at once wait for, and the gaps of eight others meanwhile in steps without prompts."""
    run = Run(cost)
    others = [f"other {index}" for index in range(8)]
    for name in others:
        run.add(name, 50, 4000)
    run.step_until(others[-1], 80)
    alone = statistics.median(run.gaps(others[:1], 0.0, run.clock.now())[-40:])
    run.add("first", 300, 1)  # so that a token's time is known
    run.step_until("first", 1)
    begin, names = run.clock.now(), [f"prompt {index}" for index in range(len(prompts))]
    for name, length in zip(names, prompts, strict=True):
        run.add(name, length, 1)
    for name in names:
        run.step_until(name, 1)
    waits = [run.moments[name][1] - begin for name in names]
    return waits, [gap / alone for gap in run.gaps(others, begin, run.clock.now())]


def test_a_short_prompt_is_computed_in_a_few_longer_steps():
    cost = Cost(step=0.03, token=0.0005)
    (wait,), gaps = beside(cost, 300)
    assert wait < 2 * first_token_alone(cost, 300)
    assert max(gaps) <= 5.1
    assert len(gaps) <= 8 * 3


def test_prompts_that_wait_for_each_other_get_more_of_the_time():
    """Four together take three times as long as one; and nobody's next token takes more than five times as long."""
    cost = Cost(step=0.03, token=0.0015)
    (one,), usual = beside(cost, 1500)
    waits, gaps = beside(cost, *[1500] * 4)
    assert statistics.median(usual) <= 2
    assert max(gaps) <= 5.1
    assert max(waits) < 3.1 * one


def test_the_last_of_them_is_computed_as_one_is():
    _, gaps = beside(Cost(step=0.03, token=0.0015), 200, 1500)
    assert statistics.median(gaps) <= 2


def test_a_prompt_alone_takes_the_whole_budget():
    run = Run()
    run.add("long", 2000, 1)
    run.step_until("long", 1)
    assert run.device.sizes == [[1024], [976]]


def test_budget_that_was_set_is_never_passed():
    run = Run(Cost(step=10.0, token=0.001), budget=20)
    for index in range(8):
        run.add(str(index), 2, 300)
    run.step_until("7", 5)
    run.add("long", 2000, 2)
    run.step_until("long", 1)
    assert max(map(sum, run.device.sizes)) == 20


def test_short_steps_are_not_made_shorter():
    """Steps of a few milliseconds: nobody sees a difference, and the prompt need not wait."""
    run = Run(Cost(step=0.001, token=0.00001))
    run.add("other", 500, 300)
    run.step_until("other", 5)
    run.add("long", 1000, 1)
    run.step_until("long", 1)
    assert run.device.sizes[-1] == [1, 1000]


def test_a_step_without_prompts_is_measured_first_and_again_and_again():
    run = Run(Cost(step=0.05))
    run.add("other", 100, 2000)
    run.step()
    run.add("long", 6000, 2)
    before = len(run.device.sizes)
    run.step_until("long", 1)
    sizes = run.device.sizes[before:]
    assert sizes[0] == [1]
    without = [number for number, each in enumerate(sizes) if each == [1]]
    assert 2 <= len(without) <= 2 + len(sizes) // 60
    assert max(late - early for early, late in pairwise(without)) <= 65


@pytest.mark.parametrize("depth", [1, 2])
def test_many_prompts_at_once_all_end(depth):
    run = Run(Cost(pair=1e-7), depth=depth)
    names = [f"{index:02d}" for index in range(80)]
    for index, name in enumerate(names):
        run.add(name, 1 + 37 * index % 400, 1 + index % 9)
    for _ in range(20_000):
        if not run.pipeline.has_unfinished():
            break
        run.step()
    assert all(len(run.moments[name]) == 2 + int(name) % 9 for name in names)


def test_times_that_drown_in_noise_do_not_make_a_step_of_any_length():
    times = StepTimes()
    times.take(0, 100, 0.1)
    times.take(8, 0, 0.04)
    most = [times.most_prompt_tokens(8)]
    for _ in range(4):
        times.take(8, most[-1], 0.04)  # as if prompts took nothing
        most.append(times.most_prompt_tokens(8))
    assert most == [most[0] * 2**number for number in range(5)]
    times.take(8, most[-1], 4.0)
    assert times.most_prompt_tokens(8) < most[0]


def test_measurement_of_other_numbers_of_sequences_does_not_count():
    times = StepTimes()
    times.take(0, 100, 0.1)
    times.take(8, 0, 0.04)
    assert [times.most_prompt_tokens(number) > 0 for number in (1, 6, 7, 8, 10, 11, 64)] == [
        *(False, False, True, True, True, False, False)
    ]
