"""An engine that is not ours, or a client whose fields an answer repeats, forges what a request used."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from exo_inference.gateway.answer_usage import MAX_TOKENS, Tokens
from exo_inference.gateway.usage_ledger import UsageLedger

from .conftest import Stack

HUGE = b"9" * 4300
"""As many digits as Python reads; of the sum of two it would not write them."""

PATHS = ["chat/completions", "completions", "responses", "messages", "embeddings", "rerank", "score"]  # fmt: skip
USAGES = {
    "OpenAI": b'{"prompt_tokens":%s,"completion_tokens":%s}',
    "responses": b'{"input_tokens":%s,"output_tokens":%s}',
}


def answers(stack: Stack, body: bytes, content_type: str) -> None:
    async def handle(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type=content_type)

    for engine in stack.engines:
        engine.handler = handle


async def ask(stack: Stack, path: str, *, stream: bool = False) -> bytes:
    async with stack.client.post(stack.path(f"/v1/{path}"), json={"stream": stream}) as answer:
        assert answer.status == 200
        return await answer.read()


async def check_counts(stack: Stack, wanted: Tokens) -> None:
    """Whoever asks the gateway for what it has counted is told it."""
    status = await stack.status()
    assert status["tokens"] == {"prompt": wanted.prompt, "completion": wanted.completion}
    rows = json.loads(await stack.admin("/usage"))["rows"]
    assert sum(row["prompt_tokens"] for row in rows) == wanted.prompt
    families = text_string_to_metric_families(await stack.admin("/metrics"))
    (tokens,) = [each for each in families if each.name == "exo_gateway_tokens"]
    assert sum(sample.value for sample in tokens.samples) == wanted.total


@pytest.mark.parametrize("usage", USAGES.values(), ids=USAGES)
@pytest.mark.parametrize("filler", [0, 5 << 20], ids=["short", "long"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_forged_counts_end_no_gateway(
    stack: Stack, stream: bool, filler: int, usage: bytes
) -> None:
    forged = b'{"object":"x","usage":%s,"x":"%s"}' % (usage % (HUGE, HUGE), b"x" * filler)
    kind = "text/event-stream" if stream else "application/json"
    answers(stack, b"data: %s\n\n" % forged if stream else forged, kind)
    for path in PATHS:
        assert forged in await ask(stack, path, stream=stream)
    await check_counts(stack, Tokens())
    honest = b'{"usage":%s}' % (usage % (b"7", b"5"))
    answers(stack, b"data: %s\n\n" % honest if stream else honest, kind)
    for path in PATHS:
        await ask(stack, path, stream=stream)
    await check_counts(stack, Tokens(7 * len(PATHS), 5 * len(PATHS)))


async def test_counts_go_on_to_be_written_beside_forged_ones(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[bool] = []
    monkeypatch.setattr(stack.gateway, "_on_failure", lambda: ended.append(True))
    ledger = stack.gateway._ledger
    answers(stack, b'{"usage":{"input_tokens":%s}}' % HUGE, "application/json")
    await asyncio.gather(*(ask(stack, "responses") for _ in range(2)))
    await ledger.save()
    answers(stack, b'{"usage":{"input_tokens":7}}', "application/json")
    await ask(stack, "responses")
    await ledger.save()
    again = UsageLedger(stack.state.usage_file)
    again.load()
    assert (again.num_requests, again.tokens, ended) == (3, Tokens(7, 0), [])


async def test_one_request_adds_no_more_than_a_request_can_be(stack: Stack) -> None:
    """A client's own field in a long answer is taken for its usage where it is the higher one."""
    chosen = {"usage": {"input_tokens": MAX_TOKENS, "output_tokens": 10**9}}
    answer = {"usage": {"input_tokens": 7, "output_tokens": 5}, "tools": [chosen], "x": "x" * 2**20}
    answers(stack, json.dumps(answer).encode(), "application/json")
    await ask(stack, "responses")
    status = await stack.status()
    assert status["tokens"]["prompt"] <= MAX_TOKENS
    assert status["tokens"]["completion"] <= MAX_TOKENS


async def test_counts_that_are_not_believed_are_told_once_and_in_short(
    stack: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    hostile = json.dumps("\x1b]0;title\x07\n" + "x" * 100_000).encode()
    for _ in range(3):
        for count in (hostile, HUGE):
            answers(stack, b'{"usage":{"prompt_tokens":%s}}' % count, "application/json")
            await ask(stack, "chat/completions")
    told = [each.getMessage() for each in caplog.records if "not counted" in each.getMessage()]
    assert len(told) == 1
    assert "prompt_tokens" in told[0]
    assert "chat-" in told[0]
    assert len(told[0]) < 300
    assert told[0].isprintable()


@pytest.mark.parametrize(
    "count",
    [10**400, 10**4200, -1, float("inf"), float("nan"), "7", [7], None, True],
    ids=["400 digits", "4,200 digits", "negative", "inf", "nan", "text", "list", "null", "true"],
)
async def test_forged_counts_that_an_earlier_version_wrote_are_none(
    tmp_path: Path, count: Any
) -> None:
    row = {"deployment_id": "d-1", "key_id": "k", "requests": {"200": 3}, "prompt_tokens": 7}
    rows = [{**row, "completion_tokens": count}, {**row, "key_id": "other", "completion_tokens": 5}]
    path = tmp_path / "usage.json"
    path.write_text(json.dumps({"format": 1, "rows": rows}))
    ledger = UsageLedger(path)
    ledger.load()
    assert (ledger.num_requests, ledger.tokens) == (6, Tokens(14, 5))
    ledger.count("d-1", "k", 200, Tokens(1, 1))
    await ledger.save()
    assert max(row["completion_tokens"] for row in json.loads(path.read_text())["rows"]) <= 6
