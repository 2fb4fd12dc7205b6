"""Bodies that are almost right, sent to the routes of models that embed, score and tell labels: answered or refused."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import Engine
from .pooling.tiny_models import write_embedder, write_scorer
from .test_mutated_pooling import COMMON
from .test_mutated_requests import mutated
from .test_mutated_routes import is_refusal

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
NUM_BODIES = 1000
"""Of each route; what reads them gets more in `test_mutated_pooling.py`."""
OF_A_PAIR: dict[str, Any] = {**COMMON, "queries": "w1 w2", "documents": ["w3", {"text": "w4 w5"}]}
RANKED: dict[str, Any] = {
    **COMMON, "query": "w1", "documents": ["w2", {"text": "w3 w4"}], "top_n": 1, "return_documents": True,
    "max_tokens_per_doc": 3,
}  # fmt: skip
TEXTS: dict[str, Any] = {**COMMON, "input": ["w1 w2", "w3"]}
BODIES: list[tuple[str, str, dict[str, Any]]] = [
    ("embed", "/v1/embeddings", {**TEXTS, "add_special_tokens": True}),
    ("embed", "/v1/embeddings", {**COMMON, "input": [[1, 2, 3], [4]], "encoding_format": "base64"}),
    ("embed", "/pooling", {**TEXTS, "task": "embed", "encoding_format": "base64"}),
    ("embed", "/v1/score", OF_A_PAIR),
    ("score", "/score", OF_A_PAIR),
    ("score", "/v1/rerank", RANKED),
    ("classify", "/classify", {**TEXTS, "add_special_tokens": False}),
    ("classify", "/pooling", {**TEXTS, "task": "classify"}),
]
"""What the model does, where, and what."""


@pytest.fixture(scope="module", params=["embed", "score", "classify"])
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Engine]]:
    folder: Path = tmp_path_factory.mktemp("model")
    if request.param == "embed":
        model = write_embedder(folder, "bert-mean")
    elif request.param == "score":
        model = write_scorer(folder, "bert")
    else:
        model = write_scorer(folder, "bert", num_labels=3, id2label={0: "a", 1: "b", 2: "c"})
    started = Engine(tmp_path_factory.mktemp("engine"), model.path)
    try:
        yield request.param, started.wait_ready()
    finally:
        started.close()


def test_mutated_bodies_are_answered_or_refused(engine: tuple[str, Engine]) -> None:
    task, server = engine
    for path, body in [(path, body) for kind, path, body in BODIES if kind == task]:
        rng = random.Random(29)
        statuses: Counter[int] = Counter()
        for number in range(NUM_BODIES):
            sent = mutated(body, rng) if number else body
            answer = server.http.post(
                path, content=json.dumps(sent), headers={"Content-Type": "application/json"}
            )
            statuses[answer.status_code] += 1
            assert number or answer.status_code == 200, answer.text
            assert answer.status_code in (200, 400, 404), (answer.text[:500], sent)
            assert "internal" not in answer.text, (answer.text, sent)
            if answer.status_code != 200:
                assert is_refusal(answer.json()["error"]), (answer.text, sent)
        assert server.http.get("/health").status_code == 200
        assert statuses[200] > NUM_BODIES / 50, (path, statuses)
        assert statuses[400] > NUM_BODIES / 50, (path, statuses)
