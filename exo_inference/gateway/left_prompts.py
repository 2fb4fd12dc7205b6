"""Finds out what the prompt of a stream took whose client left before the engine told.

An engine names usage at the end of a stream, and a stream that is left has none; but its prompt was computed.
So the engine is asked again, by `/tokenize` as vLLM and exo-engine have it, once nobody waits any more. The app
asks; others' requests come first: what is beyond `MAX_ASKED` and `MAX_BYTES` is not asked for, and then the
prompt counts as none. What conversations with pictures take is told without them by some engines.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote

import aiohttp

from exo_inference.gateway.answer_usage import MAX_TOKENS, MAX_WEIGHT
from exo_inference.gateway.replicas.upstreams import UpstreamPool

logger = logging.getLogger(__name__)

MAX_ASKED = 32
"""So many prompts are asked for at a time."""

MAX_BYTES = 64 << 20
"""Bodies of all these requests together."""

MAX_TEXTS = 64
"""A request for completions may have many prompts; of one with more texts none is asked for."""

SECONDS = 10.0
"""How long the engine may take for all prompts of one request."""

_HEAD_BYTES = 4 << 10
"""The answer lists every token after their count, and is not read that far."""

_COUNT = re.compile(rb'"count"\s*:\s*(\d{1,9})\s*[,}]')
_OF_CONVERSATIONS = (
    *("model", "messages", "tools", "tool_choice", "functions", "function_call", "documents"),
    *("chat_template", "chat_template_kwargs", "reasoning_effort"),
    *("add_generation_prompt", "continue_final_message"),
)


class LeftPrompts:
    """Asks engines for the prompts of streams that were left. Lives on one event loop."""

    def __init__(self, upstreams: UpstreamPool) -> None:
        self._upstreams = upstreams
        self._tasks: set[asyncio.Task[int]] = set()
        self._num_bytes = 0

    def ask(self, address: str, path: str, body: bytes, then: Callable[[int], None]) -> bool:
        """Ask a replica what the prompt of a request took.

        Args:
            address: of the replica that answered it.
            path: of the request; one of which nothing is known is not asked for.
            body: of the request.
            then: gets the number of tokens once, 0 where it cannot be known.

        Returns:
            Whether `then` will be called.
        """
        is_known = unquote(path) in _READERS
        if not is_known or len(self._tasks) >= MAX_ASKED or self._num_bytes + len(body) > MAX_BYTES:
            return False
        self._num_bytes += len(body)
        task = asyncio.create_task(self._ask(address, unquote(path), body))

        def end(_: asyncio.Task[int]) -> None:
            self._tasks.discard(task)
            self._num_bytes -= len(body)
            failure = None if task.cancelled() else task.exception()
            if failure is not None:
                logger.debug("a prompt that was left is counted as none: %r", failure)
            then(0 if task.cancelled() or failure is not None else task.result())

        self._tasks.add(task)
        task.add_done_callback(end)
        return True

    async def close(self) -> None:
        """Give up what is not answered yet."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _ask(self, address: str, path: str, body: bytes) -> int:
        async with asyncio.timeout(SECONDS):
            total, questions = await asyncio.to_thread(read_prompts, path, body)
            for question in questions:
                total += await self._ask_once(address, question)
        return min(total, MAX_TOKENS)

    async def _ask_once(self, address: str, question: dict[str, Any]) -> int:
        async with self._upstreams.session(address).post(
            self._upstreams.url(address, "/tokenize", ""),
            data=json.dumps(question).encode(),
            headers={"Content-Type": "application/json"},
            allow_redirects=False,
        ) as answer:
            head = b""
            while len(head) < _HEAD_BYTES and (chunk := await answer.content.readany()):
                head += chunk
            found = _COUNT.search(head[:_HEAD_BYTES]) if answer.status == 200 else None
            answer.close()
        if found is None:
            raise aiohttp.ClientError(f"the engine answered {answer.status} and told no count")
        return int(found[1])


def read_prompts(path: str, body: bytes) -> tuple[int, list[dict[str, Any]]]:
    """Return the tokens that a request lists itself, and what to ask `/tokenize` for the others.

    Raises:
        ValueError: the body is not what the path takes, or too much of it.
    """
    if body.count(b",") + 2 * (body.count(b"[") + body.count(b"{")) > MAX_WEIGHT:
        raise ValueError("it has too many values")
    request = json.loads(body)
    if not isinstance(request, dict):
        raise ValueError("it is no object")
    return _READERS[path](request)


def _read_completion(request: dict[str, Any]) -> tuple[int, list[dict[str, Any]]]:
    prompt = request.get("prompt")
    prompts = prompt if isinstance(prompt, list) else [prompt]
    if prompts and all(type(each) is int for each in prompts):
        return len(prompts), []
    texts = [each for each in prompts if isinstance(each, str)]
    if len(texts) > MAX_TEXTS:
        raise ValueError("it has too many prompts")
    more = {name: request[name] for name in ("model", "add_special_tokens") if name in request}
    num_listed = sum(len(each) for each in prompts if isinstance(each, list))
    return num_listed, [{**more, "prompt": text} for text in texts]


def _read_conversation(request: dict[str, Any]) -> tuple[int, list[dict[str, Any]]]:
    return 0, [{name: request[name] for name in _OF_CONVERSATIONS if name in request}]


def _read_responses(request: dict[str, Any]) -> tuple[int, list[dict[str, Any]]]:
    """Read the texts of `input`; its tools and what they gave have another form and are left out."""
    given = request.get("input")
    items = given if isinstance(given, list) else [{"role": "user", "content": given}]
    messages = [{"role": "system", "content": request.get("instructions")}, *items]
    texts = [
        {"role": each["role"], "content": text}
        for each in messages
        if isinstance(each, dict)
        and isinstance(each.get("role"), str)
        and (text := "\n".join(_texts_of(each.get("content"))))
    ]
    return 0, [{"messages": texts, **({"model": request["model"]} if "model" in request else {})}]


def _texts_of(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            yield part["text"]


_READERS = {
    "/v1/chat/completions": _read_conversation,
    "/v1/completions": _read_completion,
    "/v1/responses": _read_responses,
}
