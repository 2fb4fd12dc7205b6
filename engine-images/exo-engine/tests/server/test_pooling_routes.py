"""Embeddings and scores over HTTP: what real clients send, what is refused, and what is counted."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from array import array
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import httpx
import openai
import pytest
import tokenizers
import torch
from exo_engine.core.pooling.requests import PoolingRequest
from exo_engine.server.pooling import MAX_TEXTS, Pooling, PoolingOptions, Text
from exo_engine.server.routes import scores

from .conftest import MODEL, Engine
from .pooling.tiny_models import TinyPooling, write_embedder, write_scorer

TEXTS = ["w1 w2 w3", "w4", "w5 w6 w7 w8 w9 w10"]


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> TinyPooling:
    return write_embedder(tmp_path_factory.mktemp("embedder"), "bert-mean")


@pytest.fixture(scope="module")
def scorer(tmp_path_factory: pytest.TempPathFactory) -> TinyPooling:
    return write_scorer(tmp_path_factory.mktemp("scorer"), "bert")


@pytest.fixture(scope="module")
def embedding(tmp_path_factory: pytest.TempPathFactory, embedder: TinyPooling) -> Iterator[Engine]:
    engine = Engine(tmp_path_factory.mktemp("embedding"), embedder.path)
    try:
        yield engine.wait_ready()
    finally:
        engine.close()


@pytest.fixture(scope="module")
def scoring(tmp_path_factory: pytest.TempPathFactory, scorer: TinyPooling) -> Iterator[Engine]:
    engine = Engine(tmp_path_factory.mktemp("scoring"), scorer.path)
    try:
        yield engine.wait_ready()
    finally:
        engine.close()


def encode(model: TinyPooling, *texts: str) -> tokenizers.Encoding:
    return tokenizers.Tokenizer.from_file(str(model.path / "tokenizer.json")).encode(*texts)


def vector_of(model: TinyPooling, token_ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return torch.nn.functional.normalize(model.vector(token_ids), dim=0)


def post(engine: Engine, path: str, **body: Any) -> dict[str, Any]:
    answer = engine.http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def refusal(engine: Engine, path: str, **body: Any) -> dict[str, Any]:
    answer = engine.http.post(path, json=body)
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


@pytest.mark.parametrize("form", ["float", "base64", None])
def test_openai_client_gets_the_vectors(
    embedding: Engine, embedder: TinyPooling, form: str | None
) -> None:
    options = {} if form is None else {"encoding_format": form}
    answer = embedding.openai.embeddings.create(model=MODEL, input=TEXTS, **options)
    assert [each.index for each in answer.data] == [0, 1, 2]
    num_tokens = 0
    for text, each in zip(TEXTS, answer.data, strict=True):
        ids = encode(embedder, text).ids
        num_tokens += len(ids)
        found = each.embedding
        if isinstance(found, str):
            found = struct.unpack("<48f", base64.b64decode(found))
        torch.testing.assert_close(
            torch.tensor(found), vector_of(embedder, ids), rtol=1e-3, atol=1e-5
        )
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == num_tokens
    assert answer.model == MODEL


@pytest.mark.parametrize("form", ["float", "base64"])
def test_long_answer_comes_in_pieces_and_is_the_same(embedding: Engine, form: str) -> None:
    body = {"input": ["w1"] * MAX_TEXTS, "encoding_format": form}
    answer = embedding.http.post("/v1/embeddings", json=body)
    short = embedding.http.post("/v1/embeddings", json={**body, "input": ["w1"]})
    assert "Content-Length" in short.headers
    assert "Content-Length" not in answer.headers, "it was not built as a whole"
    for name in ("Content-Type", "Server"):
        assert answer.headers[name] == short.headers[name]
    assert answer.headers["X-Request-Id"]
    assert answer.text.index('"usage"') < answer.text.index('"data"')
    assert answer.text == json.dumps(answer.json(), ensure_ascii=False)
    found = answer.json()
    assert [each["index"] for each in found["data"]] == list(range(MAX_TEXTS))
    assert found["usage"]["prompt_tokens"] == 3 * MAX_TEXTS
    assert found.keys() == short.json().keys()


def test_usage_stands_ahead_of_what_is_long(scoring: Engine) -> None:
    """Whoever counts has it although the client leaves before the end."""
    body = {"query": "w1", "documents": ["w2 " * 60] * 600, "text_1": "w1", "text_2": ["w2"] * 900}
    for path, name, fields in (
        ("/rerank", "results", ("query", "documents")),
        ("/score", "data", ("text_1", "text_2")),
    ):
        answer = scoring.http.post(path, json={each: body[each] for each in fields})
        assert answer.text.index('"usage"') < answer.text.index(f'"{name}"')
        assert len(answer.json()[name]) >= 600
        assert "Content-Length" not in answer.headers or len(answer.content) < 1 << 16


def test_every_form_of_input_is_taken(embedding: Engine, embedder: TinyPooling) -> None:
    ids = encode(embedder, TEXTS[0]).ids
    forms = [TEXTS[0], [TEXTS[0]], ids, [ids]]
    vectors = [
        post(embedding, "/v1/embeddings", input=each)["data"][0]["embedding"] for each in forms
    ]
    for vector in vectors[1:]:
        assert vector == pytest.approx(vectors[0], abs=1e-6)


def test_dimensions_cut_a_vector_of_length_1(embedding: Engine) -> None:
    answer = embedding.openai.embeddings.create(model=MODEL, input="w1", dimensions=6)
    vector = torch.tensor(answer.data[0].embedding)
    assert vector.shape == (6,)
    assert float(vector.norm()) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("side", ["right", "left", None])
def test_long_text_is_cut_as_transformers_cuts_it(
    embedding: Engine, embedder: TinyPooling, side: str | None
) -> None:
    words = " ".join(f"w{index % 90}" for index in range(400))
    ids = encode(embedder, words).ids[1:-1]
    kept = ids[-8:] if side == "left" else ids[:8]
    body = {"input": words, "truncate_prompt_tokens": 10, "truncation_side": side}
    answer = post(embedding, "/v1/embeddings", **body)
    assert answer["usage"]["prompt_tokens"] == 10
    expected = vector_of(embedder, [2, *kept, 3])
    found = torch.tensor(answer["data"][0]["embedding"])
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)
    whole = post(embedding, "/v1/embeddings", input=words, truncate_prompt_tokens=-1)
    assert whole["usage"]["prompt_tokens"] == 130


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({}, "input", "invalid_value"),
        ({"input": []}, "input", "invalid_value"),
        ({"input": [1, "w1"]}, "input", "invalid_value"),
        ({"input": [[1], [10**6]]}, "input", "invalid_value"),
        ({"input": [[]]}, "input", "invalid_value"),
        ({"input": ["w1"] * (MAX_TEXTS + 1)}, "input", "invalid_value"),
        ({"input": "w1 " * 129}, "input", "context_length_exceeded"),
        (
            {"input": "w1 " * 400_000, "truncate_prompt_tokens": 9},
            "input",
            "invalid_value",
        ),
        ({"input": "w1", "dimensions": 49}, "dimensions", "invalid_value"),
        ({"input": "w1", "encoding_format": "bytes"}, "encoding_format", "invalid_value"),
        ({"input": "w1", "truncate_prompt_tokens": 2}, "truncate_prompt_tokens", "invalid_value"),
        ({"input": "w1", "truncate_prompt_tokens": 131}, "truncate_prompt_tokens", "invalid_value"),
        ({"input": "w1", "truncation_side": "middle"}, "truncation_side", "invalid_value"),
        ({"input": "w1", "embed_dtype": "float16"}, "embed_dtype", "unsupported_parameter"),
        ({"input": "w1", "messages": [{}]}, "messages", "unsupported_parameter"),
        ({"input": "w1", "normalize": True}, "normalize", "unsupported_parameter"),
        ({"input": "w1", "dimension": 3}, "dimension", "unknown_parameter"),
    ],
)
def test_what_cannot_be_embedded_is_refused_with_its_field(
    embedding: Engine, body: dict[str, Any], param: str, code: str
) -> None:
    error = refusal(embedding, "/v1/embeddings", **body)
    assert (error["param"], error["code"]) == (param, code)


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
@pytest.mark.parametrize(
    ("one", "other"),
    [("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2")],
)
def test_scores_are_those_of_the_cross_encoder(
    scoring: Engine, scorer: TinyPooling, path: str, one: str, other: str
) -> None:
    answer = post(scoring, path, **{one: TEXTS[0], other: TEXTS})
    assert [each["index"] for each in answer["data"]] == [0, 1, 2]
    num_tokens = 0
    for text, each in zip(TEXTS, answer["data"], strict=True):
        pair = encode(scorer, TEXTS[0], text)
        num_tokens += len(pair.ids)
        with torch.inference_mode():
            logit = scorer.logit(pair.ids, pair.type_ids.index(1))
        assert each["score"] == pytest.approx(float(torch.tensor(logit).sigmoid()), abs=1e-4)
    assert answer["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens}


def test_pairs_of_as_many_texts_are_scored_one_by_one(scoring: Engine) -> None:
    ones, others = TEXTS, TEXTS[::-1]
    both = post(scoring, "/score", text_1=ones, text_2=others)["data"]
    alone = [
        post(scoring, "/score", text_1=first, text_2=second)["data"][0]["score"]
        for first, second in zip(ones, others, strict=True)
    ]
    assert [each["score"] for each in both] == pytest.approx(alone, abs=1e-5)


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_documents_come_best_first(scoring: Engine, path: str) -> None:
    scores = post(scoring, "/score", text_1="w1 w2", text_2=TEXTS)["data"]
    expected = sorted(scores, key=lambda each: -each["score"])
    documents = [TEXTS[0], {"text": TEXTS[1]}, TEXTS[2]]
    answer = post(scoring, path, query="w1 w2", documents=documents, model=MODEL)
    assert [each["index"] for each in answer["results"]] == [each["index"] for each in expected]
    found = [each["relevance_score"] for each in answer["results"]]
    assert found == pytest.approx([each["score"] for each in expected], abs=1e-5)
    assert all(each["document"] == {"text": TEXTS[each["index"]]} for each in answer["results"])
    best = post(scoring, path, query="w1 w2", documents=documents, top_n=1, return_documents=False)[
        "results"
    ]
    assert len(best) == 1
    assert "document" not in best[0]


def test_longer_text_of_a_pair_is_cut_as_transformers_cuts_it(
    scoring: Engine, scorer: TinyPooling
) -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(scorer.path / "tokenizer.json"))
    tokenizer.enable_truncation(12)
    query, document = "w1 w2 w3", " ".join(f"w{index % 90}" for index in range(300))
    pair = tokenizer.encode(query, document)
    with torch.inference_mode():
        logit = scorer.logit(pair.ids, pair.type_ids.index(1))
    body = {"text_1": query, "text_2": document, "truncate_prompt_tokens": 12}
    answer = post(scoring, "/score", **body, use_activation=False)
    assert answer["usage"]["prompt_tokens"] == len(pair.ids) == 12
    assert answer["data"][0]["score"] == pytest.approx(logit, abs=1e-3)


@pytest.mark.parametrize(
    ("query", "doc", "num_tokens"), [(0, 5, 9 + 5), (4, 0, 4 + 40), (4, 5, 4 + 5), (0, 70, 9 + 40)]
)
def test_query_and_document_may_have_limits_of_their_own(
    scoring: Engine, query: int, doc: int, num_tokens: int
) -> None:
    limits = {"max_tokens_per_query": query, "max_tokens_per_doc": doc}
    texts = {"query": " ".join(["w2"] * 9), "documents": " ".join(["w1"] * 40)}
    ranked = post(scoring, "/v2/rerank", **texts, **limits)
    assert ranked["usage"]["prompt_tokens"] == num_tokens + 3
    texts["queries"] = texts.pop("query")
    scored = post(scoring, "/score", **texts, **limits)
    assert scored["usage"]["prompt_tokens"] == num_tokens + 3
    assert scored["data"][0]["score"] == pytest.approx(ranked["results"][0]["relevance_score"])


@pytest.mark.parametrize("side", ["query", "doc"])
def test_side_of_a_pair_with_a_limit_of_its_own_may_be_too_long_for_the_model(
    scoring: Engine, side: str
) -> None:
    long, limit = " ".join(["w1"] * 300), {f"max_tokens_per_{side}": 5}
    name, other = ("queries", "documents") if side == "query" else ("documents", "queries")
    answer = post(scoring, "/score", **limit, **{name: long, other: "w2"})
    assert answer["usage"]["prompt_tokens"] == 1 + 5 + 3
    assert refusal(scoring, "/score", **limit, **{name: "w2", other: long})["param"] == other


def test_model_that_embeds_scores_by_the_cosine(embedding: Engine) -> None:
    found = post(embedding, "/score", text_1=TEXTS[0], text_2=TEXTS)["data"]
    vectors = post(embedding, "/v1/embeddings", input=TEXTS)["data"]
    rows = torch.tensor([each["embedding"] for each in vectors])
    expected = (rows @ rows[0]).tolist()
    assert [each["score"] for each in found] == pytest.approx(expected, abs=1e-5)
    assert found[0]["score"] == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/score", {"text_1": "w1"}, "text_1"),
        ("/score", {"text_1": "w1", "documents": ["w1"]}, "text_1"),
        ("/score", {"text_1": ["w1", "w2"], "text_2": ["w1"]}, "text_1"),
        ("/score", {"text_1": "w1", "text_2": [{"image": "x"}]}, "text_2"),
        ("/score", {"text_1": "w1", "text_2": []}, "text_2"),
        ("/score", {"text_1": "w1", "text_2": "w1 " * 140}, "text_2"),
        ("/rerank", {"documents": ["w1"]}, "query"),
        ("/rerank", {"query": "w1"}, "documents"),
        ("/rerank", {"query": "w1", "documents": ["w1"] * (MAX_TEXTS + 1)}, "documents"),
        ("/rerank", {"query": "w1", "documents": ["w1"], "top_n": -1}, "top_n"),
        (
            "/score",
            {"text_1": "w1", "text_2": "w1", "max_tokens_per_query": -1},
            "max_tokens_per_query",
        ),
        ("/rerank", {"query": "w1", "documents": ["w1"], "rank_fields": ["a"]}, "rank_fields"),
    ],
)
def test_what_cannot_be_scored_is_refused_with_its_field(
    scoring: Engine, path: str, body: dict[str, Any], param: str
) -> None:
    assert refusal(scoring, path, **body)["param"] == param


def test_each_kind_of_model_says_what_it_is_for(
    engine: Engine, embedding: Engine, scoring: Engine
) -> None:
    chat = {"messages": [{"role": "user", "content": "x"}]}
    for running, path, body, word in (
        (engine, "/v1/embeddings", {"input": "x"}, "/v1/chat/completions"),
        (engine, "/v1/rerank", {"query": "x", "documents": ["x"]}, "/v1/chat/completions"),
        (embedding, "/v1/chat/completions", chat, "/v1/embeddings"),
        (embedding, "/v1/completions", {"prompt": "x"}, "/v1/embeddings"),
        (embedding, "/v1/messages", {**chat, "max_tokens": 1}, "/v1/embeddings"),
        (scoring, "/v1/embeddings", {"input": "x"}, "/v1/rerank"),
    ):
        error = running.http.post(path, json=body)
        assert error.status_code == 400
        assert word in error.json()["error"]["message"]


def test_model_is_listed_and_tokenizes(embedding: Engine) -> None:
    assert embedding.openai.models.retrieve(MODEL).max_model_len == 130
    assert post(embedding, "/tokenize", prompt="w1 w2")["tokens"] == [2, 7, 8, 3]
    measured = embedding.http.get("/measurements").json()
    assert (measured["num_kv_blocks"], measured["kv_capacity_tokens"]) == (0, 0)
    with pytest.raises(openai.NotFoundError):
        embedding.openai.embeddings.create(model="another", input="x")


def test_texts_and_tokens_are_counted(embedding: Engine) -> None:
    before = embedding.metric("vllm:prompt_tokens_total")
    done = embedding.metric("vllm:request_success_total", finished_reason="stop")
    queued = embedding.metric("vllm:request_queue_time_seconds_count")
    answer = post(embedding, "/v1/embeddings", input=TEXTS)
    after = embedding.metric("vllm:prompt_tokens_total")
    assert after - before == answer["usage"]["prompt_tokens"]
    assert embedding.metric("vllm:request_success_total", finished_reason="stop") - done == 3
    assert embedding.metric("vllm:request_queue_time_seconds_count") - queued == 3
    seconds = [
        embedding.metric(f"vllm:{name}_seconds_sum")
        for name in ("request_queue_time", "request_prefill_time", "e2e_request_latency")
    ]
    assert seconds[0] + seconds[1] <= seconds[2]


async def test_300_requests_at_once_are_answered_alike(embedding: Engine) -> None:
    expected = post(embedding, "/v1/embeddings", input=TEXTS[2])["data"][0]["embedding"]
    body = {"input": [TEXTS[2], TEXTS[0]]}
    connector = aiohttp.UnixConnector(str(embedding.socket))
    async with aiohttp.ClientSession("http://engine", connector=connector) as client:

        async def ask() -> Any:
            async with client.post("/v1/embeddings", json=body) as answer:
                assert answer.status == 200
                return (await answer.json())["data"][0]["embedding"]

        found = torch.tensor(await asyncio.gather(*(ask() for _ in range(300))))
    torch.testing.assert_close(found, torch.tensor([expected] * 300), rtol=1e-6, atol=1e-5)
    assert embedding.metric("vllm:num_requests_waiting") == 0


async def test_texts_of_a_client_that_left_are_dropped(embedding: Engine) -> None:
    aborted = embedding.metric("vllm:request_success_total", finished_reason="abort")
    transport = httpx.AsyncHTTPTransport(uds=str(embedding.socket))
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
        body = {"input": [" ".join(["w1"] * 120)] * MAX_TEXTS}
        leaving = asyncio.create_task(client.post("/v1/embeddings", json=body, timeout=60))
        await asyncio.to_thread(
            embedding.wait_until, lambda: embedding.metric("vllm:num_requests_waiting") > 0
        )
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
    embedding.wait_until(lambda: embedding.metric("vllm:num_requests_waiting") == 0)
    assert embedding.metric("vllm:request_success_total", finished_reason="abort") > aborted
    assert post(embedding, "/v1/embeddings", input="w1")


def test_generating_model_embeds_where_it_is_told_to(start_engine: Any, model_dir: Path) -> None:
    running = start_engine("--runner", "pooling", "--pooler-config", '{"pooling_type": "MEAN"}')
    vector = post(running.wait_ready(), "/v1/embeddings", input="The quick brown fox")
    assert len(vector["data"][0]["embedding"]) == 32


@pytest.mark.slow  # `pooling/test_pooling_settings.py` has the refusal of every such flag, without a start
def test_flag_for_another_kind_of_step_is_refused(start_engine: Any, embedder: TinyPooling) -> None:
    running = start_engine("--batch-invariant", model=embedder.path)
    assert running.wait_exit() == 78
    assert "--batch-invariant" in running.last_line
    assert json.loads((embedder.path / "config.json").read_text())["model_type"] == "bert"


def test_texts_of_one_request_are_a_group_and_those_of_another_are_another() -> None:
    """Groups take turns in the core."""
    made: list[PoolingRequest] = []
    names = iter(("first", "second"))
    service: Any = SimpleNamespace(
        check_queue=lambda number: None,
        new_id=lambda: next(names),
        link=None,
        metrics=SimpleNamespace(observe_request=lambda number: None),
    )
    for _ in range(2):
        pooling = Pooling(service, [Text([5]), Text([6])], PoolingOptions(is_activated=True))
        made += pooling._requests.values()
    assert [each.group for each in made] == ["first", "first", "second", "second"]


async def test_others_get_on_between_cosines(monkeypatch: pytest.MonkeyPatch) -> None:
    """2,048 of them, of vectors of 4,096 numbers, take a third of a second."""
    turns: list[str] = []

    async def vectors() -> list[array[float]]:
        return [array("f", (1.0,))] * 4

    def note(*pair: array[float]) -> float:
        turns.append("pair")
        return 1.0

    async def other() -> None:
        for _ in range(3):
            turns.append("other")
            await asyncio.sleep(0)

    scoring = object.__new__(scores.Scoring)
    scoring._is_cross, scoring._num_first = False, 1
    scoring._pooling = SimpleNamespace(run=vectors)
    monkeypatch.setattr(scores, "_product", note)
    await asyncio.gather(scoring.run(), other())
    assert turns == ["pair", "other"] * 3
