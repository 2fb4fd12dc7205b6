"""Steady chat requests through the gateway, and what became of each one."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

import aiohttp

PROMPTS = ("What is a KV cache?", "What is a gateway?", "What does the scheduler do?")
MAX_TOKENS = 24


@dataclass(frozen=True)
class Outcome:
    """One request. `error` is empty for a whole, correct answer; times are those of `time.time`."""

    id: str
    streamed: bool
    started: float
    ended: float
    error: str = ""
    refused: bool = False
    """The gateway could not be connected to."""

    connected: float = 0.0
    """When its connection was made, which may be that of earlier requests."""

    begun: bool = False
    """The head of the answer had come."""


@dataclass
class Load:
    """Workers that each send one request after the other."""

    url: str
    key: str
    num_workers: int = 3
    model: str = "exo/tiny-chat"
    max_tokens: int = MAX_TOKENS
    pause_seconds: float = 0.02
    timeout_seconds: float = 60.0
    outcomes: list[Outcome] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    @property
    def failures(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.error]

    def summary(self) -> str:
        kinds = Counter(outcome.error[:60] or "ok" for outcome in self.outcomes)
        return ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Load]:
        """Send requests while the block runs; those in flight at its end are finished."""
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for number in range(self.num_workers):
                group.create_task(self._work(stop, number), name=f"load {number}")
            try:
                yield self
            finally:
                stop.set()

    async def _work(self, stop: asyncio.Event, worker: int) -> None:
        timeout = aiohttp.ClientTimeout(total=self.timeout_seconds)
        headers = {"Authorization": f"Bearer {self.key}"}
        connected = [0.0]  # of the one connection that a worker has at a time

        async def note(*_: object) -> None:
            connected[0] = time.time()

        trace = aiohttp.TraceConfig()
        trace.on_connection_create_end.append(note)
        async with aiohttp.ClientSession(
            headers=headers, timeout=timeout, trace_configs=[trace]
        ) as session:
            while not stop.is_set():
                number = next(self._numbers)
                outcome = await self._ask(session, f"load-{worker}-{number}", number)
                self.outcomes.append(replace(outcome, connected=connected[0]))
                await asyncio.sleep(self.pause_seconds)

    async def _ask(self, session: aiohttp.ClientSession, id: str, number: int) -> Outcome:
        streamed = number % 2 == 0
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": PROMPTS[number % len(PROMPTS)]}],
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "stream": streamed,
        }
        started = time.time()
        error, refused, begun = "", False, False
        try:
            url = f"{self.url}/chat/completions"
            async with session.post(url, json=body, headers={"X-Request-ID": id}) as answer:
                begun = True
                content = await answer.read()
                error = _problem(answer.status, content, streamed=streamed)
        except aiohttp.ClientConnectorError:
            error, refused = "connection refused", True
        except (aiohttp.ClientError, TimeoutError) as exc:
            error = f"{type(exc).__name__}: {exc}"
        return Outcome(id, streamed, started, time.time(), error, refused, begun=begun)


def _problem(status: int, content: bytes, *, streamed: bool) -> str:
    """Say what is wrong with an answer; empty for a whole one."""
    if status != 200:
        return f"{status} {content[:200].decode(errors='replace')}"
    if not streamed:
        finish = json.loads(content)["choices"][0]["finish_reason"]
        return "" if finish in ("stop", "length") else f"finish_reason {finish}"
    if not content.endswith(b"data: [DONE]\n\n"):
        return f"stream ends with {content[-80:]!r}"
    return "" if b'"usage":{' not in content.replace(b" ", b"") else "usage nobody asked for"
