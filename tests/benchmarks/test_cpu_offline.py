"""What times an engine step by step, over an engine whose steps take a second of a clock of its own."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from benchmarks.cpu import offline


class Slow:
    """A fake engine: each step takes a second, begins one prompt, and gives all that have begun a token."""

    vocab_size = 1000
    weights_bytes = None

    def __init__(self) -> None:
        self.seconds = 0
        self.waiting: list[tuple[str, int]] = []
        self.running: dict[str, int] = {}

    def add(self, name: str, prompt: list[int], output: int) -> None:
        self.waiting.append((name, output))

    def step(self) -> list[tuple[str, int]]:
        self.seconds += 1
        if self.waiting:
            self.running.update([self.waiting.pop(0)])
        told = [(f"{name}-lengthened", 1) for name in self.running]
        self.running = {name: left - 1 for name, left in self.running.items() if left > 1}
        return told

    def abort(self, names: list[str]) -> None:
        self.running = {name: left for name, left in self.running.items() if name not in names}


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Slow:
    engine = Slow()
    clock = SimpleNamespace(perf_counter=lambda: float(engine.seconds))
    monkeypatch.setattr(offline, "time", clock)
    return engine


@pytest.mark.parametrize("output", [2, 4, 128])
@pytest.mark.parametrize("batch", [1, 8, 32])
def test_all_sequences_decode_while_time_is_taken(engine: Slow, batch: int, output: int) -> None:
    timed = offline.Stepwise(engine)
    assert timed.decode(batch, 128, output) == batch
    assert not engine.running


def test_sequence_that_ends_before_others_have_begun_is_told(engine: Slow) -> None:
    timed = offline.Stepwise(engine)
    with pytest.raises(ValueError, match="ended before others"):
        timed.decode(32, 1000, 4)


@pytest.mark.parametrize("whole", [2.0, 1.5])
def test_prompts_that_took_longer_than_all_together_say_nothing(
    monkeypatch: pytest.MonkeyPatch, whole: float
) -> None:
    timed = object.__new__(offline.Transformers)
    seconds = {1: 2.0, 8: whole, 9: 4.0}
    monkeypatch.setattr(timed, "_generate", lambda batch, prompt, output: seconds[output])
    with pytest.raises(offline.Unmeasured, match=rf"8 tokens took {whole:.3f} s, and the first"):
        timed.decode(4, 128, 8)
    assert timed.decode(4, 128, 9) == 16.0


def test_prompts_alone(engine: Slow) -> None:
    assert offline.Stepwise(engine).prefill(512) == 512
