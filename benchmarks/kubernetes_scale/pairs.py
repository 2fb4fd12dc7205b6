"""What one create costs leader, standby and Helm, in an earlier commit and in this tree, in turns.

    python -m benchmarks.kubernetes_scale.pairs --before c733aad             # two pairs of 120 creates
    python -m benchmarks.kubernetes_scale.pairs --before c733aad --pairs 1 --creates 80

Each run is the burst of that tree's own `benchmarks.kubernetes_scale`, from its files: program, charts and
benchmark. They alternate, so that what else the machine does meets both. Needs a clone with its history,
`make kubernetes-binaries`, and the installed packages to be those of both trees.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.kubernetes_scale.report import machine
from scripts.kubernetes import binaries
from scripts.kubernetes.cluster import former_tree
from scripts.kubernetes.images import BuildFailed
from scripts.kubernetes.simulated import PROGRAMS

ROOT = Path(__file__).parents[2]
PARTS = ("leader", "Helm", "standby")
LIMIT_SECONDS = 0.11
"""What the three may take together for one create."""

_NODES = 40
_SHORT = ("--rest=1", "--changes=2", "--rate=1", "--fail-overs=1")
"""What the benchmark measures besides, and nobody reads here."""


def measure(tree: Path, num_creates: int) -> dict[str, Any]:
    """Run the benchmark of a tree; return its figures of the burst, with the load before."""
    words = [f"--deployments={num_creates}", f"--nodes={_NODES}", *_SHORT, "--json"]
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.kubernetes_scale", *words],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    report = json.loads(ended.stdout)
    return {**report["burst"], "load": report["load_before"]}


def table(runs: Sequence[tuple[str, dict[str, Any]]]) -> str:
    """Return the runs as a table, a column for each."""
    costs = [run["cpu_seconds_each"] for _, run in runs]
    rows = [
        ("load average before", [f"{run['load']:.1f}" for _, run in runs]),
        *((part, [f"{cost[part]:.3f}" for cost in costs]) for part in PARTS),
        (
            f"these three (at most {LIMIT_SECONDS})",
            [f"{sum(cost[part] for part in PARTS):.3f}" for cost in costs],
        ),
        ("kube-apiserver", [f"{cost['kube-apiserver']:.3f}" for cost in costs]),
        ("all", [f"{sum(cost.values()):.3f}" for cost in costs]),
        ("accepted to applied, p99, s", [f"{run['applied']['p99']:.1f}" for _, run in runs]),
    ]
    lines = ["| processor seconds per create | " + " | ".join(name for name, _ in runs) + " |"]
    lines.append("| --- |" + " --- |" * len(runs))
    lines += [f"| {what} | {' | '.join(cells)} |" for what, cells in rows]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the pairs and print the table; 2 where something that it needs is missing."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kubernetes_scale.pairs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--before", required=True, help="commit to compare with")
    parser.add_argument("--pairs", type=int, default=2, help="how often (2)")
    parser.add_argument("--creates", type=int, default=120, help="in each run (120)")
    options = parser.parse_args(argv)
    if min(options.pairs, options.creates) < 1:
        parser.error("--pairs and --creates must be at least 1")
    runs: list[tuple[str, dict[str, Any]]] = []
    try:
        binaries.require(PROGRAMS)
        with tempfile.TemporaryDirectory(prefix="exo-pairs-") as directory:
            former = former_tree(options.before, Path(directory))
            for _ in range(options.pairs):
                runs.append((former.name, measure(former, options.creates)))
                runs.append(("this tree", measure(ROOT, options.creates)))
    except (binaries.ProgramsMissing, BuildFailed) as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 2
    print(f"{options.creates} creates, {datetime.now(UTC):%Y-%m-%d}, {machine()}\n")
    print(table(runs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
