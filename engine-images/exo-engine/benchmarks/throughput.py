"""Offline throughput, side by side with `transformers` generate on the same model in one run.

Both get the same prompts and must give the same number of greedy tokens; rounds alternate, so that a
busy machine hurts both, and the ratio is of medians. `transformers` gets its prompts in padded
batches of --batch-size, as its users do. Figures go to stdout and, with --output, to a JSON file.

    OMP_NUM_THREADS=2 python benchmarks/throughput.py --model tiny
    python benchmarks/throughput.py --model /path/to/model --num-prompts 32
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from exo_engine import LLM, SamplingParams
from random_models import SIZES, write_model


def main() -> int:
    """Run the rounds and print the table."""
    arguments = _parse()
    with tempfile.TemporaryDirectory(prefix="throughput-") as directory:
        model = Path(arguments.model)
        if arguments.model in SIZES:
            model = write_model(Path(directory), SIZES[arguments.model])
        report = _run(model, arguments)
    print(json.dumps(report, indent=2))
    if arguments.output:
        arguments.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--model", default="tiny", help=f"a directory, or {' or '.join(SIZES)}")
    parser.add_argument("--num-prompts", type=int, default=16)
    parser.add_argument("--max-prompt-tokens", type=int, default=128)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=16, help="of transformers")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--without-transformers", action="store_true")
    parser.add_argument("--output", type=Path)
    return parser.parse_args()


def _run(model: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    llm = LLM(
        model,
        dtype=arguments.dtype,
        device=arguments.device,
        max_model_len=arguments.max_prompt_tokens + arguments.max_tokens,
        enable_prefix_caching=False,  # every round has the same prompts
    )
    numbers = random.Random(0)
    vocab_size = llm.core.spec.vocab_size
    prompts = [
        [
            numbers.randrange(vocab_size)
            for _ in range(
                numbers.randint(arguments.max_prompt_tokens // 8, arguments.max_prompt_tokens)
            )
        ]
        for _ in range(arguments.num_prompts)
    ]
    params = SamplingParams(temperature=0.0, max_tokens=arguments.max_tokens, ignore_eos=True)
    runs: dict[str, Callable[[], Any]] = {"exo-engine": lambda: llm.generate(prompts, params)}
    if not arguments.without_transformers:
        runs["transformers"] = _transformers(model, prompts, arguments)
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(arguments.rounds + 1):
        for name, run in runs.items():
            begun = time.perf_counter()
            run()
            if number:  # the first round warms up
                seconds[name].append(time.perf_counter() - begun)
    num_tokens = arguments.num_prompts * arguments.max_tokens
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    report: dict[str, Any] = {
        "model": arguments.model,
        "weights_bytes": llm.core.measurements.weights_bytes,
        "dtype": arguments.dtype,
        "device": arguments.device,
        "threads": torch.get_num_threads(),
        "machine": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "prompts": arguments.num_prompts,
        "prompt_tokens": sum(len(prompt) for prompt in prompts),
        "output_tokens": num_tokens,
        "output_tokens_per_second": {
            name: round(num_tokens / median, 1) for name, median in medians.items()
        },
        "seconds": {name: [round(value, 3) for value in each] for name, each in seconds.items()},
    }
    if "transformers" in medians:
        report["ratio_of_medians"] = round(medians["transformers"] / medians["exo-engine"], 2)
    return report


def _transformers(
    model: Path, prompts: list[list[int]], arguments: argparse.Namespace
) -> Callable[[], None]:
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    oracle = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=arguments.dtype)
    oracle = oracle.to(arguments.device).eval()

    def run() -> None:
        for start in range(0, len(prompts), arguments.batch_size):
            batch = prompts[start : start + arguments.batch_size]
            longest = max(len(prompt) for prompt in batch)
            padded = torch.tensor([[0] * (longest - len(p)) + p for p in batch])
            mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in batch])
            output = oracle.generate(
                padded.to(arguments.device),
                attention_mask=mask.to(arguments.device),
                max_new_tokens=arguments.max_tokens,
                min_new_tokens=arguments.max_tokens,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )
            assert output.shape[1] == longest + arguments.max_tokens, "an early end"

    return run


if __name__ == "__main__":
    sys.exit(main())
