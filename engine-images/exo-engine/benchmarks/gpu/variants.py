"""The engine on a device in the settings that people use: 16 bits, small caches and weights, guesses, other layers.

`equality.py` holds float32 equal to the CPU. Here, the most valuable first, with as few tokens as tell:

* bfloat16, and caches of FP8 and INT8, against attention in plain PyTorch on the same device, which is given the same
  numbers to store. Two orders of sums in bfloat16 are compared, so tokens may part where two are about as likely.
* guesses of three tokens, right ones and wrong ones, from graphs of four where the device has graphs, against float32
  on the CPU; penalties beside guesses.
* weights of INT8, INT4 and FP8 in blocks, in float32, against the CPU, which computes with the same numbers.
* families with soft caps, and with states instead of keys, against the CPU.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpu.equality import compare, random_prompts

_NUM_TOKENS = 20
_PROMPT_LENGTHS = (1, 17, 64, 130)
_NUM_GUESSES = 3
# Of log-probabilities in bfloat16. Each number that is stored is off by up to 2**-9 of itself; behind four layers of such,
# two orders of sums on a CPU are 0.07 apart on average and 0.24 to 0.47 at the most. One wrong key of a prompt has most
# tokens differ, at places that are no ties.
_TIE = _MOST_OFF = 0.7
_MOST_OFF_ON_AVERAGE = 0.15
_EXACT_TIE, _EXACT_MOST_OFF = 2e-3, 1e-2


def check_variants(device: str) -> Iterator[dict[str, Any]]:
    """Compare settings and families on the device with plain ways to compute the same."""
    from random_models import FAMILIES, LATER_FAMILIES, write_model

    prompts = random_prompts(499, _PROMPT_LENGTHS, seed=3)
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as directory:
        llama = write_model(Path(directory) / "llama", FAMILIES["llama"], seed=5)
        for kv in ("auto", "fp8_e4m3", "int8"):
            yield _compare_sixteen_bits(llama, device, prompts, kv)
        yield from _compare_guesses(llama, device, prompts)
        for weights in ("int8", "int4", "fp8_per_block"):
            options = {"quantization": weights}
            yield _compare_with_cpu("llama", f"{weights} weights", llama, device, prompts, options)
        for family, config in LATER_FAMILIES.items():
            model = write_model(Path(directory) / family, config, seed=len(family))
            yield _compare_with_cpu(family, "batched", model, device, prompts, {})


def _compare_sixteen_bits(
    model: Path, device: str, prompts: Sequence[Sequence[int]], kv: str
) -> dict[str, Any]:
    options = {"dtype": "bfloat16", "kv_cache_dtype": kv}
    expected, found = (
        _generate(model, device, prompts, {**options, **way})
        for way in ({"attention_backend": "reference"}, {})
    )
    way = "bfloat16" if kv == "auto" else f"bfloat16, {kv} cache"
    return compare_sixteen_bits(way, expected, found)


def compare_sixteen_bits(way: str, expected: Sequence[Any], found: Sequence[Any]) -> dict[str, Any]:
    """Compare completions of bfloat16 from different orders of sums."""
    row = compare("llama", way, expected, found, tie=_TIE, most=_MOST_OFF)
    is_near = row["mean_logprob_difference"] < _MOST_OFF_ON_AVERAGE
    return row | {"ok": row["ok"] and is_near}


def _compare_with_cpu(
    family: str,
    way: str,
    model: Path,
    device: str,
    prompts: Sequence[Sequence[int]],
    options: dict[str, Any],
) -> dict[str, Any]:
    options = {"dtype": "float32", **options}
    expected, found = (_generate(model, each, prompts, options) for each in ("cpu", device))
    return compare(family, way, expected, found, tie=_EXACT_TIE, most=_EXACT_MOST_OFF)


def _compare_guesses(
    model: Path, device: str, prompts: Sequence[Sequence[int]]
) -> Iterator[dict[str, Any]]:
    """Tell the engine two tokens that follow and one that does not, as long as its answer goes on as the CPU's."""
    options = {"dtype": "float32", "async_scheduling": False}
    for way, asked in (("guesses", {}), ("guesses, penalties", {"repetition_penalty": 1.2})):
        expected = _generate(model, "cpu", prompts, options, **asked)
        with _graphs_of_guesses() as captured:
            llm = _make(model, device, options)
        found, most_at_once = _generate_guessed(llm, prompts, expected, asked)
        row = compare("llama", way, expected, found, tie=_EXACT_TIE, most=_EXACT_MOST_OFF)
        has_graphs = captured == [(1, _NUM_GUESSES + 1)] or device == "cpu"
        # The right guesses, and what follows them.
        is_ok = row["ok"] and has_graphs and most_at_once >= _NUM_GUESSES
        yield row | {"tokens_at_once": most_at_once, "graphs": bool(captured), "ok": is_ok}


