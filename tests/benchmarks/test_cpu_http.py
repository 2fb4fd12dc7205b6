"""What the benchmark's client makes of streams; and its model's tokens, which every server sends as text."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from benchmarks.cpu.gguf_file import in_pairs, name_of
from benchmarks.cpu.http_load import (
    BadAnswer,
    Client,
    Stream,
    quantile,
    read_line,
    requests_of,
    with_total,
)
from benchmarks.cpu.models import END, vocabulary

VOCABULARY = 4096


def test_a_quantile_is_one_of_the_values() -> None:
    hundred = [float(each) for each in range(1, 101)]
    assert quantile(hundred, 0.5) == 50.0
    assert quantile(hundred, 0.99) == 99.0
    assert quantile([3.0, 1.0], 0.99) == 3.0
    assert quantile([3.0], 0.5) == 3.0


@pytest.mark.parametrize("total", [600, 61, 10_007])
def test_lengths_keep_their_proportions_within_a_token(total: int) -> None:
    lengths = [100, 200, 300, 1, 399]
    found = with_total(lengths, total)
    assert sum(found) == total
    assert found == pytest.approx([length * total / 1000 for length in lengths], abs=1)


def test_only_text_is_a_moment_and_the_server_counts_tokens() -> None:
    stream = Stream(sent=1.0)
    lines = [b"\n", b": a remark\n", b'data: {"choices": [{"text": ""}]}\n']
    lines += [b'data: {"choices": [{"text": "a"}]}\n', b'data: {"choices": [{"text": "b"}]}\n']
    lines += [b'data: {"choices": [], "usage": {"completion_tokens": 2}}\n', b"data: [DONE]\n"]
    for moment, line in enumerate(lines):
        read_line(line, stream, float(moment))
    assert stream.moments == [3.0, 4.0]
    assert stream.num_tokens == 2
    assert stream.first_seconds == 2.0
    assert stream.gaps == [1.0]
    with pytest.raises(BadAnswer, match="no room"):
        read_line(b'data: {"error": {"message": "no room"}}', stream, 0.0)


def test_the_load_is_the_same_each_time_and_all_its_tokens_are_text() -> None:
    first, second = requests_of(64, VOCABULARY), requests_of(64, VOCABULARY)
    assert sum(len(prompt) for prompt, _ in first) == 17_326
    assert sum(answer for _, answer in first) == 9_947
    assert first == second
    assert all(28 <= len(prompt) <= 510 and 28 <= output <= 280 for prompt, output in first)
    tokens = set(itertools.chain.from_iterable(prompt for prompt, _ in first))
    assert min(tokens) >= 256
    assert max(tokens) < VOCABULARY - 1


@asynccontextmanager
async def answering(
    *, too_few: int = 0, prompts: list[tuple[int, ...]] | None = None
) -> AsyncIterator[tuple[Client, aiohttp.ClientSession]]:
    """Run a server whose answers are one token per letter; yield a client of it. It notes what prompts it gets."""

    async def complete(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if prompts is not None:
            prompts.append(tuple(body["prompt"]))
        response = web.StreamResponse()
        await response.prepare(request)
        count = body["max_tokens"] - too_few
        for _ in range(count):
            await response.write(b'data: {"choices": [{"text": "a"}]}\n\n')
        usage = f'data: {{"choices": [], "usage": {{"completion_tokens": {count}}}}}\n\n'
        await response.write(usage.encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    application = web.Application()
    application.router.add_post("/v1/completions", complete)
    async with TestServer(application) as server, aiohttp.ClientSession() as session:
        yield Client(str(server.make_url("/v1")), VOCABULARY), session


async def test_a_load_reckons_with_all_requests() -> None:
    async with answering() as (client, session):
        found = await client.load(session, 20)
        turn = await client.second_turn(session)
    requests = requests_of(20, VOCABULARY)
    assert found["tokens_out"] == sum(output for _, output in requests)
    assert found["tokens_in"] == sum(len(prompt) for prompt, _ in requests)
    assert 0 < found["ttft_p50_ms"] <= found["ttft_p99_ms"]
    assert set(turn) == {"first_ttft_ms", "second_ttft_ms"}


async def test_a_load_that_is_made_again_has_the_same_lengths_and_no_prompt_that_a_server_may_have_kept() -> (
    None
):
    prompts: list[tuple[int, ...]] = []
    async with answering(prompts=prompts) as (client, session):
        first = await client.load(session, 20)
        second = await client.load(session, 20)
    assert [first[name] for name in ("tokens_in", "tokens_out")] == [
        second[name] for name in ("tokens_in", "tokens_out")
    ]
    assert len({prompt[:16] for prompt in prompts}) == 40


async def test_many_requests_are_all_answered_and_memory_is_asked_twice() -> None:
    held = iter([100.0, 103.5])
    async with answering() as (client, session):
        found = await client.many(session, lambda: next(held), 40)
    assert found["grown_mb"] == 3.5
    assert found["tokens_per_second"] > 0
    async with answering(too_few=1) as (client, session):
        with pytest.raises(BadAnswer):
            await client.many(session, lambda: 0.0, 40)


async def test_too_few_tokens_are_no_speed() -> None:
    async with answering(too_few=1) as (client, session):
        with pytest.raises(BadAnswer, match="came instead of"):
            await client.load(session, 1)


def test_each_token_of_a_vocabulary_is_made_of_two_before_it() -> None:
    tokens, merges = vocabulary(20_000)
    assert len(tokens) == len(set(tokens)) == 20_000
    assert tokens[-1] == END
    assert len(merges) == 20_000 - 257
    seen = set(tokens[:256])
    for (first, second), made in zip(merges, tokens[256:-1], strict=True):
        assert {first, second} <= seen
        assert first + second == made
        assert made.isalpha()
        seen.add(made)


def test_names_of_tensors_are_those_of_gguf() -> None:
    assert name_of("model.embed_tokens.weight") == "token_embd.weight"
    assert name_of("model.layers.12.self_attn.q_proj.bias") == "blk.12.attn_q.bias"
    assert name_of("model.layers.0.post_attention_layernorm.weight") == "blk.0.ffn_norm.weight"
    assert name_of("lm_head.weight") == "output.weight"


def test_rows_of_a_head_are_turned_with_their_neighbours() -> None:
    torch = pytest.importorskip("torch")
    rows = torch.arange(12).view(12, 1)  # two heads of 6: first halves 0 to 2 and 6 to 8
    assert in_pairs(rows, 2).flatten().tolist() == [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]
