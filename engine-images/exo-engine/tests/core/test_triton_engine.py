"""The whole engine on the Triton backend, under the interpreter, gives the tokens of `transformers`."""

from __future__ import annotations

import pytest
from exo_engine import LLM, SamplingParams

pytestmark = pytest.mark.gpu_kernels


def generate(tiny_model, family: str, prompts, num_tokens: int, **options):
    model = tiny_model(family)
    llm = LLM(model.path, device="cpu", dtype="float32", attention_backend="triton", **options)
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    found = [completion.token_ids for completion in llm.generate(prompts, params)]
    assert found == [
        model.greedy(prompt, num_tokens, guess)
        for prompt, guess in zip(prompts, found, strict=True)
    ]


def test_prompts_of_different_lengths(tiny_model, prompts):
    generate(tiny_model, "qwen3", prompts[1:3], 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "family", ["llama", "mistral-window", "qwen2-yarn", "qwen3.5", "deepseek-v3"]
)
def test_chunks_and_pages_of_every_size(tiny_model, prompts, family):
    generate(
        tiny_model, family, prompts, 8, max_num_batched_tokens=24, max_num_seqs=4, block_size=4
    )
