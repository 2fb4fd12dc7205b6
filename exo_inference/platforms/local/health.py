"""Asks engines how they are, and remembers the answers of this controller's lifetime.

`check_health` is one `GET /health` over a replica's unix socket, `read_measurements` one
`GET /measurements`. `HealthHistory` turns single
answers into what the platform needs: since when a start says the same, since when a ready engine
is silent. Losing the history costs nothing but time: a new controller starts it anew.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exo_inference.platforms.local.replica_dir import SOCKET_NAME
from exo_inference.socket_http import Answer, get

_MAX_BODY_BYTES = 65536
_MAX_METRICS_BYTES = 2**20
_MAX_DETAIL_CHARACTERS = 256


@dataclass(frozen=True, slots=True)
class Health:
    """One answer. `answered` is False when there was none in time.

    Attributes:
        stalled: it has work and does not get on.
    """

    answered: bool
    ready: bool = False
    draining: bool = False
    stalled: bool = False
    detail: str = ""


async def check_health(directory: Path, timeout_seconds: float) -> Health:
    """Ask the engine of one replica."""
    answer = await _ask(directory, "/health", timeout_seconds)
    return Health(answered=False) if answer is None else _read_answer(answer)


async def read_measurements(directory: Path, timeout_seconds: float) -> dict[str, Any] | None:
    """Ask the engine of one replica what its start has measured; None where it does not say."""
    answer = await _ask(directory, "/measurements", timeout_seconds)
    if answer is None or answer.status != 200:
        return None
    try:
        document = json.loads(answer.body)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


async def read_metrics(directory: Path, timeout_seconds: float) -> bytes | None:
    """Ask the engine of one replica for its Prometheus metrics; None without an answer."""
    answer = await _ask(directory, "/metrics", timeout_seconds, _MAX_METRICS_BYTES)
    return answer.body if answer is not None and answer.status == 200 else None


async def _ask(
    directory: Path, path: str, timeout_seconds: float, max_bytes: int = _MAX_BODY_BYTES
) -> Answer | None:
    socket = directory / SOCKET_NAME
    return await get(socket, path, timeout_seconds=timeout_seconds, max_bytes=max_bytes)


def _read_answer(answer: Answer) -> Health:
    if answer.status == 200:
        return Health(answered=True, ready=True)
    try:
        document = json.loads(answer.body)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        return Health(
            answered=True, detail=f"the engine answers /health with status {answer.status}"
        )
    detail = document.get("detail")
    # Half a character, which JSON can name, could be written nowhere: it would hold up the deployment.
    said = detail.encode("utf-8", "replace").decode() if isinstance(detail, str) else ""
    return Health(
        answered=True,
        draining=document.get("status") == "draining",
        stalled=document.get("status") == "stalled",
        detail=" ".join(said.split())[:_MAX_DETAIL_CHARACTERS],
    )


@dataclass(frozen=True, slots=True)
class Trend:
    """What one replica's answers add up to.

    Attributes:
        health: the last answer.
        silent_seconds: since the last answer of any kind.
        unchanged_seconds: since the start last reported something new.
        stalled_seconds: since the first answer in a row that said that the engine does not get on.
    """

    health: Health
    silent_seconds: float
    unchanged_seconds: float
    stalled_seconds: float = 0.0


@dataclass(slots=True)
class _Memory:
    answered_at: float
    changed_at: float
    detail: str = ""
    stalled_at: float | None = None


class HealthHistory:
    """The answers of all replicas, by name and run."""

    def __init__(self) -> None:
        self._memories: dict[tuple[str, int], _Memory] = {}

    def record(self, name: str, run: int, health: Health, now: float) -> Trend:
        """Add one answer at the monotonic time `now` and return what all add up to."""
        memory = self._memories.setdefault((name, run), _Memory(now, now))
        if health.answered:
            memory.answered_at = now
            if health.ready or health.detail != memory.detail:
                memory.changed_at = now
                memory.detail = health.detail
            if not health.stalled:
                memory.stalled_at = None
            elif memory.stalled_at is None:
                memory.stalled_at = now
        stalled = 0.0 if memory.stalled_at is None else now - memory.stalled_at
        return Trend(health, now - memory.answered_at, now - memory.changed_at, stalled)

    def forget(self, name: str) -> None:
        """Drop what is known of a replica that no longer runs."""
        for key in [key for key in self._memories if key[0] == name]:
            del self._memories[key]
