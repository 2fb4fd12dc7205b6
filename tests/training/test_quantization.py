"""How far INT8 and INT4 take exo/tiny-chat from bf16: on phrasings that are never trained on, and on their answers alone.

Run with -s for the figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import compress
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
OF_WHOLE_TEXTS = {**BOUNDS, "int4_per_group_64": (0.04, 1.05), "int4_per_group_128": (0.04, 1.05)}
"""The same with the questions, which are written by others and surprise the model."""


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
    return every[::3]


def _score(texts: list[tuple[list[int], int]], **options: object) -> Iterator[tuple[float, object]]:
    """Yield of each token but the first its log-probability, and those of the whole vocabulary."""
    llm = LLM(CHAT, dtype="bfloat16", device="cpu", max_logprobs=10**5, **options)
    size = llm.core.spec.vocab_size
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=size)
    for text, _ in texts:
        (done,) = llm.generate([text], params)
        for report in done.prompt_logprobs[1:]:
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


@pytest.mark.parametrize("part", ["answers", "whole texts"])
@pytest.mark.parametrize("quantization", BOUNDS)
def test_quantized_weights_stay_near(
    tokens: dict[str, list[tuple[float, float, float]]],
    texts: list[tuple[list[int], int]],
    quantization: str,
    part: str,
) -> None:
    is_of_part = [
        part == "whole texts" or place >= begin
        for text, begin in texts
        for place in range(1, len(text))
    ]
    rows = compress(tokens[quantization], is_of_part)
    plain, rough, divergences = zip(*rows, strict=True)
    factor = math.exp(mean(plain) - mean(rough))
    print(
        f"{quantization}, {part}: {len(plain)} tokens, mean KL {mean(divergences):.5f} nats, "
        f"perplexity {math.exp(-mean(plain)):.4f} to {math.exp(-mean(rough)):.4f}"
    )
    most, largest_factor = (BOUNDS if part == "answers" else OF_WHOLE_TEXTS)[quantization]
    assert mean(divergences) <= most
    assert factor <= largest_factor
