"""`kill -9` and what it explains: when a process was taken down, which answers that may break, and what was logged.

Used by the chaos tests. A kill takes time: the kernel closes the connections of a process once it has freed
its memory, which beside other work may be a second after the signal.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from exo_inference.state_dir import StateDir

from .load import Outcome

NEAR_SECONDS = 2.0
MAX_LINES = 40


@dataclass(frozen=True)
class Kill:
    """One process that was killed, and from when until when it went; times are those of `time.time`.

    `name` is a server's or a replica's, `part` which process of it.
    """

    sent: float
    gone: float
    name: str
    part: str

    def met(self, outcome: Outcome) -> bool:
        """Whether a request ran while the process went."""
        return outcome.started <= self.gone and outcome.ended >= self.sent

    def cut(self, outcome: Outcome) -> bool:
        """Whether the connection of a request was there when the process went, and the request not over."""
        return outcome.connected <= self.gone and outcome.ended >= self.sent


async def kill_and_wait(pid: int, name: str, part: str) -> Kill:
    """Kill a process and wait until all that it had is closed.

    Raises:
        ProcessLookupError: it has ended already.
    """
    descriptor = os.pidfd_open(pid)
    try:
        sent = time.time()
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        await asyncio.to_thread(select.select, [descriptor], [], [], 60.0)
        return Kill(sent, time.time(), name, part)
    finally:
        os.close(descriptor)


def describe(outcome: Outcome, kills: list[Kill], state: StateDir, zero: float) -> str:
    """Return all that is needed to explain one failure: it, the kills around it, and what servers logged."""

    def at(moment: float) -> str:
        return f"{moment - zero:.3f}"

    kind = "stream" if outcome.streamed else "plain"
    begun = "begun" if outcome.begun else "not begun"
    lines = [
        f"{outcome.id} ({kind}, {begun}): started {at(outcome.started)}, on a connection of "
        f"{at(outcome.connected)}, ended {at(outcome.ended)}: {outcome.error}"
    ]
    first, last = outcome.started - NEAR_SECONDS, outcome.ended + NEAR_SECONDS
    lines += [
        f"  killed {one.part} of {one.name}: {at(one.sent)}, gone {at(one.gone)}"
        for one in kills
        if first <= one.gone and one.sent <= last
    ]
    for name in ("gateway", "controller", "supervisor"):
        found = []
        for text in _read_lines(state.logs_dir / f"{name}.log"):
            moment = _time_of(text)
            near = moment is not None and abs(moment - outcome.ended) <= NEAR_SECONDS
            if f'"{outcome.id}"' in text or (near and '"request_id"' not in text):
                found.append(f"  {name} {at(moment) if moment else '?'}: {text[:400]}")
        lines += found[-MAX_LINES:]
    return "\n".join(lines)


def _read_lines(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines() if path.exists() else []


def _time_of(line: str) -> float | None:
    """Return when a line was logged, as JSON or as the supervisor writes it."""
    try:
        if line.startswith("{"):
            return datetime.fromisoformat(json.loads(line)["time"]).timestamp()
        return datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S,%f").timestamp()
    except (ValueError, KeyError, TypeError):
        return None
