"""What a server's clients see: streams of `/v1/completions`, prompts given as tokens, answers of a fixed length.

All servers get requests of the same lengths in the same order, and the same prompts but where a load is made again.
Times are from sending a request until its first text, and between two pieces of text.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

FIRST_TOKEN = 256
"""The tokens before it are bytes, and not all of them are text."""
CONCURRENCY = 16
MANY, MANY_AT_ONCE = 1000, 64
"""Requests that are measured, after as many by which a cache of 1 GiB for prompts that may come again is full, with
these models; and how many are under way at once."""
_MANY_PROMPT, _MANY_OUTPUT = 96, 16
_SHORTEST, _LONGEST_PROMPT, _LONGEST_ANSWER = 32, 510, 280
"""Of what is drawn, before it is scaled to these means."""
_MEAN_PROMPT, _MEAN_ANSWER = 17_326 / 64, 9_947 / 64
"""Tokens of the load by which this engine, vLLM and llama.cpp were first compared: 64 requests."""
_TURN_TOKENS, _NEW_TOKENS, _TURN_OUTPUT = 1024, 64, 16
_LONG_PROMPT, _BESIDE, _BESIDE_PROMPT = 2000, 8, 64
_TIMEOUT_SECONDS = 600


@dataclass(slots=True)
class Stream:
    """Moments of one answer, in seconds of `time.perf_counter`."""

    sent: float
    moments: list[float] = field(default_factory=list)
    num_tokens: int | None = None
    """As the server counts them; None: it does not say."""

    @property
    def first_seconds(self) -> float:
        """From sending to the first text."""
        return self.moments[0] - self.sent

    @property
    def gaps(self) -> list[float]:
        """Between pieces of text."""
        return [b - a for a, b in zip(self.moments, self.moments[1:], strict=False)]


class BadAnswer(Exception):
    """A server refused a request, or gave another number of tokens than asked for."""


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of them do not pass."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]


def read_line(line: bytes, stream: Stream, now: float) -> None:
    """Note what one line of an answer says.

    Raises:
        BadAnswer: it is an error.
    """
    if not line.startswith(b"data:") or (text := line[5:].strip()) == b"[DONE]":
        return
    chunk = json.loads(text)
    if "error" in chunk:
        raise BadAnswer(str(chunk["error"])[:200])
    if any(choice.get("text") for choice in chunk.get("choices", ())):
        stream.moments.append(now)
    if (usage := chunk.get("usage")) is not None:
        stream.num_tokens = usage["completion_tokens"]


def requests_of(count: int, vocab_size: int, attempt: int = 0) -> list[tuple[list[int], int]]:
    """Return prompts and lengths of answers, the same at each call.

    Each attempt has the same lengths, and prompts of its own: a server may have kept those of the one before.
    """
    lengths, numbers = random.Random(0), random.Random(attempt + 1)
    sizes = [
        (lengths.randint(_SHORTEST, _LONGEST_PROMPT), lengths.randint(_SHORTEST, _LONGEST_ANSWER))
        for _ in range(count)
    ]
    prompts = with_total([prompt for prompt, _ in sizes], round(count * _MEAN_PROMPT))
    answers = with_total([answer for _, answer in sizes], round(count * _MEAN_ANSWER))
    return [
        (tokens(numbers, prompt, vocab_size), answer)
        for prompt, answer in zip(prompts, answers, strict=True)
    ]


def with_total(lengths: Sequence[int], total: int) -> list[int]:
    """Return whole lengths in the same proportions whose sum is `total`."""
    whole, seen, result = sum(lengths), 0, []
    for length in lengths:
        begun = round(seen * total / whole)
        seen += length
        result.append(round(seen * total / whole) - begun)
    return result


def tokens(numbers: random.Random, count: int, vocab_size: int) -> list[int]:
    """Return random tokens, each of them text."""
    return [numbers.randint(FIRST_TOKEN, vocab_size - 2) for _ in range(count)]


class Client:
    """Puts requests to one server.

    Args:
        url: ends with /v1.
        vocab_size: tokens of its model.
    """

    def __init__(self, url: str, vocab_size: int) -> None:
        self._url, self._vocab_size = url, vocab_size
        self._numbers = random.Random(0)
        self._num_loads = 0

    def run(self, measure: Callable[[aiohttp.ClientSession], Any]) -> Any:
        """Run one of the measurements below."""

        async def within() -> Any:
            timeout = aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS)
            # llama-server ends connections after an answer without saying so first.
            connector = aiohttp.TCPConnector(limit=0, force_close=True)
            async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
                return await measure(session)

        return asyncio.run(within())

    async def load(self, session: aiohttp.ClientSession, count: int = 64) -> dict[str, float]:
        """Return what so many requests see, 16 at a time; times in ms."""
        waiting = requests_of(count, self._vocab_size, self._num_loads)[::-1]
        self._num_loads += 1
        done: list[Stream] = []

        async def take() -> None:
            while waiting:
                prompt, output = waiting.pop()
                done.append(await self._ask(session, prompt, output))

        num_out = sum(output for _, output in waiting)
        num_in = sum(len(prompt) for prompt, _ in waiting)
        begun = time.perf_counter()
        await asyncio.gather(*(take() for _ in range(CONCURRENCY)))
        seconds = time.perf_counter() - begun
        firsts = [each.first_seconds for each in done]
        gaps = [gap for each in done for gap in each.gaps]
        return {
            "tokens_per_second": num_out / seconds,
            "ttft_p50_ms": 1000 * quantile(firsts, 0.5),
            "ttft_p99_ms": 1000 * quantile(firsts, 0.99),
            "itl_p50_ms": 1000 * quantile(gaps, 0.5),
            "itl_p99_ms": 1000 * quantile(gaps, 0.99),
            "tokens_in": num_in,
            "tokens_out": num_out,
        }

    async def many(
        self, session: aiohttp.ClientSession, held_mb: Callable[[], float], count: int = MANY
    ) -> dict[str, float]:
        """Put many short requests, 64 at a time, every one of which has to be answered, and as many before them.

        The first fill the server's caches: what it holds more after that is what it does not give back.

        Args:
            session: without a limit on connections.
            held_mb: the memory that the server holds.
            count: how many requests.

        Returns:
            Tokens per second, and by how much more memory is held after the last than before the first, in MB.
        """
        left, done = 2 * count, 0
        warm_mb, begun = 0.0, 0.0

        async def take() -> None:
            nonlocal left, done, warm_mb, begun
            while left:
                left -= 1
                await self._ask(session, self._prompt(_MANY_PROMPT), _MANY_OUTPUT)
                done += 1
                if done == count:
                    warm_mb = await asyncio.to_thread(held_mb)
                    begun = time.perf_counter()

        await asyncio.gather(*(take() for _ in range(MANY_AT_ONCE)))
        seconds = time.perf_counter() - begun
        grown = await asyncio.to_thread(held_mb) - warm_mb
        return {"tokens_per_second": count * _MANY_OUTPUT / seconds, "grown_mb": grown}

    async def second_turn(self, session: aiohttp.ClientSession) -> dict[str, float]:
        """Return the times to the first token of a prompt, and of the same with more behind it, in ms."""
        firsts, seconds = [], []
        for _ in range(3):
            prompt = tokens(self._numbers, _TURN_TOKENS, self._vocab_size)
            firsts.append((await self._ask(session, prompt, _TURN_OUTPUT)).first_seconds)
            longer = prompt + tokens(self._numbers, _NEW_TOKENS, self._vocab_size)
            seconds.append((await self._ask(session, longer, _TURN_OUTPUT)).first_seconds)
        return {
            "first_ttft_ms": 1000 * statistics.median(firsts),
            "second_ttft_ms": 1000 * statistics.median(seconds),
        }

    async def beside_a_long_prompt(self, session: aiohttp.ClientSession) -> dict[str, float]:
        """Return the times between tokens of eight answers while a prompt of 2,000 is computed, in ms."""
        others = [Stream(time.perf_counter()) for _ in range(_BESIDE)]
        async with asyncio.TaskGroup() as group:
            asking = [
                group.create_task(
                    self._fill(each, session, self._prompt(_BESIDE_PROMPT), 1800), name="beside"
                )
                for each in others
            ]
            while any(len(each.moments) < 16 for each in others):  # noqa: ASYNC110 -- of eight streams
                await asyncio.sleep(0.005)
            long = await self._ask(session, self._prompt(_LONG_PROMPT), 1)
            for task in asking:
                task.cancel()
        begun, past = long.sent, long.moments[0]
        gaps = [
            b - a
            for each in others
            for a, b in zip(each.moments, each.moments[1:], strict=False)
            if b > begun and a < past
        ]
        alone = [
            b - a
            for each in others
            for a, b in zip(each.moments[3:], each.moments[4:], strict=False)
            if b <= begun
        ]
        return {
            "itl_alone_p50_ms": 1000 * quantile(alone, 0.5),
            "itl_p50_ms": 1000 * quantile(gaps, 0.5),
            "itl_p99_ms": 1000 * quantile(gaps, 0.99),
            "ttft_ms": 1000 * long.first_seconds,
        }

    def _prompt(self, count: int) -> list[int]:
        return tokens(self._numbers, count, self._vocab_size)

    async def _ask(self, session: aiohttp.ClientSession, prompt: list[int], output: int) -> Stream:
        stream = Stream(time.perf_counter())
        await self._fill(stream, session, prompt, output)
        if not stream.moments or stream.num_tokens not in (None, output):
            raise BadAnswer(f"{stream.num_tokens} tokens came instead of {output}")
        return stream

    async def _fill(
        self, stream: Stream, session: aiohttp.ClientSession, prompt: list[int], output: int
    ) -> None:
        body = {
            "model": "model",
            "prompt": prompt,
            "max_tokens": output,
            "temperature": 0.0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        async with session.post(f"{self._url}/completions", json=body) as response:
            if response.status != 200:
                raise BadAnswer(f"{response.status}: {(await response.text())[:200]}")
            async for line in response.content:
                read_line(line, stream, time.perf_counter())
