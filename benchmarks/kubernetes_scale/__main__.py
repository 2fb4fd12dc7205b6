"""What the control plane costs with 1,000 deployments on 500 nodes of a real Kubernetes API.

    python -m benchmarks.kubernetes_scale                  # prints the tables
    python -m benchmarks.kubernetes_scale --json           # prints JSON
    python -m benchmarks.kubernetes_scale --write          # also into docs/benchmarks/kubernetes.md
    python -m benchmarks.kubernetes_scale --deployments 20 --nodes 10 --rest 5 --changes 10

etcd, API server, controller-manager, scheduler and KWOK, two controllers and Helm run on this machine
and share its processors. Deployments are created, scaled and read through the HTTP API, with the SDK.
Takes no root; the programs come from `make kubernetes-binaries`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, TaskID

from benchmarks.kubernetes_scale import helm_costs, phases
from benchmarks.kubernetes_scale.applied import AppliedCharts
from benchmarks.kubernetes_scale.plane import GPUS_PER_NODE, NAMESPACE, Plane
from benchmarks.kubernetes_scale.report import Report, write_page
from scripts.kubernetes import binaries
from scripts.kubernetes.simulated import PROGRAMS

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks" / "kubernetes.md"


class _Bar:
    """The progress of one phase after the other, on stderr."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID | None = None
        self._what = ""

    def step(self, what: str) -> None:
        """Show a step whose length nobody knows."""
        self(what, 0, 0)

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show how far a phase is."""
        if self._task is None or what != self._what:
            if not self._progress.console.is_terminal:
                print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)
            if self._task is not None:
                self._progress.update(self._task, total=1, completed=1)
            self._task = self._progress.add_task(what, total=total or None)
            self._what = what
        self._progress.update(self._task, total=total or None, completed=done)


def measure(options: argparse.Namespace, bar: _Bar) -> Report:
    """Run all phases."""
    began, load = time.monotonic(), os.getloadavg()[0]
    # Not below the working directory: the path of etcd's socket must stay under 108 bytes.
    with (
        tempfile.TemporaryDirectory(prefix="exo-bench-") as directory,
        Plane(Path(directory), options.nodes, bar.step) as plane,
    ):
        applied = AppliedCharts(plane.admin, NAMESPACE)
        made = phases.Deployments(plane, applied)
        try:
            burst = phases.burst(plane, made, options.deployments, bar)
            rest = phases.rest(plane, made, options.rest, bar)
            steady = [
                phases.steady(plane, made, rate, options.changes, bar) for rate in options.rate
            ]
            bar.step("Helm alone")
            helm = helm_costs.measure(plane)
            restart = phases.restart(plane, made, bar)
            fail_over = phases.fail_over(plane, made, options.fail_overs, bar)
        finally:
            applied.close()
            if options.logs:
                plane.keep_logs(options.logs)
    return Report(
        command="python -m benchmarks.kubernetes_scale" + "".join(f" {w}" for w in sys.argv[1:]),
        num_deployments=options.deployments,
        num_nodes=options.nodes,
        load_before=load,
        burst=burst,
        rest=rest,
        steady=tuple(steady),
        helm=helm,
        restart=restart,
        fail_over=fail_over,
        total_seconds=time.monotonic() - began,
    )


def read_options(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kubernetes_scale",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--deployments", type=int, default=1000, help="created in the burst (1000)")
    parser.add_argument("--nodes", type=int, default=500, help=f"with {GPUS_PER_NODE} GPUs (500)")
    parser.add_argument("--rest", type=float, default=60.0, help="seconds to measure at rest (60)")
    parser.add_argument(
        "--rate", type=float, action="append", help="steady changes per second; repeat (1, 2)"
    )
    parser.add_argument("--changes", type=int, default=100, help="changes at each rate (100)")
    parser.add_argument("--fail-overs", type=int, default=3, help="kills of the leader (3)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--write", action="store_true", help=f"replace the figures of {PAGE.name}")
    parser.add_argument("--logs", type=Path, help="directory to keep all logs in")
    options = parser.parse_args(argv)
    options.rate = options.rate or [1.0, 2.0]
    numbers = ("deployments", "nodes", "fail_overs", "rest", "changes")
    if wrong := [name for name in numbers if getattr(options, name) <= 0]:
        parser.error(f"--{wrong[0].replace('_', '-')} must be more than 0")
    if min(options.rate) <= 0:
        parser.error("--rate must be more than 0")
    if options.changes < 2:
        parser.error("--changes must be at least 2")
    if options.fail_overs > options.deployments:
        parser.error("--fail-overs must not be more than --deployments")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 2 where the programs are missing."""
    options = read_options(argv)
    try:
        binaries.require(PROGRAMS)
    except binaries.ProgramsMissing as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 2
    try:
        with Progress(console=Console(stderr=True)) as progress:
            report = measure(options, _Bar(progress))
    except KeyboardInterrupt:
        print("stopped; nothing is left", file=sys.stderr)
        return 130
    print(json.dumps(report.as_json(), indent=1) if options.json else report.as_markdown())
    if options.write:
        write_page(PAGE, report.as_markdown())
    return 0


if __name__ == "__main__":
    sys.exit(main())
