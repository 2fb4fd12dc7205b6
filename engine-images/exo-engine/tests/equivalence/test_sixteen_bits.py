"""In bfloat16 the engine is as near to `transformers` as 16 bits are to 32.

Measured are log-probabilities of the tokens of a prompt, each after those before it. The models are
random and their logits large, so that distances are too; trained models have a tenth of them.
"""

from __future__ import annotations

import copy

import pytest
import torch
from exo_engine.llm import LLM
from exo_engine.sampling_params import SamplingParams

HALF, MOST = 0.08, 0.5
"""Distance of a token's log-probability, engine against `transformers`, that half of all tokens and 19 of
20 stay below. The rest may be further: near a tie a router takes another expert."""


@pytest.mark.parametrize("chunk", [1024, 7], ids="chunks-of-{}".format)
@pytest.mark.parametrize(
    "family",
    [
        *("llama3-tied", "mistral-window", "qwen2", "qwen3", "qwen3-moe"),
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("gemma2", "gemma4", "gpt-oss", "deepseek-v3")
        ),
    ],
)
def test_log_probabilities_are_near_those_of_transformers(tiny_model, prompts, family, chunk):
    found, theirs, exact = score_all(tiny_model(family), prompts[-1], chunk)
    distance = (found - theirs).abs()
    assert distance.median() < HALF
    assert distance.quantile(0.95) < MOST
    # And no further from the exact ones than `transformers` itself is, but for chance.
    assert (found - exact).abs().mean() < 1.5 * (theirs - exact).abs().mean() + 0.01


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gemma3", "qwen3-next"])
def test_where_transformers_is_far_from_exact_the_engine_is_no_further(tiny_model, prompts, family):
    """Six random layers, or experts whose router is near a tie, lose half of what 16 bits have."""
    found, theirs, exact = (
        torch.cat(each)
        for each in zip(
            *(score_all(tiny_model(family), prompt, 1024) for prompt in prompts[2:]), strict=True
        )
    )
    assert (theirs - exact).abs().median() > HALF
    assert (found - exact).abs().mean() < 1.5 * (theirs - exact).abs().mean()


def score_all(model, prompt, chunk) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return what the engine, `transformers` and it in float32 say of a prompt's tokens."""
    llm = LLM(
        model.path,
        dtype="bfloat16",
        device="cpu",
        max_model_len=64,
        max_num_batched_tokens=chunk,
        max_num_seqs=4,
    )
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    (completion,) = llm.generate([prompt], params)
    found = torch.tensor([each.logprob for each in completion.prompt_logprobs[1:]])
    return found, score(halved(model.oracle), prompt), score(model.oracle, prompt)


def halved(oracle):
    return copy.deepcopy(oracle).to(torch.bfloat16)


def score(oracle, prompt) -> torch.Tensor:
    """Return the log-probability of each token but the first."""
    with torch.no_grad():
        logits = oracle(torch.tensor([prompt])).logits[0].float()
    return logits.log_softmax(-1)[:-1].gather(1, torch.tensor(prompt[1:]).unsqueeze(1)).squeeze(1)