@contextmanager
def _graphs_of_guesses() -> Iterator[list[tuple[int, ...]]]:
    """Capture graphs of several tokens of each sequence, too; nothing in the engine guesses yet, so it has none."""
    from exo_engine.core.runner import ModelRunner

    plainly, captured = ModelRunner.capture_graphs, []

    def capture(self: Any, max_context: int, tokens_each: Sequence[int] = (1,)) -> None:
        captured.append((*tokens_each, _NUM_GUESSES + 1))
        plainly(self, max_context, captured[-1])

    ModelRunner.capture_graphs = capture  # type: ignore[method-assign]
    try:
        yield captured
    finally:
        ModelRunner.capture_graphs = plainly  # type: ignore[method-assign]


def _generate_guessed(
    llm: Any, prompts: Sequence[Sequence[int]], expected: Sequence[Any], asked: dict[str, Any]
) -> tuple[list[Any], int]:
    """Return completions, and how many tokens a sequence was given in one step at the most."""
    from exo_engine.core.request import EngineRequest
    from exo_engine.llm import Completion

    core, most_at_once = llm.core, 0
    answers: dict[str, tuple[list[int], list[Any]]] = {}
    for index, prompt in enumerate(prompts):
        core.add_request(EngineRequest(str(index), tuple(prompt), _params(**asked)))
        answers[str(index)] = [], []
    while core.has_unfinished_requests():
        for name, (tokens, _) in answers.items():
            follow = expected[int(name)].token_ids[len(tokens) :][: _NUM_GUESSES - 1]
            core._scheduler.propose(name, (*follow, 0))
        for output in core.step():
            tokens, logprobs = answers[output.request_id]
            tokens += output.token_ids
            most_at_once = max(most_at_once, len(output.token_ids))
            logprobs += output.logprobs or ()
    return [
        Completion(tuple(prompt), tuple(tokens), "length", 0, logprobs=tuple(logprobs))
        for prompt, (tokens, logprobs) in zip(prompts, answers.values(), strict=True)
    ], most_at_once


def _generate(
    model: Path,
    device: str,
    prompts: Sequence[Sequence[int]],
    options: dict[str, Any],
    **asked: Any,
) -> list[Any]:
    return _make(model, device, options).generate(list(prompts), _params(**asked))


def _make(model: Path, device: str, options: dict[str, Any]) -> Any:
    from exo_engine import LLM

    # As many sequences as there are: graphs and kernels for more would be made for nobody.
    few = {"max_model_len": 192, "kv_cache_bytes": 2**26, "max_num_seqs": len(_PROMPT_LENGTHS)}
    return LLM(model, device=device, **{**few, **options})


def _params(**asked: Any) -> Any:
    from exo_engine import SamplingParams

    return SamplingParams(
        temperature=0.0, max_tokens=_NUM_TOKENS, logprobs=2, ignore_eos=True, **asked
    )
