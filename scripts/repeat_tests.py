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
    """Run the command so often; the status is 1 if any run failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--times", type=int, default=5, help="how often (5)")
    parser.add_argument(
        "--load", type=int, default=0, help="cores that are kept busy meanwhile (0)"
    )
    parser.add_argument("command", nargs="+", help="what runs tests, after --")
    options = parser.parse_args(arguments)
    results = []
    with busy_cores(options.load):
        for number in range(1, options.times + 1):
            seed, start = random.randrange(1_000_000), time.monotonic()
            print(f"\n==== run {number} of {options.times}, seed {seed} ====", flush=True)
            code = subprocess.call([*options.command, f"SEED={seed}"])
            results.append((number, seed, code, time.monotonic() - start))
    print(f"\n==== {options.times} runs beside a load of {options.load} cores ====")
    for number, seed, code, seconds in results:
        print(
            f"run {number}: {'passed' if code == 0 else 'FAILED'} in {seconds:.0f} s, seed {seed}"
        )
    return int(any(code for _, _, code, _ in results))


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
