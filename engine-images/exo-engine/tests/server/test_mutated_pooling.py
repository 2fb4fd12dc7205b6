"""Bodies for models that embed or score, with something wrong in them: read, or refused with a field."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from exo_engine.server import request_size
from exo_engine.server.api_errors import ApiError
from exo_engine.server.fields import Fields
from exo_engine.server.known_fields import (
    CLASSIFY,
    EMBEDDINGS,
    POOLING,
    RERANK,
    SCORE,
    check_fields,
)
from exo_engine.server.messages import CoreInfo, PoolingInfo
from exo_engine.server.pooling import read_cutting, read_options, read_texts
from exo_engine.server.routes.embeddings import read_form
from exo_engine.server.routes.pooled import _check_task
from exo_engine.server.routes.scores import Scoring, read_pairs, read_ranking
from exo_engine.server.telemetry.metrics import Metrics
from exo_engine.tokenizer import Tokenizer

from .pooling.tiny_models import write_tokenizer
from .test_mutated_requests import few_or_all, mutated, refusal

Read = Callable[[Fields, Any], Awaitable[object]]


class FakeService:
    """What reading needs of a server; texts are tokenized by words."""

    max_model_len = 50
    vocabulary_size = 90

    def __init__(self, directory: Path, task: str) -> None:
        write_tokenizer(directory)
        self.text = SimpleNamespace(tokenizer=Tokenizer(directory))
        self.metrics = Metrics("m")
        found = PoolingInfo(task, 8, None, is_activated=True, lowers_case=True)
        info = CoreInfo(90, 50, 4, 0, 16, "float32", "cpu", 0.9, False, pooling=found)
        self.link = SimpleNamespace(info=info)

    async def encode_all(self, texts: Sequence[str], **_: Any) -> list[list[int]]:
        return [[5] * len(each.split()) for each in texts]

    def check_queue(self, number: int) -> None:
        assert number > 0

    def new_id(self) -> str:
        return "x"


async def embeddings(fields: Fields, service: Any) -> object:
    check_fields(fields, EMBEDDINGS)
    read_options(fields, service)
    return await read_texts(fields, read_cutting(fields, service), service)


async def score(fields: Fields, service: Any) -> object:
    check_fields(fields, SCORE)
    names, first, second = read_pairs(fields)
    return await Scoring(service, fields, names).read(first, second)


async def rerank(fields: Fields, service: Any) -> object:
    check_fields(fields, RERANK)
    query, documents, _ = read_ranking(fields)
    return await Scoring(service, fields, ("query", "documents")).read([query], documents)


async def pooling(fields: Fields, service: Any) -> object:
    check_fields(fields, POOLING)
    _check_task(fields, service)
    read_form(fields)
    read_options(fields, service)
    return await read_texts(fields, read_cutting(fields, service), service)


async def classify(fields: Fields, service: Any) -> object:
    check_fields(fields, CLASSIFY)
    read_options(fields, service)
    return await read_texts(fields, read_cutting(fields, service), service)


COMMON = {
    "truncate_prompt_tokens": 20, "truncation_side": "left", "priority": 1, "use_activation": False, "user": "u",
    "padding": "do_not_pad",
}  # fmt: skip
BODIES: dict[str, tuple[Read, str, dict[str, Any]]] = {
    "texts": (
        embeddings,
        "embed",
        {**COMMON, "input": ["a b", "c"], "dimensions": 4, "add_special_tokens": True},
    ),
    "tokens": (embeddings, "embed", {**COMMON, "input": [[1, 2, 3], [4]], "dimensions": 4}),
    "pooling": (
        pooling,
        "embed",
        {**COMMON, "input": ["a b", "c"], "task": "embed", "encoding_format": "base64"},
    ),
    "classify": (classify, "classify", {**COMMON, "input": "a b", "add_special_tokens": False}),
    "score": (score, "score", {**COMMON, "text_1": ["a b", "b"], "text_2": ["c", {"text": "d e"}]}),
    "cosine": (score, "embed", {**COMMON, "queries": "a b", "documents": ["c", {"text": "d e"}]}),
    "rerank": (
        rerank,
        "score",
        {
            **COMMON,
            "query": "a",
            "documents": ["b", {"text": "c d"}],
            "top_n": 1,
            "return_documents": True,
            "max_tokens_per_doc": 3,
        },
    ),
}


@few_or_all
@pytest.mark.parametrize("name", BODIES)
def test_mutated_bodies_are_read_or_refused(tmp_path: Path, name: str, num: int) -> None:
    read, task, body = BODIES[name]
    service = FakeService(tmp_path, task)
    rng = random.Random(17)
    with asyncio.Runner() as runner:

        def read_now(fields: Fields) -> object:
            return runner.run(read(fields, service))

        assert refusal(read_now, body) is None
        refusals = [refusal(read_now, mutated(body, rng)) for _ in range(num)]
    refused = [each for each in refusals if each is not None]
    assert all(each.status == 400 and each.message and each.param for each in refused)
    assert num / 4 < len(refused) < num


@pytest.mark.parametrize(
    ("read", "task", "body", "param"),
    [
        (embeddings, "embed", {"input": ["a " * 10] * 4}, "input"),
        (embeddings, "embed", {"input": [[5] * 10] * 4}, "input"),
        (rerank, "score", {"query": "a " * 10, "documents": ["b"] * 4}, "documents"),
        (rerank, "embed", {"query": "a", "documents": ["b " * 10] * 4}, "documents"),
    ],
)
async def test_texts_of_a_request_are_bounded_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Read, task: str, body: Any, param: str
) -> None:
    """A query counts once for each document: a small request would be tens of millions of tokens."""
    service: Any = FakeService(tmp_path, task)
    await read(Fields(body), service)
    monkeypatch.setattr(request_size, "MAX_TOKENS", 39)
    with pytest.raises(ApiError, match="at most 39 tokens together") as refused:
        await read(Fields(body), service)
    assert refused.value.param == param
