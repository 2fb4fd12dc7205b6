"""Looks at the engine from outside: does it answer, is it busy, does it get on.

One thread asks the engine's health check, and its metrics once it is up, every second and keeps what it saw; probes and
the drain read that and never wait for the engine. The judgement (`judge`) is pure.
"""

from __future__ import annotations

import http.client
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from exo_adapter.engines import Engine

_PERIOD_SECONDS = 1.0
_STARTING_PERIOD_SECONDS = 0.2
"""While it starts only its health is asked, so that it takes requests as soon as it can."""
_TIMEOUT_SECONDS = 5.0
_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{.*\})?\s+([^\s]+)")


@dataclass(frozen=True)
class Look:
    """What was seen at one moment.

    Attributes:
        is_healthy: the health check answered 200.
        num_busy: requests that run or wait; None where there are no metrics.
        progress: sum of what grows with every step; None where there are no metrics.
    """

    is_healthy: bool
    num_busy: float | None = None
    progress: float | None = None


@dataclass(frozen=True)
class State:
    """What is known of the engine.

    Attributes:
        has_started: it was healthy once.
        look: the last one.
        moved_at: when it last got on, had nothing to do, or was not to be judged.
    """

    has_started: bool = False
    look: Look = Look(is_healthy=False)
    moved_at: float = 0.0


def judge(state: State, look: Look, now: float) -> State:
    """Return the new state. It stalls when it is busy and nothing grows, or when it does not answer."""
    has_started = state.has_started or look.is_healthy
    if not has_started:
        return State(moved_at=now)
    if look.num_busy is None or look.progress is None:
        # No metrics: all that can be asked of it is that it answers.
        has_moved = look.is_healthy
    else:
        has_moved = look.num_busy == 0 or look.progress != state.look.progress
    return replace(
        state, has_started=True, look=look, moved_at=now if has_moved else state.moved_at
    )


class Watcher:
    """Keeps the state of one engine.

    Args:
        engine: what to look for.
        port: where the engine listens on this machine.
        clock: seconds that only grow.
    """

    def __init__(
        self, engine: Engine, port: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine = engine
        self._port = port
        self._clock = clock
        self.state = State(moved_at=clock())

    def start(self) -> None:
        """Look again and again, until the process ends."""
        threading.Thread(target=self._watch, name="watcher", daemon=True).start()

    def look(self) -> Look:
        """Look once, and remember it."""
        look = self._ask()
        self.state = judge(self.state, look, self._clock())
        return look

    def measurements(self) -> tuple[int, str]:
        """Return the engine's own words about what its start has measured, with their status."""
        path = self._engine.measurements_path
        if path is None or not self.state.look.is_healthy:
            return 404, ""
        status, text = self._get(path)
        return (status, text) if status == 200 else (404, "")

    def metrics(self) -> tuple[int, str]:
        """Return the engine's own metrics in Prometheus' text format, with their status."""
        if not self.state.has_started:
            return 404, ""
        status, text = self._get(self._engine.metrics_path)
        return (status, text) if status == 200 else (503, "")

    def seconds_without_progress(self) -> float:
        """Return for how long the engine should have got on and did not."""
        return self._clock() - self.state.moved_at

    def _watch(self) -> None:
        while True:
            self.look()
            has_started = self.state.has_started
            time.sleep(_PERIOD_SECONDS if has_started else _STARTING_PERIOD_SECONDS)

    def _ask(self) -> Look:
        status, _ = self._get(self._engine.health_path)
        if status != 200 and not self.state.has_started:
            return Look(is_healthy=False)
        if not self._engine.busy_metrics:
            return Look(is_healthy=status == 200)
        metrics_status, text = self._get(self._engine.metrics_path)
        if metrics_status != 200:
            return Look(is_healthy=status == 200)
        sums = sum_metrics(text)
        return Look(
            is_healthy=status == 200,
            num_busy=_total(sums, self._engine.busy_metrics),
            progress=_total(sums, self._engine.progress_metrics),
        )

    def _get(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_TIMEOUT_SECONDS)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace")
        except (OSError, http.client.HTTPException):
            return 0, ""
        finally:
            connection.close()


def sum_metrics(text: str) -> dict[str, float]:
    """Return the sum over all labels of every sample in Prometheus' text format."""
    sums: dict[str, float] = {}
    for line in text.splitlines():
        if match := _SAMPLE.match(line):
            try:
                value = float(match[2])
            except ValueError:
                continue
            sums[match[1]] = sums.get(match[1], 0.0) + value
    return sums


def _total(sums: dict[str, float], names: tuple[str, ...]) -> float | None:
    found = [sums[name] for name in names if name in sums]
    return sum(found) if found else None
