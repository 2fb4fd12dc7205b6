"""The figures of a run: kept one by one, reduced to medians, set in relation to each other and to the machine."""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import subprocess
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.cpu.instructions import of_processor
from benchmarks.cpu.quiet import SLOWEST_PACE, counts
from benchmarks.cpu.shapes import PROMPT_TOKENS, Limits, Shape, floor_of_prompt, floor_of_step

Figures = dict[str, float]
_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Target:
    """A ratio of medians of one run that is wanted: of speeds at least `bound`, of times at most."""

    ours: str
    theirs: str
    case: str
    figure: str
    bounds: dict[str, float]
    """By model."""

    @property
    def is_time(self) -> bool:
        """Whether less is better."""
        return self.figure.endswith(("_ms", "_seconds"))


def _speeds(ours: str, theirs: str, case: str, **bounds: float) -> Target:
    return Target(ours, theirs, case, "tokens_per_second", bounds)


_BF16, _INT4, _LLAMA, _VLLM = "exo-engine-bf16", "exo-engine-int4", "llama.cpp-bf16", "vllm-bf16"
TARGETS = (
    _speeds(_BF16, _LLAMA, "decode 1", s=1.05, m=1.05),
    _speeds(_BF16, _VLLM, "decode 1", s=1.8),
    _speeds(_INT4, "llama.cpp-q4_0", "decode 1", s=1.4, m=1.05),
    _speeds(_BF16, _LLAMA, "decode 8", s=1.5, m=1.5),
    _speeds(_BF16, _VLLM, "decode 8", s=1.25, m=1.25),
    _speeds(_BF16, _VLLM, "decode 32", s=1.15, m=1.0),
    _speeds(_INT4, "llama.cpp-q4_0", "decode 32", s=1.4, m=1.4),
    _speeds(_BF16, _VLLM, "prefill 512", s=1.0, m=1.0),
    _speeds(_BF16, _VLLM, "load", s=1.5, m=1.1),
    _speeds(_BF16, _LLAMA, "load", s=2.0, m=1.8),
    _speeds(_INT4, _VLLM, "load", s=2.0, m=1.7),
    Target(_BF16, _VLLM, "second turn", "second_ttft_ms", {"s": 0.5, "m": 0.5}),
    Target(_BF16, _VLLM, "load", "ttft_p50_ms", {"s": 1.0, "m": 1.0}),
    Target(_BF16, _LLAMA, "load", "ttft_p50_ms", {"s": 1.0, "m": 1.0}),
    Target(_BF16, _VLLM, "load", "itl_p99_ms", {"s": 1.0, "m": 1.0}),
    Target(_BF16, _LLAMA, "load", "itl_p99_ms", {"s": 1.0, "m": 1.0}),
)


