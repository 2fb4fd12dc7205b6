"""/pooling and /classify, as vLLM's clients ask for them."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from .conftest import MODEL, Engine
from .pooling.tiny_models import TinyPooling, write_embedder, write_scorer
from .test_pooling_routes import encode, post, refusal, vector_of

TEXTS = ["w1 w2 w3", "w7", "w5 w5 w9 w11"]
LABELS = {0: "good", 1: "bad", 2: "neither"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyPooling:
    return write_scorer(tmp_path_factory.mktemp("labels"), "bert", num_labels=3, id2label=LABELS)


@pytest.fixture(scope="module")
def telling(tmp_path_factory: pytest.TempPathFactory, model: TinyPooling) -> Iterator[Engine]:
    engine = Engine(tmp_path_factory.mktemp("telling"), model.path)
    try:
        yield engine.wait_ready()
    finally:
        engine.close()


def numbers_of(model: TinyPooling, text: str) -> torch.Tensor:
    with torch.inference_mode():
        return model.oracle(torch.tensor([encode(model, text).ids])).logits[0]


def test_each_text_gets_its_label_and_the_numbers_of_all(
    telling: Engine, model: TinyPooling
) -> None:
    answer = post(telling, "/classify", model=MODEL, input=TEXTS, user="u")
    assert (answer["object"], answer["model"], answer["id"][:9]) == ("list", MODEL, "classify-")
    for index, (text, each) in enumerate(zip(TEXTS, answer["data"], strict=True)):
        expected = numbers_of(model, text).softmax(dim=0)
        assert each["probs"] == pytest.approx(expected.tolist(), abs=1e-5)
        found = (each["index"], each["label"], each["num_classes"])
        assert found == (index, LABELS[int(expected.argmax())], 3)
    num_tokens = sum(len(encode(model, each).ids) for each in TEXTS)
    assert answer["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    plain = post(telling, "/classify", input=TEXTS[0], use_activation=False)["data"][0]["probs"]
    assert plain == pytest.approx(numbers_of(model, TEXTS[0]).tolist(), abs=1e-4)


def test_pooling_gives_the_same_numbers(telling: Engine) -> None:
    labels = post(telling, "/classify", input=TEXTS)["data"]
    for task in ({}, {"task": "classify"}):
        found = post(telling, "/pooling", input=TEXTS, **task)["data"]
        assert [each["object"] for each in found] == ["pooling"] * 3
        for pooled, label in zip(found, labels, strict=True):  # texts may be batched otherwise
            assert pooled["data"] == pytest.approx(label["probs"], abs=1e-5)


def test_pooling_of_a_model_that_embeds_is_its_vectors(start_engine: Any, tmp_path: Path) -> None:
    model = write_embedder(tmp_path / "vectors", "bert-mean")
    engine = start_engine(model=model.path).wait_ready()
    expected = vector_of(model, encode(model, TEXTS[0]).ids).tolist()
    (found,) = post(engine, "/pooling", input=TEXTS[0], task="embed")["data"]
    assert found["data"] == pytest.approx(expected, abs=1e-5)
    (found,) = post(engine, "/pooling", input=TEXTS[0], encoding_format="base64")["data"]
    numbers = struct.unpack(f"<{len(expected)}f", base64.b64decode(found["data"]))
    assert numbers == pytest.approx(expected, abs=1e-5)
    assert refusal(engine, "/pooling", input="w1", task="classify")["param"] == "task"
    error = refusal(engine, "/classify", input="w1")
    assert (error["param"], error["code"]) == ("model", "unsupported_by_model")
    assert "/v1/embeddings" in error["message"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/classify", {}, "input"),
        ("/classify", {"input": "w1", "messages": [{}]}, "messages"),
        ("/classify", {"input": "w1", "dimensions": 2}, "dimensions"),
        ("/pooling", {"input": "w1", "dimensions": 2}, "dimensions"),
        ("/pooling", {"input": "w1", "task": "token_embed"}, "task"),
        ("/pooling", {"input": "w1", "task": "embed"}, "task"),
        ("/pooling", {"input": "w1", "task": 7}, "task"),
        ("/pooling", {"data": {"a": 1}}, "data"),
        ("/pooling", {"input": "w1", "encoding_format": "bytes"}, "encoding_format"),
        ("/pooling", {"input": "w1", "embed_dtype": "float16"}, "embed_dtype"),
        ("/v1/score", {"text_1": "w1", "text_2": "w1"}, "model"),
        ("/v1/embeddings", {"input": "w1"}, "model"),
    ],
)
def test_what_cannot_be_told_is_refused_with_its_field(
    telling: Engine, path: str, body: dict[str, Any], param: str
) -> None:
    assert refusal(telling, path, **body)["param"] == param


def test_a_token_outside_of_the_vocabulary_is_told_its_size(telling: Engine) -> None:
    error = refusal(telling, "/classify", input=[[1], [10**6]])
    assert error["param"] == "input"
    assert "input has the token id 1000000, but the model's vocabulary has" in error["message"]
