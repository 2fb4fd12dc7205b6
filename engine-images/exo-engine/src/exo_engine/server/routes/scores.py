"""POST /score and /rerank, and the same under /v1 (and Cohere's /v2): how well pairs of texts fit.

A cross-encoder scores each pair by itself; a model that embeds gives the cosine of their vectors.
"""

from __future__ import annotations

import asyncio
import operator
from array import array
from collections.abc import Sequence
from typing import Any, Literal

from aiohttp import web

from exo_engine.server.api_errors import bad_request
from exo_engine.server.fields import Fields
from exo_engine.server.known_fields import RERANK, SCORE, check_fields
from exo_engine.server.pooling import (
    Cutting,
    Pooling,
    PoolingOptions,
    Text,
    check_length,
    check_num_texts,
    pooling_of,
    read_cutting,
    read_options,
    tokenize,
)
from exo_engine.server.request_size import check_num_tokens
from exo_engine.server.routes.long_answers import send_items
from exo_engine.server.routes.requests import note_usage, read_request
from exo_engine.server.service import Service
from exo_engine.tokenizer.wrapping import cut

PAIRS = (
    ("text_1", "text_2"),
    ("queries", "documents"),
    ("queries", "items"),
    ("data_1", "data_2"),
)
"""Names that vLLM has for the two sides."""


async def create_scores(request: web.Request, service: Service) -> web.StreamResponse:
    """Answer one request for scores."""
    fields = await read_request(request, service)
    check_fields(fields, SCORE)
    model = service.check_model(fields)
    names, first, second = read_pairs(fields)
    scoring = Scoring(service, fields, names)
    await scoring.read(first, second)
    with note_usage(request, scoring.usage):
        scores = await scoring.run()
    data = (
        {"index": index, "object": "score", "score": score} for index, score in enumerate(scores)
    )
    head = {
        "id": f"score-{request['id']}",
        "object": "list",
        "created": service.now(),
        "model": model,
        "usage": scoring.usage(),
    }
    return await send_items(request, head, "data", data, service.readers)


async def create_ranking(request: web.Request, service: Service) -> web.StreamResponse:
    """Answer one request for documents in order."""
    fields = await read_request(request, service)
    check_fields(fields, RERANK)
    model = service.check_model(fields)
    query, documents, num_shown = read_ranking(fields)
    has_documents = fields.boolean("return_documents", True)
    scoring = Scoring(service, fields, ("query", "documents"))
    await scoring.read([query], documents)
    with note_usage(request, scoring.usage):
        scores = await scoring.run()
    best = sorted(range(len(scores)), key=lambda index: -scores[index])[:num_shown]
    results = (
        {"index": index, "relevance_score": scores[index]}
        | ({"document": {"text": documents[index]}} if has_documents else {})
        for index in best
    )
    head = {"id": f"rerank-{request['id']}", "model": model, "usage": scoring.usage()}
    return await send_items(request, head, "results", results, service.readers)


def read_pairs(fields: Fields) -> tuple[tuple[str, str], list[str], list[str]]:
    """Read both sides of a request for scores: their names, and one text for all or one for each.

    Raises:
        ApiError: they are none, or do not go together.
    """
    names = _sides(fields)
    first, second = (_read_side(fields, name) for name in names)
    if len(first) not in (1, len(second)):
        raise bad_request(
            f"{names[0]} must be one text or as many as {names[1]}, got {len(first)} and {len(second)}",
            names[0],
        )
    return names, first, second


def read_ranking(fields: Fields) -> tuple[str, list[str], int]:
    """Read query, documents and how many of these are wanted.

    Raises:
        ApiError: one of them is none.
    """
    query = fields.string("query")
    if query is None:
        raise fields.wrong("query", "a string")
    documents = _read_side(fields, "documents")
    return query, documents, fields.integer("top_n", 0, minimum=0) or len(documents)


