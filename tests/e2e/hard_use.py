"""Requests of every route and form at once, some broken, some given up, and what became of each one."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import aiohttp

MODEL = "exo/tiny-chat"
MAX_TOKENS = 12
ERROR = re.compile(r'"error": ?\{')
"""An error within an answer; `"text":"error"` is what a model may say."""
DISCONNECTED, MALFORMED = 0.10, 0.02
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 4}, "kind": {"enum": ["a", "b"]}},
    "required": ["name", "kind"],
    "additionalProperties": False,
}
QUESTIONS = ("What is a KV cache?", "What is a gateway?", "What does the scheduler do?", "Hello")


@dataclass
class HardUse:
    """Workers that share a number of requests.

    Attributes:
        statuses: of all answers, with what was sent.
        problems: what must not be: 5xx, a hang, a broken body that was taken, an error in a stream.
    """

    url: str
    key: str
    num_at_once: int = 64
    seed: int = 1
    timeout_seconds: float = 300.0
    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    async def run(self, num_requests: int) -> None:
        """Send so many requests, and wait for all of them."""
        rng = random.Random(self.seed)
        numbers = iter(range(num_requests))
        timeout = aiohttp.ClientTimeout(total=self.timeout_seconds)
        headers = {"Authorization": f"Bearer {self.key}"}
        connector = aiohttp.TCPConnector(limit=0)
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=headers, connector=connector) as client,
            asyncio.TaskGroup() as group,
        ):

            async def work() -> None:
                for _ in numbers:
                    await self._one(client, random.Random(rng.random()))

            for _ in range(self.num_at_once):
                group.create_task(work())

    async def _one(self, client: aiohttp.ClientSession, rng: random.Random) -> None:
        path, body = _request(rng)
        data = json.dumps(body).encode()
        kind = rng.random()
        if kind < DISCONNECTED:
            await self._give_up(client, path, data, rng)
            return
        if kind < DISCONNECTED + MALFORMED:
            data = _broken(body, rng)
        is_broken = kind < DISCONNECTED + MALFORMED
        try:
            async with client.post(self.url + path, data=data) as response:
                text = await response.text()
        except (TimeoutError, aiohttp.ClientError) as exc:
            self.problems.append(f"{path}: {exc!r}")
            return
        self.statuses["malformed" if is_broken else "whole", response.status] += 1
        if (is_broken and not 400 <= response.status < 500) or (
            not is_broken and response.status != 200
        ):
            self.problems.append(f"{path}: {response.status} {text[:300]} for {data[:300]!r}")
        elif not is_broken and (error := ERROR.search(text)):
            self.problems.append(f"{path}: {text[error.start() :][:300]}")

    async def _give_up(
        self, client: aiohttp.ClientSession, path: str, data: bytes, rng: random.Random
    ) -> None:
        """Hang up before the answer, at its head, or within it."""
        self.statuses["given up", 0] += 1
        try:
            async with asyncio.timeout(rng.choice((0.0, 0.002, 0.02, 0.1))):
                async with client.post(self.url + path, data=data) as response:
                    if response.status >= 500:
                        self.problems.append(f"{path}: {response.status}")
                    await response.content.read(rng.choice((0, 1, 400)))
                    response.close()
        except (TimeoutError, aiohttp.ClientError):
            pass


def _request(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """Return a path and a body that is right."""
    question = rng.choice(QUESTIONS) + " " * rng.randrange(4)
    messages = [{"role": "user", "content": question}]
    is_streaming = rng.random() < 0.5
    limit = rng.randint(1, MAX_TOKENS)
    common = {"model": MODEL, "stream": is_streaming, "temperature": rng.choice((0, 1))}
    chat = {**common, "messages": messages, "max_tokens": limit}
    tool = {"name": "f", "description": "d", "parameters": SCHEMA}
    forms: list[tuple[str, dict[str, Any]]] = [
        ("/chat/completions", chat),
        ("/chat/completions", {**chat, "n": 2, "logprobs": True, "top_logprobs": 2}),
        ("/chat/completions", {**chat, "tools": [{"type": "function", "function": tool}],
                               "tool_choice": "required", "max_tokens": 60}),
        ("/chat/completions", {**chat, "max_tokens": 60, "response_format": {
            "type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}}),
        ("/completions", {**common, "prompt": [question, "A cache"], "max_tokens": limit}),
        ("/completions", {**common, "prompt": question, "max_tokens": limit, "stop": ["e", "\n"]}),
        ("/responses", {**common, "input": question, "max_output_tokens": 16}),
        ("/messages", {**chat}),
    ]  # fmt: skip
    return rng.choice(forms)


def _broken(body: dict[str, Any], rng: random.Random) -> bytes:
    whole = json.dumps(body).encode()
    return rng.choice(
        (
            whole[: rng.randrange(len(whole))],
            b"\xff" + whole,
            b"[" * 5000,
            json.dumps({**body, "model": 7}).encode(),
            json.dumps({**body, "temperature": "hot"}).encode(),
            json.dumps({**body, "no_such_field": 1}).encode(),
            json.dumps([body]).encode(),
        )
    )
