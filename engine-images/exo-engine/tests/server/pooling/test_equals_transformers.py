"""Vectors and scores are those of `transformers`, whatever is computed beside them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from exo_engine.config import EngineConfig
from exo_engine.core.graphs.device import PlainOps
from exo_engine.core.pooling.core import PoolingCore
from exo_engine.core.pooling.requests import PoolingRequest
from exo_engine.models.pooling.config_file import is_pooling

from .tiny_models import EMBEDDERS, SCORERS, write_embedder, write_scorer


def core_of(path: Path, **options: object) -> PoolingCore:
    config = EngineConfig(path, device="cpu", **{"dtype": "float32", **options})
    assert is_pooling(config)
    return PoolingCore(config)


def run(core: PoolingCore, requests: Sequence[PoolingRequest]) -> list[torch.Tensor]:
    """Compute all, and return each one's numbers in the order of the requests."""
    for each in requests:
        core.add_request(each)
    found = {}
    while core.has_unfinished_requests():
        for output in core.step():
            assert output.finish_reason == "stop"
            numbers = struct.unpack(f"<{len(output.pooled) // 4}f", output.pooled)
            found[output.request_id] = torch.tensor(numbers)
    return [found[each.request_id] for each in requests]


def embed(
    core: PoolingCore, texts: Sequence[Sequence[int]], **options: object
) -> list[torch.Tensor]:
    return run(core, [PoolingRequest(str(i), tuple(e), **options) for i, e in enumerate(texts)])