class Scoring:
    """The pairs of one request."""

    def __init__(self, service: Service, fields: Fields, names: tuple[str, str]) -> None:
        self._service = service
        self._names = names
        self._cutting = read_cutting(fields, service)
        self._options = read_options(fields, service)
        self._most = [
            fields.integer(f"max_tokens_per_{side}", minimum=0) or None for side in ("query", "doc")
        ]
        self._is_cross = pooling_of(service).task == "score"
        self._num_first = 0
        self._pooling: Pooling | None = None

    async def read(self, first: list[str], second: list[str]) -> None:
        """Tokenize both sides, and queue up.

        Raises:
            ApiError: a text does not fit, or too many requests wait.
        """
        self._num_first = len(first)
        ones = await self._tokens(first, 0)
        others = await self._tokens(second, 1)
        check_num_tokens(self._count(ones, others), self._names[1])
        texts = self._pairs(ones, others) if self._is_cross else self._singles([*ones, *others])
        is_first_longer = max(map(len, ones)) > max(map(len, others))
        for each in texts:
            longer = self._names[0 if is_first_longer else 1]
            check_length(len(each.token_ids), self._service, longer)
        # Vectors are compared by their angle, so they have length 1 in any case.
        is_activated = self._options.is_activated or not self._is_cross
        options = PoolingOptions(is_activated, priority=self._options.priority)
        self._pooling = Pooling(self._service, texts, options)

    def usage(self) -> dict[str, Any]:
        """Return the token counts."""
        assert self._pooling is not None, "`read` comes first"
        return self._pooling.usage()

    async def run(self) -> list[float]:
        """Return a score per pair."""
        assert self._pooling is not None, "`read` comes first"
        found = await self._pooling.run()
        if self._is_cross:
            return [each[0] for each in found]
        ones, others = found[: self._num_first], found[self._num_first :]
        scores = []
        for pair in zip(_spread(ones, len(others)), others, strict=True):
            scores.append(_product(*pair))
            await asyncio.sleep(0)  # other requests get on
        return scores

    async def _tokens(self, texts: list[str], side: Literal[0, 1]) -> list[list[int]]:
        """Return the tokens of one side, cut to its own limit."""
        most, cutting = self._most[side], self._cutting
        if most is not None and cutting.most is None:  # then a text need not fit as it is
            cutting = Cutting(self._service.max_model_len, cutting.side)
        found = await tokenize(texts, cutting, self._service, self._names[side])
        return found if most is None else [list(cut(each, most, "right")) for each in found]

    def _count(self, ones: list[list[int]], others: list[list[int]]) -> int:
        """Return how many tokens the texts have at most, before any is made."""
        longest = self._cutting.most or self._service.max_model_len + 1
        if not self._is_cross:
            return sum(min(len(each), longest) for each in (*ones, *others))
        pairs = zip(_spread(ones, len(others)), others, strict=True)
        return sum(min(len(first) + len(second), longest) for first, second in pairs)

    def _pairs(self, ones: list[list[int]], others: list[list[int]]) -> list[Text]:
        wrapping = self._service.text.tokenizer.wrapping
        pairs = zip(_spread(ones, len(others)), others, strict=True)
        most, side = self._cutting.most, self._cutting.side
        return [Text(*wrapping.two(*pair, most, side)) for pair in pairs]

    def _singles(self, texts: list[list[int]]) -> list[Text]:
        wrapping = self._service.text.tokenizer.wrapping
        return [Text(wrapping.one(each, self._cutting.most, self._cutting.side)) for each in texts]


def _sides(fields: Fields) -> tuple[str, str]:
    """Return under which names the two sides are."""
    found = {name for pair in PAIRS for name in pair if fields.has(name)}
    for pair in PAIRS:
        if found == set(pair):
            return pair
    known = " or ".join(" and ".join(pair) for pair in PAIRS)
    raise bad_request(
        f"the two sides must be {known}, got {', '.join(sorted(found)) or 'none'}", "text_1"
    )


def _read_side(fields: Fields, name: str) -> list[str]:
    """Read one text or a list of them; each may be an object with `text`, as Jina's and Cohere's have it."""
    value = fields.values.get(name)
    items = value if isinstance(value, list) else [value]
    texts = [_text_of(each) for each in items]
    plain = [each for each in texts if isinstance(each, str)]
    if len(plain) < len(texts) or not plain:
        raise fields.wrong(name, "a string, or a list of strings or of objects with text alone")
    check_num_texts(len(plain), name)
    return plain


def _text_of(item: Any) -> Any:
    return item["text"] if isinstance(item, dict) and item.keys() == {"text"} else item


def _spread(ones: list[Any], number: int) -> Sequence[Any]:
    return ones * number if len(ones) == 1 else ones


def _product(first: array[float], second: array[float]) -> float:
    return float(sum(map(operator.mul, first, second)))
