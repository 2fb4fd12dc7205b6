"""Prompts that vLLM computes whole: those of encoders, whose step is at least as long as the context."""

from __future__ import annotations

from dataclasses import replace

import pytest

from exo_inference.planner import Plan, Verdict, advise, find_gpu, find_model, plan
from tests.planner.flags import settings_of

ENCODER, BIDIRECTIONAL, DECODER = "BAAI/bge-m3", "google/embeddinggemma-300m", "Qwen/Qwen3-Embedding-0.6B"  # fmt: skip


def on(name: str, *flags: str, version: str = "0.28.0", gpu: str = "L4") -> Plan:
    parameters = replace(settings_of(flags), engine_version=version)
    return plan(find_model(name), find_gpu(gpu), 1, parameters)


def refusals(found: Plan) -> list[str]:
    problems = [each for each in found.problems if each.code == "max-num-batched-tokens"]
    return [each.detail for each in problems if each.refuses]


@pytest.mark.parametrize(
    ("name", "version", "gpu", "tokens"),
    [
        (ENCODER, "0.28.0", "L4", 8192), (ENCODER, "0.10.1", "L4", 8192), ("BAAI/bge-small-en-v1.5", "0.28.0", "L4", 2048),
        ("BAAI/bge-small-en-v1.5", "0.10.1", "L4", 512), ("BAAI/bge-small-en-v1.5", "0.28.0", "H100", 8192),
        (ENCODER, "0.10.0", "L4", 32768), (ENCODER, "0.7.3", "L4", 32768), (DECODER, "0.9.1", "L4", 40960),
        (DECODER, "0.9.2", "L4", 2048), (DECODER, "0.28.0", "L4", 2048), (BIDIRECTIONAL, "0.28.0", "L4", 2048),
    ],
)  # fmt: skip
def test_a_step_is_as_long_as_each_release_makes_it(
    name: str, version: str, gpu: str, tokens: int
) -> None:
    assert on(name, version=version, gpu=gpu).max_num_batched_tokens == tokens


def test_a_longer_step_is_sized() -> None:
    sizes = []
    for length in (8192, 2048):
        part = on(ENCODER, f"--max-model-len={length}").component("activations")
        assert part is not None
        sizes.append(part.num_bytes)
    assert sizes[0] > 3 * sizes[1]


@pytest.mark.parametrize("version", ["0.7.3", "0.10.1", "0.28.0"])
def test_a_step_shorter_than_the_context_of_an_encoder_is_refused(version: str) -> None:
    """bge-m3 with --max-num-batched-tokens=2048 was said to fit."""
    found = on(ENCODER, "--max-num-batched-tokens=2048", version=version)
    assert found.verdict is Verdict.REFUSED
    (detail,) = refusals(found)
    assert "prompts are computed whole" in detail
    assert "--max-num-batched-tokens=8192, or set --max-model-len=2048 or less" in detail
    shorter = on(ENCODER, "--max-num-batched-tokens=2048", "--max-model-len=2048", version=version)
    assert not refusals(shorter)


@pytest.mark.parametrize("name", [BIDIRECTIONAL, "openai/whisper-large-v3"])
def test_so_it_is_for_all_that_look_ahead(name: str) -> None:
    assert refusals(on(name, "--max-num-batched-tokens=256", "--max-num-seqs=16"))


@pytest.mark.parametrize("flags", [(), ("--enable-chunked-prefill",)])
def test_a_prompt_that_can_be_cut_needs_no_long_step(flags: tuple[str, ...]) -> None:
    name = DECODER if not flags else ENCODER
    assert not refusals(on(name, "--max-num-batched-tokens=2048", *flags))


def test_a_step_holds_no_more_than_all_its_requests() -> None:
    """Since 0.11.1, arg_utils.py: max_num_seqs x max_model_len."""
    flags = ("--max-num-seqs=2", "--max-model-len=512")
    for version, tokens in (("0.11.0", 2048), ("0.12.0", 1024)):
        found = on("Qwen/Qwen3-0.6B", *flags, version=version)
        assert found.max_num_batched_tokens == tokens


def test_advice_keeps_a_step_for_whole_prompts() -> None:
    parameters = settings_of(("--gpu-memory-utilization=0.1",))
    found = advise(find_model(ENCODER), find_gpu("L4"), 1, parameters)
    assert found
    assert all(each.plan.max_num_batched_tokens >= each.plan.max_model_len for each in found)
