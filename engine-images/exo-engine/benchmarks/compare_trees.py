"""Compare the speed of two source trees of the engine, or of two settings of one, on the CPU.

One process per side with the same model of random weights; rounds alternate between them, so that a
busy machine slows both alike. Timed are a step that decodes 1, 8 and 32 sequences, and the prefill of
512 tokens, by the clock and by the processor's time, which others on the machine disturb less. Medians are
of all rounds, and the ratio is of medians: below 1, "after" is faster.

    git worktree add /tmp/before <commit>
    python benchmarks/compare_trees.py --before /tmp/before/engine-images/exo-engine/src --after src
    python benchmarks/compare_trees.py --before src --after src --after-options '{"quantization": "int8"}'
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from random_models import SIZES, write_model

CASES = ("decode 1", "decode 8", "decode 32", "prefill 512")
Seconds = tuple[float, float]
"""Of one step: by the clock, and by the processor's time."""
_CONTEXT = 16
_STEPS = 8


def main() -> int:
    """Run both sides in turns and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--before", type=Path, required=True, help="folder with exo_engine")
    parser.add_argument("--after", type=Path, required=True, help="likewise")
    parser.add_argument("--before-options", default="{}", help="fields of EngineConfig as JSON")
    parser.add_argument("--after-options", default="{}", help="likewise")
    parser.add_argument("--model", default="135m", help=f"a directory, or {' or '.join(SIZES)}")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker is not None:
        return _work(arguments.worker)
    with tempfile.TemporaryDirectory(prefix="compare-trees-") as directory:
        model = Path(arguments.model)
        if arguments.model in SIZES:
            model = write_model(Path(directory), SIZES[arguments.model])
        print(json.dumps(_compare(model, arguments), indent=2))
    return 0


def _compare(model: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    sides = {}
    for name in ("before", "after"):
        options = {"dtype": arguments.dtype, **json.loads(getattr(arguments, f"{name}_options"))}
        sides[name] = _start(getattr(arguments, name), model, options)
    try:
        seconds = _alternate(sides, arguments.rounds)
    finally:
        for side in sides.values():
            side.kill()
            side.wait()
    rows: dict[str, Any] = {}
    for case in CASES:
        rows[case] = {}
        for index, clock in enumerate(("wall", "cpu")):
            before, after = (
                statistics.median(each[index] for each in seconds[case, side]) for side in sides
            )
            rows[case][clock] = {
                "before_ms": round(1000 * before, 2),
                "after_ms": round(1000 * after, 2),
                "ratio": round(after / before, 3),
            }
    return {
        "model": arguments.model,
        "dtype": arguments.dtype,
        "options": [arguments.before_options, arguments.after_options],
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "python": platform.python_version(),
        "load_average": round(os.getloadavg()[0], 1),
        "rounds": arguments.rounds,
        "cases": rows,
    }


def _alternate(sides: dict[str, Any], rounds: int) -> dict[tuple[str, str], list[Seconds]]:
    seconds: dict[tuple[str, str], list[Seconds]] = {(c, s): [] for c in CASES for s in sides}
    for number in range(rounds + 1):
        for case in CASES:
            # Who comes first changes from round to round.
            for name in sorted(sides, reverse=number % 2 == 1):
                side = sides[name]
                side.stdin.write(case + "\n")
                side.stdin.flush()
                taken = json.loads(side.stdout.readline())
                if number:  # the first round warms up
                    seconds[case, name] += taken
    return seconds


def _start(source: Path, model: Path, options: dict[str, Any]) -> subprocess.Popen[str]:
    job = json.dumps([str(source.resolve()), str(model), options])
    return subprocess.Popen(
        [sys.executable, __file__, "--before", ".", "--after", ".", "--worker", job],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _work(job: str) -> int:
    """Answer each line on stdin, a case, with its seconds: of the steps, or of the prompt."""
    source, model, options = json.loads(job)
    sys.path.insert(0, source)
    for name in [each for each in sys.modules if each.partition(".")[0] == "exo_engine"]:
        del sys.modules[name]  # those of the installed tree, by way of random_models
    import exo_engine
    from exo_engine.llm import LLM

    assert Path(exo_engine.__file__).is_relative_to(source), "the tree that was asked for"
    llm = LLM(
        model,
        device="cpu",
        max_model_len=1024,
        max_num_batched_tokens=4096,
        max_num_seqs=64,
        enable_prefix_caching=False,
        kv_cache_bytes=2**29,
        **options,
    )
    for line in sys.stdin:
        kind, _, number = line.strip().partition(" ")
        time_case: Callable[[Any, int], list[Seconds]] = (
            _time_decode if kind == "decode" else _time_prefill
        )
        print(json.dumps(time_case(llm, int(number))), flush=True)
    return 0


def _time_decode(llm: Any, num_seqs: int) -> list[Seconds]:
    core = _begin(llm, num_seqs, _CONTEXT, _STEPS + 2)
    core.step()  # prompts
    core.step()
    return [_time_step(core) for _ in range(_STEPS)]


def _time_prefill(llm: Any, length: int) -> list[Seconds]:
    return [_time_step(_begin(llm, 1, length, 1))]


def _time_step(core: Any) -> Seconds:
    begun = time.perf_counter(), time.process_time()
    core.step()
    return time.perf_counter() - begun[0], time.process_time() - begun[1]


def _begin(llm: Any, num_seqs: int, length: int, max_tokens: int) -> Any:
    from exo_engine.core.request import EngineRequest
    from exo_engine.sampling_params import SamplingParams

    core, vocab_size = llm.core, llm.core.spec.vocab_size
    while core.has_unfinished_requests():
        core.step()
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    for index in range(num_seqs):
        prompt = tuple((index * 31 + each * 7) % vocab_size for each in range(length))
        core.add_request(EngineRequest(f"{time.monotonic_ns()}-{index}", prompt, params))
    return core


if __name__ == "__main__":
    sys.exit(main())
