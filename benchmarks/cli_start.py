"""How long `exo --help` takes, from the start of the process to its end.

The program is started as the installed `exo` is: a new process each time, with warm files. Next to
it, in turns, an interpreter that does nothing, so that what is ours can be told from what is Python's.

    python benchmarks/cli_start.py            # prints; fails above the limit
    python benchmarks/cli_start.py --write    # also replaces docs/benchmarks/cli.md
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

NUM_RUNS = 40
LIMIT_MS = 150.0
PAGE = Path(__file__).parents[1] / "docs" / "benchmarks" / "cli.md"
EXO = str(Path(sys.executable).with_name("exo"))

COMMANDS = {
    "exo --help": [EXO, "--help"],
    "exo dedicated-inference deployment create --help": [
        *(EXO, "dedicated-inference", "deployment", "create", "--help"),
    ],
    "exo version": [EXO, "version"],
    "python -c pass": [sys.executable, "-c", "pass"],
}


@dataclass(frozen=True)
class Figure:
    """Times of one command, in milliseconds.

    Attributes:
        median_ms, p95_ms: wall-clock time.
        cpu_ms: median of the processor time, which other load on the machine changes less.
    """

    command: str
    median_ms: float
    p95_ms: float
    cpu_ms: float


def measure() -> list[Figure]:
    """Run all commands in turns."""
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    for turn in range(NUM_RUNS + 2):
        for name, argv in COMMANDS.items():
            sample = run_once(argv)
            if turn >= 2:  # the first two warm the file cache
                samples[name].append(sample)
    return [figure(name, taken) for name, taken in samples.items()]


def run_once(argv: list[str]) -> tuple[float, float]:
    """Return wall-clock and processor time of one process, in milliseconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    subprocess.run(argv, stdout=subprocess.DEVNULL, check=True)
    wall = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall * 1000, cpu * 1000


def figure(name: str, taken: list[tuple[float, float]]) -> Figure:
    """Reduce the samples of one command."""
    walls = [wall for wall, _ in taken]
    return Figure(
        name,
        statistics.median(walls),
        statistics.quantiles(walls, n=20)[18],
        statistics.median(cpu for _, cpu in taken),
    )


def page(figures: list[Figure], load: tuple[float, float]) -> str:
    """Return the page of the docs."""
    cpu = next(
        line.partition(": ")[2]
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    )
    rows = "\n".join(
        f"| `{f.command}` | {f.median_ms:.0f} | {f.p95_ms:.0f} | {f.cpu_ms:.0f} |" for f in figures
    )
    return f"""# Start of the command line

Made by `python benchmarks/cli_start.py --write` on {datetime.now(UTC):%Y-%m-%d}: {cpu}, {os.cpu_count()}
cores, {platform.system()} {platform.release().split("-")[0]}, Python {platform.python_version()}, \
click {version("click")}, exo-inference {version("exo-inference")}.

A new process each time, {NUM_RUNS} times, the commands in turns. `python -c pass` is what the interpreter
itself takes. `exo --help` must stay within {LIMIT_MS:.0f} ms.
The machine's load average was {load[0]:.1f} before and {load[1]:.1f} after.

| command | median, ms | 95th percentile, ms | median of processor time, ms |
| --- | ---: | ---: | ---: |
{rows}
"""


def main() -> int:
    """Measure, print, and compare with the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"replace {PAGE.name}")
    options = parser.parse_args()
    load_before = os.getloadavg()[0]
    figures = measure()
    text = page(figures, (load_before, os.getloadavg()[0]))
    print(text)
    if options.write:
        PAGE.write_text(text, encoding="utf-8")
    return 0 if figures[0].median_ms <= LIMIT_MS else 1


if __name__ == "__main__":
    sys.exit(main())
