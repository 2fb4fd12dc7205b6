"""A model that embeds goes from a folder to vectors through the gateway of a real stack."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import safetensors.torch
import tokenizers
import torch
from tokenizers import models, pre_tokenizers, processors

from .conftest import Stack

# Engines give way: beside much work a start takes minutes.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(360)]

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{index}" for index in range(60))]
HIDDEN, INNER, LAYERS, POSITIONS = 32, 48, 2, 64


def write_bert(directory: Path) -> Path:
    """Write a random BERT with a tokenizer of whole words."""
    directory.mkdir()
    tokenizer = tokenizers.Tokenizer(
        models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "vocab_size": len(WORDS),
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
        "max_position_embeddings": POSITIONS,
        "type_vocab_size": 2,
        "torch_dtype": "float32",
    }
    (directory / "config.json").write_text(json.dumps(config))
    shapes = {
        "embeddings.word_embeddings.weight": (len(WORDS), HIDDEN),
        "embeddings.position_embeddings.weight": (POSITIONS, HIDDEN),
        "embeddings.token_type_embeddings.weight": (2, HIDDEN),
        **of_norm("embeddings.LayerNorm"),
    }
    for index in range(LAYERS):
        name = f"encoder.layer.{index}"
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            shapes |= of_linear(f"{name}.attention.{part}", HIDDEN, HIDDEN)
        shapes |= of_norm(f"{name}.attention.output.LayerNorm")
        shapes |= of_linear(f"{name}.intermediate.dense", INNER, HIDDEN)
        shapes |= of_linear(f"{name}.output.dense", HIDDEN, INNER)
        shapes |= of_norm(f"{name}.output.LayerNorm")
    generator = torch.Generator().manual_seed(3)
    tensors = {
        name: torch.randn(*shape, generator=generator) * 0.3 for name, shape in shapes.items()
    }
    safetensors.torch.save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    return directory


def of_linear(name: str, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}


def of_norm(name: str) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (HIDDEN,), f"{name}.bias": (HIDDEN,)}


@pytest.fixture(scope="module")
def deployment(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    model = f"file://{write_bert(tmp_path_factory.mktemp('models') / 'tiny-bert')}"
    stack.exo("model", "create", model, "--wait")
    made = stack.exo(
        *("deployment", "create", "vectors", "--model-name", model, "--gpu-type", "cpu"),
        *("--gpu-count", "1", "--wait"),
    )
    shown = json.loads(stack.exo("deployment", "show", "vectors", "-O", "json").stdout)
    revealed = json.loads(stack.exo("deployment", "reveal-api-key", "vectors", "-O", "json").stdout)
    yield {**shown, **revealed, "model": model, "said": made.stdout + made.stderr}
    stack.exo("deployment", "delete", "vectors", "--force")
    stack.exo("model", "delete", model, "--force", check=False)


@pytest.fixture
def client(deployment: dict[str, Any]) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=deployment["deployment_url"], api_key=deployment["api_key"], max_retries=0
    ) as client:
        yield client


def test_plan_says_that_there_is_no_cache(deployment: dict[str, Any]) -> None:
    assert "no KV cache, texts of up to 64 tokens" in deployment["said"]


def tokens_counted(stack: Stack) -> int:
    rows = json.loads(stack.exo("usage", "vectors", "-O", "json").stdout)
    return sum(row["prompt_tokens"] for row in rows)


def test_vectors_come_through_the_gateway_and_are_counted(
    stack: Stack, deployment: dict[str, Any], client: openai.OpenAI
) -> None:
    before = tokens_counted(stack)  # others may have been ranked
    answer = client.embeddings.create(model=deployment["model"], input=["w1 w2", "w3"])
    assert [len(each.embedding) for each in answer.data] == [HIDDEN, HIDDEN]
    assert answer.usage.prompt_tokens == 4 + 3
    assert tokens_counted(stack) - before == 7


@pytest.mark.parametrize("version", ["v1/", "v2/", ""])
def test_documents_are_ranked_through_the_gateway(deployment: dict[str, Any], version: str) -> None:
    url = f"{deployment['deployment_url'].removesuffix('v1')}{version}rerank"
    headers = {"Authorization": f"Bearer {deployment['api_key']}"}
    body = {"query": "w1 w2", "documents": ["w5", "w1 w2"], "top_n": 1}
    answer = httpx.post(url, json=body, headers=headers, timeout=30)
    assert answer.status_code == 200, answer.text
    (best,) = answer.json()["results"]
    assert (best["index"], best["document"]) == (1, {"text": "w1 w2"})


def test_chat_is_refused_with_what_the_model_is_for(
    deployment: dict[str, Any], client: openai.OpenAI
) -> None:
    with pytest.raises(openai.BadRequestError, match="/v1/embeddings"):
        client.chat.completions.create(
            model=deployment["model"], messages=[{"role": "user", "content": "x"}]
        )
