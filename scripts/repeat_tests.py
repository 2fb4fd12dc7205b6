"""Runs tests again and again, each time in another order: what `make test-repeat` calls.

    python -m scripts.repeat_tests --times 2 --load 2 -- make test-slow

The command gets `SEED=N` as its last word. With `--load N` that many processes keep a core busy meanwhile, as
tests have to pass beside other work. Every run says its seed, with which the command repeats its order.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import random
import subprocess
import time
from collections.abc import Iterator, Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command so often; the status is 1 if any run failed, and 130 if Ctrl-C ended them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--times", type=int, default=5, help="how often (5)")
    parser.add_argument(
        "--load", type=int, default=0, help="cores that are kept busy meanwhile (0)"
    )
    parser.add_argument("command", nargs="+", help="what runs tests, after --")
    options = parser.parse_args(arguments)
    results: list[tuple[str, int, float]] = []
    interrupted = False
    try:
        with busy_cores(options.load):
            for number in range(1, options.times + 1):
                results.append(_run(options.command, f"run {number} of {options.times}"))
    except KeyboardInterrupt:
        interrupted = True
    print(f"\n==== {len(results)} of {options.times} runs beside {options.load} busy cores ====")
    for number, (result, seed, seconds) in enumerate(results, 1):
        print(f"run {number}: {result} in {seconds:.0f} s, seed {seed}")
    if interrupted:
        print("interrupted before the rest", flush=True)
        return 130
    return int(any(result == "FAILED" for result, _, _ in results))


def _run(command: Sequence[str], title: str) -> tuple[str, int, float]:
    """Run the command with a new seed; return its result, the seed, and how many seconds it took."""
    seed, start = random.randrange(1_000_000), time.monotonic()
    print(f"\n==== {title}, seed {seed} ====", flush=True)
    code = subprocess.call([*command, f"SEED={seed}"])
    return "FAILED" if code else "passed", seed, time.monotonic() - start


@contextlib.contextmanager
def busy_cores(count: int) -> Iterator[None]:
    """Keep so many cores busy until the block ends, or this process does."""
    workers = [
        multiprocessing.get_context("spawn").Process(target=_spin, args=(os.getpid(),), daemon=True)
        for _ in range(count)
    ]
    for worker in workers:
        worker.start()
    try:
        yield
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()


def _spin(parent: int) -> None:
    while os.getppid() == parent:
        sum(range(100_000))


if __name__ == "__main__":
    raise SystemExit(main())
