"""`make gpu-check`: prove the engine on CUDA against the CPU, then measure it. At most 10 minutes.

It needs torch, numpy and safetensors, a CUDA device, and nothing from the network: models are random and
made here. First, for each model family, greedy float32 tokens on CUDA must be those of the CPU,
batched, with chunked prompts and with blocks forced to run out; seeded sampling likewise. Then it
times prompts and decoding of a model of one billion parameters in bfloat16. A table goes to stdout,
JSON to --output.

    make gpu-check OUTPUT=gpu_check.json                                on a machine with a GPU
    python benchmarks/gpu_check.py --device cpu --small                 try the script itself

Exit status: 0 all equal and measured, 1 something differs or failed, 69 no CUDA device or package.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

EXIT_UNAVAILABLE = 69
_REQUIRED = ("torch", "numpy", "safetensors", "exo_engine")
# Greedy tokens may differ where the two likeliest logits are closer than float32 sums are exact.
_TIE = 2e-3
_NUM_TOKENS = 48
_PROMPT_LENGTHS = (1, 7, 16, 33, 64, 100, 150, 257)


@dataclass
class Report:
    """Everything that was found, as it goes into the JSON file."""

    environment: dict[str, Any]
    equality: list[dict[str, Any]] = field(default_factory=list)
    speed: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    wall_seconds: float = 0.0


def main() -> int:
    """Run both parts and return the exit status."""
    arguments = _parse()
    missing = [name for name in _REQUIRED if importlib.util.find_spec(name) is None]
    if missing:
        print(f"gpu-check: error: these Python packages are missing: {', '.join(missing)}")
        return EXIT_UNAVAILABLE
    import torch

    if arguments.device == "cuda" and not torch.cuda.is_available():
        print(
            f"gpu-check: error: torch {torch.__version__} finds no CUDA device on this machine\n"
            "To try the script itself without one: --device cpu --small"
        )
        return EXIT_UNAVAILABLE
    started = time.monotonic()
    report = Report(environment=_environment(arguments.device))
    print(json.dumps(report.environment))
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as directory:
        for part in (_check_equality, _measure_speed):
            try:
                part(Path(directory), arguments, report, started)
            except Exception as exc:  # whatever one part breaks on, the other still reports
                report.problems.append(f"{part.__name__}: {type(exc).__name__}: {exc}")
    report.wall_seconds = round(time.monotonic() - started, 1)
    _print_summary(report)
    _write_json(report, arguments.output)
    return 1 if report.problems else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="time a tiny model instead of 1B")
    parser.add_argument("--output", type=Path, help="write the figures there, as JSON")
    parser.add_argument("--time-limit-seconds", type=float, default=540.0)
    return parser.parse_args()


def _environment(device: str) -> dict[str, Any]:
    import torch

    found: dict[str, Any] = {
        "device": device,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cpus": os.cpu_count(),
    }
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        found["gpu"] = properties.name
        found["gpu_memory_gib"] = round(properties.total_memory / 2**30, 1)
        found["cuda"] = torch.version.cuda
    return found


# --- equality ---------------------------------------------------------------------------------


def _check_equality(
    directory: Path, arguments: argparse.Namespace, report: Report, started: float
) -> None:
    """Compare every family on the device with the same model on the CPU."""
    from random_models import FAMILIES, write_model

    prompts = _prompts(499, _PROMPT_LENGTHS, seed=1)
    for family, config in FAMILIES.items():
        model = write_model(directory / family, config, seed=len(family))
        expected = _run_family(model, "cpu", prompts, is_oracle=True)
        found = _run_family(model, arguments.device, prompts)
        for way, completions in found.items():
            row = _compare(
                family, way, expected["batched" if way != "seeded" else way], completions
            )
            report.equality.append(row)
            print(
                f"{row['family']:<8} {row['way']:<10} {row['equal_tokens']:>5} of "
                f"{row['tokens']} tokens equal, {row['ties']} prompts end in a tie"
                + ("" if row["ok"] else "   <-- DIFFERENT")
            )
            if not row["ok"]:
                report.problems.append(f"{family} {way}: tokens differ from the CPU's")


def _run_family(
    model: Path, device: str, prompts: list[list[int]], *, is_oracle: bool = False
) -> dict[str, Any]:
    from exo_engine import LLM, SamplingParams

    options: dict[str, Any] = {"dtype": "float32", "device": device, "max_model_len": 320}
    if device == "cuda":
        options["kv_cache_bytes"] = 2**28
    greedy = SamplingParams(temperature=0.0, max_tokens=_NUM_TOKENS, logprobs=2)
    seeded = [
        SamplingParams(temperature=1.0, top_p=0.95, seed=index, max_tokens=_NUM_TOKENS, logprobs=2)
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
    scarce = LLM(
        model, **options, num_gpu_blocks_override=24, max_num_batched_tokens=40, max_num_seqs=8
    )
    found["scarce"] = scarce.generate(prompts, greedy)
    if scarce.stats().num_preemptions_total == 0:
        raise AssertionError("blocks were meant to run out and did not")
    return found


def _compare(family: str, way: str, expected: Any, found: Any) -> dict[str, Any]:
    """Count equal tokens up to the first difference, which must be a tie of the two likeliest."""
    num_tokens = num_equal = num_ties = 0
    is_ok = True
    worst_logprob = 0.0
    for want, got in zip(expected, found, strict=True):
        num_tokens += len(want.token_ids)
        for position, (a, b) in enumerate(zip(want.token_ids, got.token_ids, strict=False)):
            one, other = want.logprobs[position], got.logprobs[position]
            if a != b:
                gap = abs(one.top[0][1] - one.top[1][1])
                # Sampling may fall on the other side of a border; greedy only on a tie.
                is_tie = gap < _TIE if way != "seeded" else abs(one.logprob - other.logprob) < 9
                num_ties += 1
                is_ok &= is_tie
                break
            worst_logprob = max(worst_logprob, abs(one.logprob - other.logprob))
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
        "ok": bool(is_ok and worst_logprob < 1e-2),
    }


# --- speed ------------------------------------------------------------------------------------


def _measure_speed(
    directory: Path, arguments: argparse.Namespace, report: Report, started: float
) -> None:
    """Time prompts and decoding on a model with random weights."""
    from exo_engine import LLM
    from random_models import SIZES, write_model

    size = "tiny" if arguments.small else "1b"
    config = SIZES[size]
    model = write_model(directory / size, config, device=arguments.device)
    begun = time.perf_counter()
    llm = LLM(
        model,
        device=arguments.device,
        dtype="bfloat16" if arguments.device == "cuda" else "float32",
        max_model_len=2048 if arguments.small else 4096,
        max_num_seqs=256,
        enable_prefix_caching=False,
    )
    spec, settings = llm.core.spec, llm.core.config
    report.speed = {
        "model": size,
        "parameters": spec.num_parameters,
        "dtype": settings.dtype,
        "load_seconds": round(time.perf_counter() - begun, 2),
        "kv_blocks": llm.stats().num_blocks,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "prefill": [],
        "decode": [],
    }
    print(f"{size}: {spec.num_parameters / 1e9:.2f} billion parameters in {settings.dtype}")
    lengths = (64, 512) if arguments.small else (128, 1024, 4000)
    batches = (1, 4) if arguments.small else (1, 8, 32, 64, 128, 256)
    for length in lengths:
        if _is_late(arguments, started, report):
            return
        report.speed["prefill"].append(_time_prefill(llm, spec.vocab_size, length))
        print(json.dumps(report.speed["prefill"][-1]))
    for context in (64,) if arguments.small else (128, 1024):
        for num_seqs in batches:
            if _is_late(arguments, started, report):
                return
            row = _time_decode(llm, spec.vocab_size, num_seqs, context)
            weight_bytes = llm.core.measurements.weights_bytes
            row["weights_gb_per_second"] = round(weight_bytes / row["step_ms_median"] / 1e6, 1)
            report.speed["decode"].append(row)
            print(json.dumps(row))


def _is_late(arguments: argparse.Namespace, started: float, report: Report) -> bool:
    if time.monotonic() - started < arguments.time_limit_seconds:
        return False
    report.problems.append(f"stopped after {arguments.time_limit_seconds:.0f} s, not all measured")
    return True


def _time_prefill(llm: Any, vocab_size: int, length: int) -> dict[str, Any]:
    """Median time to the first token of one prompt alone."""
    from exo_engine import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=1)
    seconds = []
    for attempt in range(6):
        (prompt,) = _prompts(vocab_size, (length,), seed=attempt)
        begun = time.perf_counter()
        llm.generate([prompt], params)
        seconds.append(time.perf_counter() - begun)
    median = statistics.median(seconds[1:])
    return {
        "prompt_tokens": length,
        "ttft_ms_median": round(median * 1e3, 2),
        "ttft_ms_worst": round(max(seconds[1:]) * 1e3, 2),
        "tokens_per_second": round(length / median),
    }


def _time_decode(llm: Any, vocab_size: int, num_seqs: int, context: int) -> dict[str, Any]:
    """Median time of a step in which `num_seqs` sequences get one token each."""
    from exo_engine import SamplingParams
    from exo_engine.core.request import EngineRequest

    core, num_steps = llm.core, 40
    params = SamplingParams(temperature=0.0, max_tokens=num_steps + 8, ignore_eos=True)
    names = [f"decode-{num_seqs}-{context}-{index}" for index in range(num_seqs)]
    for name, prompt in zip(
        names, _prompts(vocab_size, (context,) * num_seqs, seed=9), strict=True
    ):
        core.add_request(EngineRequest(name, tuple(prompt), params))
    seconds: list[float] = []
    while core.has_unfinished_requests():
        begun = time.perf_counter()
        outputs = core.step()
        elapsed = time.perf_counter() - begun
        num_tokens = sum(len(output.token_ids) for output in outputs)
        if num_tokens == num_seqs and core.stats().num_waiting == 0:
            seconds.append(elapsed)
    median = statistics.median(seconds[3:])
    return {
        "sequences": num_seqs,
        "context_tokens": context,
        "step_ms_median": round(median * 1e3, 3),
        "step_ms_worst": round(max(seconds[3:]) * 1e3, 3),
        "tokens_per_second": round(num_seqs / median),
    }


def _prompts(vocab_size: int, lengths: tuple[int, ...], *, seed: int) -> list[list[int]]:
    numbers = random.Random(seed)
    return [[numbers.randrange(vocab_size) for _ in range(length)] for length in lengths]


# --- report -----------------------------------------------------------------------------------


def _print_summary(report: Report) -> None:
    num_equal = sum(1 for row in report.equality if row["ok"])
    print(f"\nequality with the CPU: {num_equal} of {len(report.equality)} comparisons hold")
    print(f"\n{'prompt':>8} {'TTFT ms':>10} {'tokens/s':>10}")
    for row in report.speed.get("prefill", ()):
        print(
            f"{row['prompt_tokens']:>8} {row['ttft_ms_median']:>10} {row['tokens_per_second']:>10}"
        )
    print(f"\n{'batch':>8} {'context':>8} {'ITL ms':>10} {'tokens/s':>10} {'weights GB/s':>13}")
    for row in report.speed.get("decode", ()):
        print(
            f"{row['sequences']:>8} {row['context_tokens']:>8} {row['step_ms_median']:>10} "
            f"{row['tokens_per_second']:>10} {row['weights_gb_per_second']:>13}"
        )
    for problem in report.problems:
        print(f"gpu-check: error: {problem}")
    print(f"\n{'FAILED' if report.problems else 'passed'} in {report.wall_seconds} s")


def _write_json(report: Report, output: Path | None) -> None:
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(asdict(report), indent=2) + "\n", encoding="utf-8")
        print(f"figures written to {output}")


if __name__ == "__main__":
    sys.exit(main())
