"""Steps last as long as the figures say, and never less."""

from __future__ import annotations

import logging
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from exo_engine import pulse
from exo_engine.core.step import AddedSequence, StepFrame, StepResult, ints
from exo_engine.sampling_params import SamplingParams
from exo_engine.simulation import parse_simulation
from exo_engine.simulation.pace import Pace, PacedRunner


def step_of(*parts: tuple[int, int, int], added: tuple[int, ...] = ()) -> StepFrame:
    """A step of parts (slot, start, end), of which those in `added` are new to their slots."""
    slots, starts, ends = zip(*parts, strict=True)
    return StepFrame(
        slots=ints(slots),
        starts=ints(starts),
        num_tokens=ints(ends) - ints(starts),
        num_samples=np.ones(len(parts), dtype=np.uint8),
        added=tuple(
            AddedSequence(slot, 0, ints([0] * end), end, SamplingParams(), 0)
            for slot, _, end in parts
            if slot in added
        ),
    )


def decodes(count: int) -> StepFrame:
    return step_of(*((slot, 99, 100) for slot in range(count)))


class Computer:
    """A runner that takes a fixed time and answers nothing."""

    def __init__(self, clock, seconds):
        self.clock, self.seconds = clock, seconds

    def dispatch(self, frame):
        self.clock.time += self.seconds
        return StepResult


@pytest.fixture
def simulation(document):
    return parse_simulation(document)


@pytest.mark.parametrize(
    ("count", "seconds"), [(1, 0.02), (2, 0.0205), (33, 0.036), (65, 0.052), (129, 0.084)]
)
def test_step_without_prompts_lasts_by_its_batch(simulation, count, seconds):
    assert Pace(simulation).seconds(decodes(count)) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("start", "end", "seconds"),
    [
        (0, 2, 0.02),  # the weights are read all the same
        (0, 500, 0.1),
        (0, 1000, 0.2),
        (0, 5000, 1.2),
        (1000, 9000, 2.0),
        (9000, 17000, 2.0),
        (900, 1000, 0.02),
    ],
)
def test_prompt_lasts_by_its_length_and_what_is_left_of_it(simulation, start, end, seconds):
    assert Pace(simulation).seconds(step_of((0, start, end))) == pytest.approx(seconds)


def test_chunks_and_cached_parts_of_a_prompt_add_up_to_the_whole(simulation):
    pace = Pace(simulation)
    chunks = sum(pace.seconds(step_of((0, at, at + 2000))) for at in range(0, 8000, 2000))
    assert chunks == pytest.approx(pace.seconds(step_of((0, 0, 8000))))


def test_prompts_come_on_top_of_answers_in_progress(simulation):
    mixed = step_of((0, 0, 1000), (1, 0, 500), (2, 99, 100), (3, 99, 100))
    assert Pace(simulation).seconds(mixed) == pytest.approx(0.2 + 0.1 + 0.0205)


def test_rate_is_the_same_for_every_length(simulation):
    pace = Pace(replace(simulation, prompt_seconds=(), prefill_seconds_per_token=1e-3))
    for length in (100, 10_000):
        assert pace.seconds(step_of((0, 0, length))) == pytest.approx(length / 1000)


def test_step_is_held_until_its_time_has_passed(simulation, clock):
    runner = PacedRunner(Computer(clock, 0.005), Pace(simulation), clock)
    for count in range(1, 4):
        runner.dispatch(decodes(1))
        assert clock.time == pytest.approx(100 + 0.02 * count)


def test_gpus_get_on_within_a_long_step(simulation, clock, monkeypatch):
    """Its wait is no hang: the server learns of progress every second."""
    moments = []
    monkeypatch.setattr(pulse.OWN, "beat", lambda: moments.append(clock.time))
    PacedRunner(Computer(clock, 0.0), Pace(simulation), clock).dispatch(step_of((0, 0, 100_000)))
    assert moments[-1] > 105
    assert max(after - before for before, after in pairwise([100.0, *moments])) <= 1.0 + 1e-9


def test_what_passes_between_two_steps_of_a_sequence_counts(simulation, clock):
    runner = PacedRunner(Computer(clock, 0.005), Pace(simulation), clock)
    runner.dispatch(decodes(1))
    clock.time += 0.003
    runner.dispatch(decodes(1))
    assert clock.time == pytest.approx(100.04)
    clock.time += 10.0
    runner.dispatch(step_of((0, 0, 500), added=(0,)))
    assert clock.time == pytest.approx(110.04 + 0.1)


def test_slower_machine_takes_its_time_and_says_so_once(simulation, clock, caplog):
    runner = PacedRunner(Computer(clock, 0.5), Pace(simulation), clock)
    with caplog.at_level(logging.WARNING):
        runner.dispatch(decodes(1))
        runner.dispatch(decodes(1))
    assert clock.time == pytest.approx(101.0)
    (record,) = caplog.records
    assert "a step of 1 sequences and 1 tokens took 500.0 ms instead of 20.0" in record.getMessage()
