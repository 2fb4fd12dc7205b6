"""Plans of models that embed or score texts: how long a text takes, and nothing of tokens that are written."""

from __future__ import annotations

import json

import pytest

from exo_inference.planner import find_model
from exo_inference.planner.catalog_models import load_models
from tests.cli.conftest import Exo

PLAN = ("ai", "deployment", "plan", "--offline")
TEXTS = [
    "BAAI/bge-m3", "google-bert/bert-base-uncased", "Alibaba-NLP/gte-reranker-modernbert-base", "Qwen/Qwen3-Embedding-0.6B",
    "Qwen/Qwen3-Reranker-4B", "intfloat/e5-mistral-7b-instruct", "BAAI/bge-multilingual-gemma2", "BAAI/bge-reranker-v2-gemma",
    "Linq-AI-Research/Linq-Embed-Mistral", "mixedbread-ai/mxbai-rerank-base-v2",
]  # fmt: skip
POOLING = ("Qwen/Qwen3-8B", "--inference-engine-params=--runner=pooling")


@pytest.mark.parametrize("asked", [(name,) for name in TEXTS] + [POOLING])
def test_no_time_between_tokens_is_told(exo: Exo, asked: tuple[str, ...]) -> None:
    line = (*PLAN, "--gpu-type", "H100", "--model-name", *asked)
    plan = json.loads(exo(*line, "-O", "json").out)
    assert plan["verdict"] == "fits"
    assert plan["speed"]["batches"] == []
    assert plan["speed"]["prompts"]
    out = exo(*line).out
    assert "its vector or score" in out
    assert not any(said in out for said in ("between tokens", "tokens/s", "USD/M", " 0% of"))
    template = "{{.ITL}}|{{.Throughput}}|{{.USDPerMTokens}}|{{.TTFT}}"
    told = exo(*line, "--output-template", template).out.strip()
    assert told.startswith("|||")
    assert float(told[3:]) > 0


@pytest.mark.parametrize("asked", [(name,) for name in TEXTS] + [POOLING])
def test_a_comparison_has_no_column_of_it(exo: Exo, asked: tuple[str, ...]) -> None:
    out = exo(*PLAN, "--compare=H100,L40S", "--model-name", *asked).out
    heads = out.splitlines()[1].split()
    assert "TTFT" in heads
    assert not {"ITL", "tokens/s", "USD/M"} & set(heads)
    assert "the model writes nothing" in out


def test_a_short_text_is_told_as_such(exo: Exo) -> None:
    out = exo(*PLAN, "--compare=L4", "--model-name", "BAAI/bge-large-en-v1.5").out
    assert "TTFT: the vector or score of a text of 128 tokens" in out


@pytest.mark.parametrize("name", TEXTS)
def test_it_holds_no_demand(exo: Exo, name: str) -> None:
    result = exo(*PLAN, "--model-name", name, "--for", "requests=1/s input=500 output=3")
    assert result.code == 2
    assert f"{name} embeds or scores them" in result.err


def test_a_flag_that_has_a_model_embed_holds_no_demand(exo: Exo) -> None:
    name, flag = POOLING
    demand = ("--gpu-type", "H100", "--for", "requests=1/s input=500 output=3")
    result = exo(*PLAN, "--model-name", name, flag, *demand)
    assert result.code == 1
    assert "the model generates no text" in result.out


def test_the_cpu_writes_nothing_either(exo: Exo) -> None:
    line = (*PLAN, "--gpu-type", "cpu", "--model-name", "Qwen/Qwen3-Embedding-0.6B", "-O", "json")
    speed = json.loads(exo(*line).out)["speed"]
    assert speed is None or speed["batches"] == []


def test_ways_out_change_no_time_between_tokens(exo: Exo) -> None:
    line = (*PLAN, "--gpu-type", "gpua5000", "--model-name", "Qwen/Qwen3-Embedding-8B")
    flags = ("--inference-engine-params", "--gpu-memory-utilization=0.6", "-O", "json")
    advice = json.loads(exo(*line, *flags).out)["advice"]
    assert advice
    assert all(each["inter_token_seconds_change"] is None for each in advice)


def test_what_writes_texts_is_not_taken_for_one_that_embeds() -> None:
    """`ChatGLMModel` generates, though a class of that form does not elsewhere."""
    assert find_model("zai-org/glm-4-9b-chat").writes
    assert find_model("openai/whisper-large-v3").writes
    assert all(find_model(name).writes for name in load_models())