@dataclass
class Report:
    """What one run has found, and about whom."""

    command: str
    rounds: int
    is_quick: bool
    output_tokens: int
    slowest_pace: float = SLOWEST_PACE
    """Of the machine's best, that a measurement needs to count; 0: the host is shared, and any counts."""
    made: str = ""
    missing: dict[str, str] = field(default_factory=dict)
    """Who could not take part, or failed, and why."""
    versions: dict[str, str] = field(default_factory=dict)
    flags: dict[str, list[str]] = field(default_factory=dict)
    numbers: dict[str, str] = field(default_factory=dict)
    """What products of a contestant are made of: `bf16` or `int8`."""
    shapes: dict[str, dict[str, Any]] = field(default_factory=dict)
    weights_bytes: dict[str, dict[str, float]] = field(default_factory=dict)
    """By model and contestant."""
    measurements: list[dict[str, Any]] = field(default_factory=list)
    machine: str = ""
    kernels: str = ""
    """The instructions that exo-engine computed with; empty: figures kept of an older run do not say."""
    shared_versions: dict[str, str] = field(default_factory=dict)
    commit: str = ""
    """Of the sources, for whoever runs it again; empty: figures kept of an older run do not say."""

    def __post_init__(self) -> None:
        self.made = self.made or f"{datetime.now(UTC):%Y-%m-%d}"
        self.machine = self.machine or machine()
        self.shared_versions = self.shared_versions or versions()

    def add(
        self,
        model: str,
        name: str,
        case: str,
        number: int,
        figures: Figures,
        others: float,
        pace: float = 1.0,
    ) -> None:
        """Keep what one measurement found; without figures it does not count."""
        self.measurements.append(
            {
                "model": model,
                "contestant": name,
                "case": case,
                "round": number,
                "others": round(others, 4),
                "pace": round(pace, 3),
                "counts": bool(figures) and counts(others, pace, self.slowest_pace),
                "figures": {key: float(f"{value:.6g}") for key, value in figures.items()},
            }
        )

    def note_weights(self, model: str, name: str, weights_bytes: float) -> None:
        """Keep what a contestant's weights take."""
        self.weights_bytes.setdefault(model, {})[name] = weights_bytes

    def note_failure(self, name: str, reason: str) -> None:
        """Keep why somebody was left out."""
        self.missing[name] = reason

    def part(self, model: str, cases: Collection[str]) -> Report:
        """Return what it found of one model in some cases, beside what the machine gave."""
        kept = [
            each
            for each in self.measurements
            if each["model"] == model and (each["case"] in cases or each["contestant"] == "machine")
        ]
        shapes = {model: self.shapes[model]}
        weights = {model: self.weights_bytes.get(model, {})}
        return replace(self, shapes=shapes, weights_bytes=weights, measurements=kept)

    @property
    def names(self) -> list[str]:
        """Those of whom there are figures, in the order of their flags."""
        measured = {each["contestant"] for each in self.measurements}
        return [name for name in self.flags if name in measured]

    def values(self, model: str, name: str, case: str, figure: str) -> list[float]:
        """Return what counts of a figure, or in a quick run all."""
        return list(self.by_round(model, name, case, figure).values())

    def by_round(self, model: str, name: str, case: str, figure: str) -> dict[int, float]:
        """Return the figure of each round that counts, by the round; in a quick run of all."""
        return {
            each["round"]: each["figures"][figure]
            for each in self.measurements
            if (each["model"], each["contestant"], each["case"]) == (model, name, case)
            and (each["counts"] or self.is_quick)
            and figure in each["figures"]  # figures kept of an older run may lack it
        }

    def median(self, model: str, name: str, case: str, figure: str) -> float | None:
        """Return the median of what counts; None: nothing does."""
        found = self.values(model, name, case, figure)
        return statistics.median(found) if found else None

    def rejected(self) -> int:
        """Return how many measurements do not count."""
        return sum(not each["counts"] for each in self.measurements)

    def paces(self) -> list[float]:
        """Return the machine's pace, as a share of its best, beside each measurement that counts."""
        return [each.get("pace", 1.0) for each in self.measurements if each["counts"]] or [1.0]

    def limits(self, model: str) -> Limits | None:
        """Return what the machine gave while a model was measured; None: it was never left alone."""
        found = {
            figure: self.median(model, "machine", "limits", figure)
            for figure in ("read_bytes", "bf16", "int8")
        }
        if any(value is None for value in found.values()):
            return None
        known = {figure: value for figure, value in found.items() if value is not None}
        return Limits(known.pop("read_bytes"), known)

    def share_of_floor(self, model: str, name: str, case: str) -> float | None:
        """Return the least time for a case over the time that it took; None: one of them is not known.

        The median of the rounds, each by what the machine gave in it: its memory may be faster in one than in the next.
        """
        speeds = self.by_round(model, name, case, "tokens_per_second")
        shares = [
            self._share(model, name, case, speed, limits)
            for number, limits in self._limits_by_round(model).items()
            if (speed := speeds.get(number))
        ]
        return statistics.median(shares) if shares else None

    def _limits_by_round(self, model: str) -> dict[int, Limits]:
        """Return what the machine gave in each round that knows."""
        reads, *rates = (
            self.by_round(model, "machine", "limits", figure)
            for figure in ("read_bytes", "bf16", "int8")
        )
        return {
            number: Limits(read_bytes, {"bf16": rates[0][number], "int8": rates[1][number]})
            for number, read_bytes in reads.items()
            if all(number in rate for rate in rates)
        }

    def _share(self, model: str, name: str, case: str, speed: float, limits: Limits) -> float:
        shape, numbers = Shape(self.shapes[model]), self.numbers[name]
        kind, _, size = case.partition(" ")
        if kind == "prefill":
            floor = floor_of_prompt(shape, limits, tokens=int(size), numbers=numbers)
            return floor * speed / int(size)
        floor = floor_of_step(
            shape,
            limits,
            weights_bytes=self.weights_bytes[model][name],
            batch=int(size),
            tokens=PROMPT_TOKENS + self.output_tokens / 2,
            numbers=numbers,
        )
        return floor * speed / int(size)

    def ratio(self, target: Target, model: str) -> float | None:
        """Return ours over theirs; None: one of them was not measured."""
        ours, theirs = (
            self.median(model, name, target.case, target.figure)
            for name in (target.ours, target.theirs)
        )
        return ours / theirs if ours is not None and theirs else None

    def ratios(self, target: Target, model: str) -> list[float]:
        """Return ours over theirs in each round in which both count."""
        ours, theirs = (
            self.by_round(model, name, target.case, target.figure)
            for name in (target.ours, target.theirs)
        )
        return [value / theirs[number] for number, value in ours.items() if theirs.get(number)]


def machine() -> str:
    """Return what this machine is, and which instructions for products its processor has."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    models = (line.partition(":")[2] for line in text.splitlines() if line.startswith("model name"))
    cores = f"{len(os.sched_getaffinity(0))} cores of {next(models, platform.machine()).strip()}"
    has = ", ".join(filter(None, (_generation(text), of_processor(text))))
    return f"{cores}{f' ({has})' if has else ''}, {platform.system()} {platform.release()}"


def _generation(cpuinfo: str) -> str:
    """Return `family 26 model 2`, which tells processors apart that share a name; empty where Linux does not say."""
    lines = (line.partition(":") for line in cpuinfo.splitlines())
    said = {name.strip(): value.strip() for name, _, value in lines}
    names = {"cpu family": "family", "model": "model"}
    return " ".join(f"{word} {said[name]}" for name, word in names.items() if name in said)


def commit() -> str:
    """Return the commit of the sources, with `and changes` where they have some, pages aside; empty outside of a clone."""
    if shutil.which("git") is None:
        return ""
    asked = [
        subprocess.run(["git", *words], cwd=_ROOT, capture_output=True, text=True, check=False)
        for words in (
            ("rev-parse", "--short", "HEAD"),
            ("status", "--porcelain", "-uno", "--", ".", ":!docs"),
        )
    ]
    if any(each.returncode for each in asked):
        return ""
    return f"commit {asked[0].stdout.strip()}" + (" and changes" if asked[1].stdout else "")


def versions() -> dict[str, str]:
    """Return versions that all share."""
    return {"Python": platform.python_version(), "torch": version("torch")}
