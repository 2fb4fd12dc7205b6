"""The engine on a device gives the tokens that it gives on the CPU: families, and ways to run out of room."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Greedy tokens may differ where the two likeliest logits are closer than float32 sums are exact.
_TIE = 2e-3
_MOST_OFF = 1e-2
_NUM_TOKENS = 48
_PROMPT_LENGTHS = (1, 7, 16, 33, 64, 100, 150, 257)
# Where bits do not depend on the schedule with --batch-invariant.
_FIXED = ("llama", "mistral", "qwen2", "qwen3", "qwen3-moe", "deepseek-v3")
# So few that they run out however few prompts a slow step takes in; a window holds few at a time, and gpt-oss every second
# layer for itself.
_SCARCE_BLOCKS = {"mistral": 10, "gpt-oss": 27}


def check_equality(device: str) -> Iterator[dict[str, Any]]:
    """Compare every family on the device with the same model on the CPU."""
    from random_models import FAMILIES, write_model

    prompts = random_prompts(499, _PROMPT_LENGTHS, seed=1)
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as directory:
        for family, config in FAMILIES.items():
            model = write_model(Path(directory) / family, config, seed=len(family))
            expected = _run_family(model, "cpu", prompts, is_oracle=True)
            if device == "cuda" and family in _FIXED:
                yield _compare_bits(family, model, prompts)
            for way, completions in _run_family(model, device, prompts).items():
                oracle = expected["seeded" if way == "seeded" else "batched"]
                yield compare(family, way, oracle, completions)


def _compare_bits(family: str, model: Path, prompts: list[list[int]]) -> dict[str, Any]:
    """Hold each request's log-probabilities equal, bit by bit, alone and under random schedules."""
    from exo_engine import LLM, SamplingParams

    numbers, params = (
        random.SystemRandom(),
        SamplingParams(temperature=0.0, max_tokens=16, logprobs=2),
    )
    schedules = [{"max_num_seqs": 1}] + [
        {"max_num_seqs": numbers.randint(2, 8), "max_num_batched_tokens": numbers.randint(16, 400)}
        for _ in range(3)
    ]
    found = []
    for schedule in schedules:
        llm = LLM(model, device="cuda", max_model_len=320, kv_cache_bytes=2**28, batch_invariant=True, **schedule)  # fmt: skip
        found.append([(each.token_ids, each.logprobs) for each in llm.generate(prompts, params)])
    is_ok = all(each == found[0] for each in found[1:])
    return {"family": family, "way": "batch-invariant", "schedules": str(schedules), "ok": is_ok}


def _run_family(
    model: Path, device: str, prompts: list[list[int]], *, is_oracle: bool = False
) -> dict[str, Any]:
    from exo_engine import LLM, SamplingParams

    options: dict[str, Any] = {"dtype": "float32", "device": device, "max_model_len": 320}
    if device == "cuda":
        # As many sequences as there are: graphs and kernels for more would be made for nobody.
        options |= {"kv_cache_bytes": 2**28, "max_num_seqs": len(prompts)}
    greedy = SamplingParams(temperature=0.0, max_tokens=_NUM_TOKENS, logprobs=2)
    ways: list[dict[str, Any]] = [{"top_p": 0.95}, {"top_k": 20, "min_p": 0.02}, {}]
    seeded = [
        SamplingParams(
            temperature=1.0, seed=index, max_tokens=_NUM_TOKENS, logprobs=2, **ways[index % 3]
        )
        for index in range(len(prompts))
    ]
    roomy = LLM(model, **options)
    found = {"batched": roomy.generate(prompts, greedy), "seeded": roomy.generate(prompts, seeded)}
    if is_oracle:
        if any(len(set(completion.token_ids)) < 8 for completion in found["batched"]):
            raise AssertionError("the random model repeats itself, so equality proves nothing")
        return found
    found["cached"] = roomy.generate(prompts, greedy)
    found["one by one"] = [roomy.generate([prompt], greedy)[0] for prompt in prompts]
    num_blocks = _SCARCE_BLOCKS.get(model.name, 24)
    options |= {"num_gpu_blocks_override": num_blocks, "max_num_batched_tokens": 40}
    scarce = LLM(model, **{**options, "max_num_seqs": 8})
    found["scarce"] = scarce.generate(prompts, greedy)
    if scarce.stats().num_preemptions_total == 0:
        raise AssertionError("blocks were meant to run out and did not")
    return found


def compare(
    family: str, way: str, expected: Any, found: Any, *, tie: float = _TIE, most: float = _MOST_OFF
) -> dict[str, Any]:
    """Count equal tokens up to the first difference, which must be a tie of the two likeliest.

    Args:
        family: of the model.
        way: how it was run.
        expected: completions.
        found: of the same prompts.
        tie: how far two log-probabilities are apart, at the most, of which either may be the likelier one.
        most: how far log-probabilities of equal tokens may be apart.
    """
    num_tokens = num_equal = num_ties = 0
    is_ok = True
    worst_logprob = sum_of_differences = 0.0
    for want, got in zip(expected, found, strict=True):
        num_tokens += len(want.token_ids)
        for position, (a, b) in enumerate(zip(want.token_ids, got.token_ids, strict=False)):
            one, other = want.logprobs[position], got.logprobs[position]
            if a != b:
                gap = abs(one.top[0][1] - one.top[1][1])
                # Sampling may fall on the other side of a border; greedy only on a tie.
                is_tie = gap < tie if way != "seeded" else abs(one.logprob - other.logprob) < 9
                num_ties += 1
                is_ok &= is_tie
                break
            difference = abs(one.logprob - other.logprob)
            is_ok &= difference < most  # which NaN is not
            worst_logprob = max(worst_logprob, difference)
            sum_of_differences += difference
            num_equal += 1
        else:
            is_ok &= len(want.token_ids) == len(got.token_ids)
    if way == "seeded":
        is_ok &= num_ties <= 1
    return {
        "family": family,
        "way": way,
        "tokens": num_tokens,
        "equal_tokens": num_equal,
        "ties": num_ties,
        "largest_logprob_difference": worst_logprob,
        "mean_logprob_difference": sum_of_differences / max(1, num_equal),
        "ok": bool(is_ok),
    }


def random_prompts(vocab_size: int, lengths: tuple[int, ...], *, seed: int) -> list[list[int]]:
    """Return prompts of these lengths, always the same ones."""
    numbers = random.Random(seed)
    return [[numbers.randrange(vocab_size) for _ in range(length)] for length in lengths]
