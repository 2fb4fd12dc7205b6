"""When an engine counts as stalled: the judgement alone, without time passing."""

from __future__ import annotations

import pytest
from exo_adapter.watcher import Look, State, judge, sum_metrics

READY = Look(is_healthy=True, num_busy=0, progress=0)


def after(*looks: Look) -> State:
    """Return the state after looks at 0, 10, 20 … seconds."""
    state = State()
    for index, look in enumerate(looks):
        state = judge(state, look, now=10.0 * index)
    return state


def busy(progress: float | None, *, is_healthy: bool = True) -> Look:
    return Look(is_healthy=is_healthy, num_busy=1, progress=progress)


@pytest.mark.parametrize(
    ("looks", "moved_at"),
    [
        pytest.param([Look(False)] * 3, 20, id="starting"),
        pytest.param([READY] * 3, 20, id="idle"),
        pytest.param([READY, busy(1), busy(2)], 20, id="working"),
        pytest.param([READY, busy(1), busy(1)], 10, id="busy without a step"),
        pytest.param([READY, busy(0), busy(0)], 0, id="busy from the first moment"),
        pytest.param([READY, Look(False), Look(False)], 0, id="does not answer any more"),
        pytest.param([READY, Look(True), Look(True)], 20, id="without metrics it need only answer"),
        pytest.param(
            [READY, busy(1, is_healthy=False), busy(2, is_healthy=False)],
            20,
            id="works though its health check fails",
        ),
    ],
)
def test_an_engine_gets_on_or_does_not(looks: list[Look], moved_at: float) -> None:
    assert after(*looks).moved_at == moved_at


def test_it_has_started_for_good_once_it_was_healthy() -> None:
    assert not after(Look(False)).has_started
    assert after(READY, Look(False)).has_started


def test_metrics_are_summed_over_their_labels() -> None:
    text = """# HELP a b
a{engine="0"} 1
a{engine="1",x="{y} z"} 2.5
b 1e3
c_total{le="+Inf"} NaN

not a sample
d nonsense
"""
    sums = sum_metrics(text)
    assert (sums["a"], sums["b"]) == (3.5, 1000)
    assert "d" not in sums