@pytest.mark.parametrize(
    ("name", "budget"),
    [
        pytest.param(name, budget, id=f"{name}-{how}", marks=marks)
        for name in EMBEDDERS
        for budget, how, marks in (
            (64, "some at a time", ()),
            (1024, "all at once", (pytest.mark.slow,)),
        )
    ],
)
@torch.inference_mode()
def test_vectors_are_those_of_transformers(
    tmp_path: Path, texts: list[tuple[int, ...]], name: str, budget: int
) -> None:
    model = write_embedder(tmp_path, name)
    core = core_of(tmp_path, max_num_batched_tokens=budget)
    for text, vector in zip(texts, embed(core, texts), strict=True):
        expected = torch.nn.functional.normalize(model.vector(text), dim=0)
        cosine = torch.nn.functional.cosine_similarity(vector, expected, dim=0)
        assert float(cosine) >= 0.99999
        torch.testing.assert_close(vector, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", SCORERS)
@torch.inference_mode()
def test_scores_are_those_of_transformers(
    tmp_path: Path, texts: list[tuple[int, ...]], name: str
) -> None:
    model = write_scorer(tmp_path, name)
    core = core_of(tmp_path)
    is_told = name == "bert"
    pairs = [(text, len(text) // 2 if is_told else None) for text in texts]
    requests = [PoolingRequest(str(i), *pair) for i, pair in enumerate(pairs)]
    raw = [PoolingRequest(str(i), *pair, is_activated=False) for i, pair in enumerate(pairs)]
    expected = torch.tensor([[model.logit(*pair)] for pair in pairs])
    torch.testing.assert_close(torch.stack(run(core, raw)), expected, rtol=1e-3, atol=1e-4)
    found = torch.stack(run(core, requests))
    torch.testing.assert_close(found, expected.sigmoid(), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("problem", [None, "multi_label_classification"])
@pytest.mark.parametrize("name", SCORERS)
@torch.inference_mode()
def test_numbers_of_labels_are_those_of_transformers(
    tmp_path: Path, texts: list[tuple[int, ...]], name: str, problem: str | None
) -> None:
    """One label of several, as in sentiment, or any of them, as in moderation."""
    model = write_scorer(tmp_path, name, num_labels=3, problem_type=problem)
    expected = torch.stack([model.oracle(torch.tensor([text])).logits[0] for text in texts])
    core = core_of(tmp_path)
    raw = torch.stack(embed(core, texts, is_activated=False))
    torch.testing.assert_close(raw, expected, rtol=1e-3, atol=1e-4)
    function = torch.softmax if problem is None else lambda numbers, dim: numbers.sigmoid()
    found = torch.stack(embed(core, texts))
    torch.testing.assert_close(found, function(expected, dim=1), rtol=1e-3, atol=1e-5)


def test_short_request_is_computed_beside_a_huge_one(tmp_path: Path) -> None:
    """2,048 texts are 128 steps; what comes meanwhile is in the next."""
    write_embedder(tmp_path, "bert-mean")
    core = core_of(tmp_path, max_num_batched_tokens=256, max_num_seqs=16)
    for index in range(2048):
        core.add_request(PoolingRequest(f"huge-{index}", (5,) * 16, group="huge"))
    core.step()
    core.add_request(PoolingRequest("short-0", (5, 6), group="short"))
    assert "short-0" in {each.request_id for each in core.step()}
    assert core.stats().num_waiting >= 2048 - 2 * 16


@torch.inference_mode()
def test_second_text_of_a_pair_is_told_apart(tmp_path: Path, texts: list[tuple[int, ...]]) -> None:
    write_scorer(tmp_path, "bert")
    core = core_of(tmp_path)
    pair = [PoolingRequest("0", texts[2], 20), PoolingRequest("1", texts[2])]
    first, second = run(core, pair)
    assert float(first) != float(second)


def test_model_that_knows_one_kind_of_text_is_not_told_of_the_second(tmp_path: Path) -> None:
    """Whatever marks its tokenizer has: a row beyond the table would end the core."""
    write_scorer(tmp_path, "bert", type_vocab_size=1)
    first, second = run(
        core_of(tmp_path), [PoolingRequest("0", (5, 6, 7), 2), PoolingRequest("1", (5, 6, 7))]
    )
    assert float(first) == pytest.approx(
        float(second), rel=1e-4
    )  # BLAS adds rows in orders of its own


@torch.inference_mode()
def test_vector_is_cut_before_it_gets_length_1(
    tmp_path: Path, texts: list[tuple[int, ...]]
) -> None:
    model = write_embedder(tmp_path, "bert-mean")
    (vector,) = embed(core_of(tmp_path), texts[:1], num_dimensions=8)
    expected = torch.nn.functional.normalize(model.vector(texts[0])[:8], dim=0)
    torch.testing.assert_close(vector, expected, rtol=1e-3, atol=1e-5)


@torch.inference_mode()
def test_vector_without_activation_is_as_it_comes(
    tmp_path: Path, texts: list[tuple[int, ...]]
) -> None:
    model = write_embedder(tmp_path, "bert-cls")
    (vector,) = embed(core_of(tmp_path), texts[:1], is_activated=False)
    torch.testing.assert_close(vector, model.vector(texts[0]), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "options", [{"dtype": "bfloat16"}, {"quantization": "int8"}], ids=["bfloat16", "int8"]
)
@pytest.mark.parametrize("name", ["bert-mean", "xlm-roberta-cls", "qwen3-last"])
@torch.inference_mode()
def test_in_fewer_bits_vectors_are_near(
    tmp_path: Path, texts: list[tuple[int, ...]], name: str, options: dict[str, str]
) -> None:
    """With the compiled kernels, where there are any."""
    model = write_embedder(tmp_path, name)
    core = core_of(tmp_path, **options)
    for text, vector in zip(texts, embed(core, texts), strict=True):
        cosine = torch.nn.functional.cosine_similarity(vector, model.vector(text), dim=0)
        assert float(cosine) > 0.99


@pytest.mark.parametrize("name", ["bert-cls", "qwen3-last"])
def test_layers_are_noted_as_the_device_computes_them(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU is told of all layers at once, and may take long for them."""
    noted: list[int] = []
    monkeypatch.setattr(PlainOps, "note_layer", lambda ops: noted.append(1))
    write_embedder(tmp_path, name)
    core = core_of(tmp_path)
    embed(core, [(5, 6, 7)])
    assert len(noted) == core.spec.body.num_layers


@torch.inference_mode()
def test_longest_text_is_computed(tmp_path: Path) -> None:
    """RoBERTa's table of positions begins behind its padding, so its texts are two tokens shorter."""
    model = write_embedder(tmp_path, "roberta-mean")
    core = core_of(tmp_path, max_num_batched_tokens=64)
    assert core.config.max_model_len == 128
    text = tuple(5 + index % 90 for index in range(128))
    (vector,) = embed(core, [text])
    cosine = torch.nn.functional.cosine_similarity(vector, model.vector(text), dim=0)
    assert float(cosine) >= 0.99999
