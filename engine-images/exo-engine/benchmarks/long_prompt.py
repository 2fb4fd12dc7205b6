"""What a long prompt does to answers in progress, and they to it, on the CPU at default settings.

Eight requests are answered. A round measures the time between their tokens without anything else, then a
prompt of 2,000 tokens alone, then the prompt beside the eight: its time to the first token, and the time
between tokens of the others until then. Ratios are those of a round, and the median round is told.

A busy machine is refused (exit code 3): before each round its load may not be above --max-load, and a round during
which others used more than 8 % of a core is made again, --attempts times at most.

    python benchmarks/long_prompt.py --model 135m --dtype bfloat16
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from exo_engine.core.request import EngineRequest
from exo_engine.llm import LLM
from exo_engine.sampling_params import SamplingParams
from quiet_rounds import EXIT_BUSY, BusyMachine, QuietRounds, add_arguments
from random_models import SIZES, write_model

_BOUNDS = {"median_ratio": 2.0, "p99_ratio": 3.0, "first_token_ratio": 3.0}
_CONTEXT = 64
_STEPS_ALONE = 60


class Bench:
    """An engine, and the requests that are put to it."""

    def __init__(self, model: Path, arguments: argparse.Namespace) -> None:
        self._llm = LLM(model, device="cpu", dtype=arguments.dtype, enable_prefix_caching=False)
        self._core: Any = self._llm.core
        self._length, self._batch = arguments.prompt_tokens, arguments.batch
        self._numbers = random.Random(0)

    def round(self) -> dict[str, float]:
        """Measure once; times in milliseconds."""
        first_alone = self._time_prompt()
        others = [self._add(_CONTEXT, 100_000) for _ in range(self._batch)]
        self._step_until(others, 3)
        alone = self._gaps(lambda: self._step_until(others[:1], _STEPS_ALONE), others)
        begun = time.perf_counter()
        long = self._add(self._length, 1)
        beside = self._gaps(lambda: self._step_until([long], 1), others)
        first_beside = time.perf_counter() - begun
        self._core.abort_requests(others)
        median, most = statistics.median(alone), _p99(alone)
        return {
            "step_ms": 1000 * median,
            "step_p99_ms": 1000 * most,
            "beside_ms": 1000 * statistics.median(beside),
            "beside_p99_ms": 1000 * _p99(beside),
            "first_token_alone_ms": 1000 * first_alone,
            "first_token_beside_ms": 1000 * first_beside,
            "median_ratio": statistics.median(beside) / median,
            "p99_ratio": _p99(beside) / median,
            "first_token_ratio": first_beside / first_alone,
        }

    def _add(self, length: int, max_tokens: int) -> str:
        name = str(time.monotonic_ns())
        most = self._core.config.max_model_len - length
        params = SamplingParams(temperature=0.0, max_tokens=min(max_tokens, most), ignore_eos=True)
        vocab_size = self._core.spec.vocab_size
        prompt = tuple(self._numbers.randrange(vocab_size) for _ in range(length))
        self._core.add_request(EngineRequest(name, prompt, params))
        return name

    def _time_prompt(self) -> float:
        begun = time.perf_counter()
        self._step_until([self._add(self._length, 1)], 1)
        return time.perf_counter() - begun

    def _step_until(self, names: list[str], num_tokens: int) -> list[tuple[str, float]]:
        """Step until all of these have so many tokens; return whose tokens came, and when."""
        came: list[tuple[str, float]] = []
        left = dict.fromkeys(names, num_tokens)
        while any(number > 0 for number in left.values()):
            for output in self._core.step():
                came += [(output.request_id, time.perf_counter())] * len(output.token_ids)
                if output.request_id in left:
                    left[output.request_id] -= len(output.token_ids)
        return came

    @staticmethod
    def _gaps(run: Any, names: list[str]) -> list[float]:
        """Time between tokens of these while `run` steps, from its beginning."""
        last = dict.fromkeys(names, time.perf_counter())
        gaps = []
        for name, moment in run():
            if name in last:
                gaps.append(moment - last[name])
                last[name] = moment
        return gaps


def _p99(values: list[float]) -> float:
    return sorted(values)[int(0.99 * (len(values) - 1))]


def main() -> int:
    """Print the rounds; the exit code is 1 where a bound is passed, 3 on a busy machine."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--model", default="135m", help=f"a directory, or {' or '.join(SIZES)}")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--prompt-tokens", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    add_arguments(parser)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="long-prompt-") as directory:
        model = Path(arguments.model)
        if arguments.model in SIZES:
            model = write_model(Path(directory), SIZES[arguments.model])
        bench = Bench(model, arguments)
        bench.round()  # warms up
        quiet = QuietRounds(arguments.max_load, arguments.attempts)
        try:
            rounds = [quiet.measure(bench.round) for _ in range(arguments.rounds)]
        except BusyMachine as exc:
            print(f"refused: {exc}", file=sys.stderr)
            return EXIT_BUSY
    medians = {key: statistics.median(each[key] for each in rounds) for key in rounds[0]}
    report = {
        **vars(arguments),
        "machine": platform.processor() or platform.machine(),
        "rounds_rejected": quiet.num_rejected,
        "load_average": round(os.getloadavg()[0], 1),
        "medians": {key: round(value, 2) for key, value in medians.items()},
        "bounds": _BOUNDS,
    }
    print(json.dumps(report, indent=2))
    return int(any(medians[key] > bound for key, bound in _BOUNDS.items()))


if __name__ == "__main__":
    sys.exit(main())
