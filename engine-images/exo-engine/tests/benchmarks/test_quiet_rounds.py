"""Rounds that others disturbed do not count, and bounds decide how a benchmark ends."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import embeddings
import quiet_rounds
import structured_output
from quiet_rounds import EXIT_BUSY, LARGEST_SHARE, BusyMachine, QuietRounds, add_arguments


@pytest.fixture
def shares(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What others use of a core during each round to come, on a machine whose load is 1."""
    coming: list[float] = []
    monkeypatch.setattr(os, "getloadavg", lambda: (1.0, 1.0, 1.0))
    monkeypatch.setattr(
        quiet_rounds, "_with_share_of_others", lambda run: (run(), coming.pop(0) if coming else 0.0)
    )
    return coming


def numbered() -> Iterator[int]:
    return iter(range(100))


def test_a_disturbed_round_is_made_again(shares: list[float]) -> None:
    quiet, numbers = QuietRounds(2.5, attempts=3), numbered()
    shares += [0.081, 2.0, LARGEST_SHARE, 0.0]
    assert [quiet.measure(lambda: next(numbers)) for _ in range(2)] == [2, 3]
    assert quiet.num_rejected == 2


def test_a_machine_that_stays_busy_is_refused(shares: list[float]) -> None:
    quiet, numbers = QuietRounds(2.5, attempts=3), numbered()
    shares += [0.5, 0.5, 0.09]
    with pytest.raises(BusyMachine, match="9 % of a core in the last of 3"):
        quiet.measure(lambda: next(numbers))
    assert next(numbers) == 3


def test_a_high_load_is_refused_before_anything_is_measured(shares: list[float]) -> None:
    numbers = numbered()
    with pytest.raises(BusyMachine, match=r"1\.0, above 0\.9"):
        QuietRounds(0.9, attempts=3).measure(lambda: next(numbers))
    assert next(numbers) == 0


def test_what_others_use_is_what_the_machine_used_without_us(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moments = iter([10.0, 12.0])
    seconds = iter([100.0, 100.3])
    monkeypatch.setattr(quiet_rounds.time, "perf_counter", lambda: next(moments))
    monkeypatch.setattr(quiet_rounds, "_seconds_of_others", lambda: next(seconds))
    found, share = quiet_rounds._with_share_of_others(lambda: "done")
    assert (found, share) == ("done", pytest.approx(0.15))


def test_own_work_is_not_others(monkeypatch: pytest.MonkeyPatch) -> None:
    before, own = quiet_rounds._seconds_of_others(), quiet_rounds.time.process_time()
    monkeypatch.setattr(quiet_rounds.time, "process_time", lambda: own + 1000.0)
    assert quiet_rounds._seconds_of_others() < before - 500.0


def test_arguments_have_their_defaults() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert vars(parser.parse_args([])) == {"max_load": 2.5, "attempts": 5}


class FakeGrammars:
    """Stands for the engine of `structured_output`: a step takes 1 s, one with grammars as long as it is told."""

    vocabulary = "none"
    ratio = 1.0

    def __init__(self, *_: Any) -> None:
        self.rounds = 0

    def round(self, *_: Any) -> structured_output.ByKind:
        self.rounds += 1
        return {False: [(1.0, 1.0)] * 3, True: [(self.ratio, 1.0)] * 3}

    def first_token(self, *_: Any, **__: Any) -> tuple[float, float]:
        return 1.0, 1.0

    def first_tokens(self, _: int) -> structured_output.ByKind:
        return {False: [(1.0, 1.0)], True: [(9.0, 9.0)]}


@pytest.mark.parametrize(
    ("ratio", "busy", "code"), [(1.05, 0.0, 0), (1.051, 0.0, 1), (1.0, 0.5, EXIT_BUSY)]
)
def test_steps_with_grammars_are_judged_by_their_bound(
    ratio: float,
    busy: float,
    code: int,
    shares: list[float],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    (tmp_path / "tokenizer.json").touch()  # of a model that is kept
    monkeypatch.setattr(FakeGrammars, "ratio", ratio)
    monkeypatch.setattr(structured_output, "_Bench", FakeGrammars)
    monkeypatch.setattr(sys, "argv", ["x", "--texts", "none", "--keep", str(tmp_path)])
    shares += [busy] * 5
    assert structured_output.main() == code


class FakeEmbeddings:
    """Stands for both engines of `embeddings`: one second by `transformers`."""

    cases = ("equal", "mixed")
    seconds = 1.0

    def __init__(self, *_: Any) -> None:
        """Prepare nothing."""

    def least_cosine(self) -> float:
        return 1.0

    def round(self) -> dict[str, float]:
        return {
            f"{case} {side} {clock}": seconds
            for case in self.cases
            for side, seconds in (("engine", self.seconds), ("transformers", 1.0))
            for clock in ("wall", "cpu")
        }


@pytest.mark.parametrize(
    ("seconds", "busy", "code"), [(1.0, 0.0, 0), (1.01, 0.0, 1), (0.5, 0.5, EXIT_BUSY)]
)
def test_embeddings_are_judged_by_their_bound(
    seconds: float, busy: float, code: int, shares: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeEmbeddings, "seconds", seconds)
    monkeypatch.setattr(embeddings, "Bench", FakeEmbeddings)
    monkeypatch.setattr(sys, "argv", ["x"])
    shares += [busy] * 5
    assert embeddings.main() == code
