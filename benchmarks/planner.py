"""How long a plan takes in process, and how long the planner takes to load.

Plans of every model of the catalogue, each on one GPU of every kind with default flags, warm; and, each
time in a new process, the import and the first use of the catalogue.

    python benchmarks/planner.py            # prints; fails above the limits
    python benchmarks/planner.py --write    # also replaces docs/benchmarks/planner-speed.md
"""

from __future__ import annotations

import argparse
import platform
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from exo_inference.planner import EngineParameters, advise, find_gpu, load_gpus, load_models, plan
from exo_inference.planner.catalog_models import read_entry

PLAN_LIMIT_MS = 5.0
LOAD_LIMIT_MS = 50.0
NUM_LOADS = 15
PAGE = Path(__file__).parents[1] / "docs" / "benchmarks" / "planner-speed.md"

LOAD = """
import time
start = time.perf_counter()
import exo_inference.planner as planner
imported = time.perf_counter()
planner.load_models(); planner.load_gpus()
loaded = time.perf_counter()
planner.find_model("deepseek-ai/DeepSeek-V3")
print(imported - start, loaded - imported, time.perf_counter() - loaded)
"""


@dataclass(frozen=True)
class Figure:
    """Times of one thing, in milliseconds."""

    what: str
    count: int
    median_ms: float
    p95_ms: float


def summarise(what: str, seconds: list[float]) -> Figure:
    """Return median and 95th percentile."""
    ordered = sorted(1000 * value for value in seconds)
    return Figure(
        what, len(ordered), statistics.median(ordered), ordered[int(0.95 * (len(ordered) - 1))]
    )


def measure() -> list[Figure]:
    """Time everything."""
    parameters, plans, refused = EngineParameters(), [], []
    for _ in range(2):  # the first round warms the caches
        plans.clear()
        for name in load_models():
            model = read_entry(name)
            for gpu in load_gpus().values():
                start = time.perf_counter()
                plan(model, gpu, 1, parameters)
                plans.append(time.perf_counter() - start)
    small = find_gpu("gpua5000")
    for name in load_models():
        start = time.perf_counter()
        advise(read_entry(name), small, 1, parameters)
        refused.append(time.perf_counter() - start)
    loads = [
        [
            float(part)
            for part in subprocess.check_output([sys.executable, "-c", LOAD], text=True).split()
        ]
        for _ in range(NUM_LOADS)
    ]
    return [
        summarise("one plan, warm", plans),
        summarise("advice for one model on one gpua5000", refused),
        summarise("import exo_inference.planner", [each[0] for each in loads]),
        summarise("load both catalogues", [each[1] for each in loads]),
        summarise("find one model, cold", [each[2] for each in loads]),
    ]


def render(figures: list[Figure]) -> str:
    """Return the page."""
    cpu = next(
        (
            line
            for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
            if "model name" in line
        ),
        "",
    )
    lines = [
        "# The planner's speed\n",
        f"{platform.system()}, {cpu.partition(':')[2].strip() or platform.machine()}, Python {platform.python_version()}, "
        f"exo-inference {version('exo-inference')}, {datetime.now(UTC):%Y-%m-%d}. "
        "`python benchmarks/planner.py --write`.\n",
        "| what | times | median | 95th percentile |",
        "| --- | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {f.what} | {f.count} | {f.median_ms:.2f} ms | {f.p95_ms:.2f} ms |" for f in figures
    ]
    lines.append(
        f"\nLimits: {PLAN_LIMIT_MS:.0f} ms for a plan, {LOAD_LIMIT_MS:.0f} ms for the catalogues (medians)."
    )
    return "\n".join(lines) + "\n"


def main() -> int:
    """Measure, print, and fail above the limits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="replace the page")
    arguments = parser.parse_args()
    figures = measure()
    page = render(figures)
    print(page)
    if arguments.write:
        PAGE.write_text(page, encoding="utf-8")
    return int(figures[0].median_ms > PLAN_LIMIT_MS or figures[3].median_ms > LOAD_LIMIT_MS)


if __name__ == "__main__":
    raise SystemExit(main())
