"""How far INT8 and INT4 take exo/tiny-chat from bf16: on answers to phrasings that are never trained on.

Run with -s for the figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import mean

import pytest

from training.dataset import CORPUS, load_corpus

torch = pytest.importorskip("torch")

from exo_engine import LLM, SamplingParams  # noqa: E402 - needs torch

pytestmark = pytest.mark.slow

CHAT = CORPUS.parents[1] / "exo_inference" / "hub" / "builtin_models" / "tiny-chat"
BOUNDS = {
    "int8": (0.002, 1.005),
    **dict.fromkeys(("int4", "int4_per_group_64", "int4_per_group_128"), (0.02, 1.03)),
}
"""Mean divergence of the next token's distribution in nats, and the factor that perplexity may grow by."""


@pytest.fixture(scope="module")
def texts() -> list[tuple[list[int], int]]:
    """Tokens of some questions with their answers, and where the answer begins."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(CHAT)

    def encode(question: str, answer: str) -> tuple[list[int], int]:
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
        )
        begin = len(tokenizer.encode(prompt, add_special_tokens=False))
        return tokenizer.encode(f"{prompt}{answer}<|im_end|>", add_special_tokens=False), begin

    pairs = load_corpus().pairs
    every = [encode(question, pair.answer) for pair in pairs for question in pair.held_out]
    return every[::8]


def _score(texts: list[tuple[list[int], int]], **options: object) -> Iterator[tuple[float, object]]:
    """Yield of each token of the answers its log-probability, and those of the whole vocabulary."""
    llm = LLM(CHAT, dtype="bfloat16", device="cpu", max_logprobs=10**5, **options)
    size = llm.core.spec.vocab_size
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=size)
    for text, begin in texts:
        (done,) = llm.generate([text], params)
        for report in done.prompt_logprobs[begin:]:
            row = torch.empty(size, dtype=torch.float64)
            row[[token for token, _ in report.top]] = torch.tensor(
                [number for _, number in report.top], dtype=torch.float64
            )
            yield report.logprob, row


@pytest.fixture(scope="module")
def tokens(texts: list[tuple[list[int], int]]) -> dict[str, list[tuple[float, float, float]]]:
    """Return of each token, by format: its log-probability in bf16 and in the format, and the divergence."""
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in BOUNDS}
    each = [_score(texts), *(_score(texts, quantization=name) for name in BOUNDS)]
    for (before, wanted), *others in zip(*each, strict=True):
        for name, (after, row) in zip(BOUNDS, others, strict=True):
            found[name].append((before, after, float((wanted.exp() * (wanted - row)).sum())))
    return found


@pytest.mark.parametrize("quantization", BOUNDS)
def test_quantized_weights_stay_near(
    tokens: dict[str, list[tuple[float, float, float]]], quantization: str
) -> None:
    plain, rough, divergences = zip(*tokens[quantization], strict=True)
    factor = math.exp(mean(plain) - mean(rough))
    print(
        f"{quantization}: {len(plain)} tokens, mean KL {mean(divergences):.5f} nats, "
        f"perplexity {math.exp(-mean(plain)):.4f} to {math.exp(-mean(rough)):.4f}"
    )
    most, largest_factor = BOUNDS[quantization]
    assert mean(divergences) <= most
    assert factor <= largest_factor
