"""docs/benchmarks/cpu.md and cpu.json from a report, or those beside them: of another machine, or of fewer instructions.

What is written by hand around the figures stays.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.cpu.quiet import SLOWEST_PACE, shared_host
from benchmarks.cpu.report import TARGETS, Report
from benchmarks.cpu.run import OFFLINE

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks" / "cpu.md"
BEGIN = "<!-- figures: written by the benchmark -->"
END = "<!-- end of figures -->"
TITLES = {
    "s": "S, the shape of SmolLM2-135M",
    "m": "M, the shape of Qwen2.5-0.5B",
    "l": "L, the shape of TinyLlama-1.1B",
    "tiny": "tiny, for tests of the benchmark",
}
_CASES = {
    "Without HTTP": OFFLINE,
    "Over HTTP": ("load", "second turn", "long prompt"),
    "1,000 requests": ("many",),
}
_OF_EACH_SERVER = ("start", "memory")
Key = tuple[str, str]
"""A model, and one of the kinds of cases."""
SERVED = (
    ("load", "tokens_per_second", "tokens/s"),
    ("load", "ttft_p50_ms", "first token p50, ms"),
    ("load", "ttft_p99_ms", "p99"),
    ("load", "itl_p50_ms", "between tokens p50, ms"),
    ("load", "itl_p99_ms", "p99"),
    ("second turn", "first_ttft_ms", "first turn, first token, ms"),
    ("second turn", "second_ttft_ms", "second turn"),
    ("long prompt", "itl_alone_p50_ms", "8 answers alone, between tokens p50, ms"),
    ("long prompt", "itl_p50_ms", "beside 2,000 tokens p50"),
    ("long prompt", "itl_p99_ms", "p99"),
    ("long prompt", "ttft_ms", "their first token, ms"),
    ("many", "tokens_per_second", "64 at a time, tokens/s"),
    ("many", "grown_mb", "memory more after them than before, MB"),
    ("start", "ready_seconds", "ready, s"),
    ("memory", "peak_mb", "peak memory, MB"),
)


def as_json(reports: Sequence[Report]) -> str:
    """Return everything that was measured, with what it was measured on."""
    return json.dumps([dataclasses.asdict(each) for each in reports], indent=1) + "\n"


def parts_of(report: Report) -> dict[Key, Report]:
    """Return a run by model and kind: what is compared with each other, and replaced together."""
    parts = {}
    for model in report.shapes:
        measured = {each["case"] for each in report.measurements if each["model"] == model}
        for kind, cases in _CASES.items():
            if measured & set(cases):
                parts[model, kind] = report.part(model, (*cases, *_OF_EACH_SERVER))
    return parts


def as_markdown(parts: Mapping[Key, Report]) -> str:
    """Return what stands between `BEGIN` and `END`."""
    texts = []
    for model, title in TITLES.items():
        there = [(kind, parts[model, kind]) for kind in _CASES if (model, kind) in parts]
        if there:
            texts.append(f"## {title}")
        for kind, report in there:
            texts += [f"### {kind}", _head(report), _missing(report), _limits(report, model)]
            texts += [_offline(report, model), _served(report, model), _targets(report, model)]
            texts.append(_flags(report))
    return "\n\n".join(text for text in texts if text)


def page_of(name: str | None) -> Path:
    """Return the page of another machine, or of engines held to some instructions; None: the first one."""
    return PAGE.with_stem(f"{PAGE.stem}-{name}") if name else PAGE


def write(report: Report, name: str | None = None) -> None:
    """Replace the figures of what was measured, on the page and in JSON; others stay, each with its own date."""
    page = page_of(name)
    figures = page.with_suffix(".json")
    kept = []
    if figures.is_file():
        kept = [Report(**each) for each in json.loads(figures.read_text(encoding="utf-8"))]
    parts = {key: part for each in (*kept, report) for key, part in parts_of(each).items()}
    before, rest = page.read_text(encoding="utf-8").split(BEGIN)
    _, after = rest.split(END)
    page.write_text(f"{before}{BEGIN}\n\n{as_markdown(parts)}\n\n{END}{after}", encoding="utf-8")
    figures.write_text(as_json(list(parts.values())), encoding="utf-8")


def _head(report: Report) -> str:
    where = ", ".join(f"{name} {value}" for name, value in report.shared_versions.items())
    total, rejected = len(report.measurements), report.rejected()
    at = f" at {report.commit}" if report.commit else ""
    return (
        f"Made on {report.made}{at} by `{report.command}`: {report.machine}; {where}"
        + (f"; kernels of exo-engine: {report.kernels}" if report.kernels else "")
        + f". Medians of {report.rounds} rounds; "
        f"{rejected} of {total} measurements did not count, as others used the machine."
        + (f" {shared_host(report.paces())}" if report.slowest_pace < SLOWEST_PACE else "")
        + (" A quick run, in which all count: it tests the benchmark, no engine." * report.is_quick)
    )


def _missing(report: Report) -> str:
    if not report.missing:
        return "Everybody took part."
    return "Left out:\n\n" + "\n".join(f"* {name}: {why}" for name, why in report.missing.items())


def _limits(report: Report, model: str) -> str:
    limits = report.limits(model)
    if limits is None:
        return "What the machine gives at most was not measured undisturbed."
    products = ", ".join(
        f"{1e-9 * each:,.0f} G/s in {name}" for name, each in limits.operations.items()
    )
    return f"The machine: {1e-9 * limits.read_bytes:.1f} GB/s read from memory; operations of products {products}."


def _offline(report: Report, model: str) -> str:
    cases = [
        case for case in OFFLINE if any(_cell(report, model, name, case) for name in report.names)
    ]
    if not cases:
        return ""
    head = ("tokens/s (share of what the machine allows)", *cases)
    rows = [
        (name, *(_cell(report, model, name, case) or "–" for case in cases))
        for name in report.names
        if name != "machine"
    ]
    return _table(head, rows)


def _cell(report: Report, model: str, name: str, case: str) -> str:
    speed = report.median(model, name, case, "tokens_per_second")
    if speed is None:
        return ""
    share = report.share_of_floor(model, name, case)
    return f"{speed:,.0f}" + (f" ({100 * share:.0f} %)" if share is not None else "")


def _served(report: Report, model: str) -> str:
    cells = {
        (name, case, figure): report.median(model, name, case, figure)
        for name in report.names
        for case, figure, _ in SERVED
    }
    there = {name for (name, _, _), value in cells.items() if value is not None}
    names = [name for name in report.names if name in there]
    if not names:
        return ""
    rows = [
        (title, *(_number(cells[name, case, figure]) for name in names))
        for case, figure, title in SERVED
        if any(cells[name, case, figure] is not None for name in names)
    ]
    return _table(("over HTTP", *names), rows)


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 20 else f"{value:.2g}"


def _targets(report: Report, model: str) -> str:
    rows = []
    for target in TARGETS:
        ratio, bound = report.ratio(target, model), target.bounds.get(model)
        if ratio is None or bound is None:
            continue
        is_met = ratio <= bound if target.is_time else ratio >= bound
        word = "at most" if target.is_time else "at least"
        what = f"{target.case}, {target.figure.removesuffix('_ms').replace('_', ' ')}"
        rounds = report.ratios(target, model)
        least_most = f"{min(rounds):.2f} to {max(rounds):.2f}" if rounds else "–"
        row = (what, f"{target.ours} / {target.theirs}", f"{ratio:.2f}", least_most)
        rows.append((*row, f"{word} {bound:g}", "met" if is_met else "missed"))
    head = ("ratio of medians", "of", "measured", "in single rounds", "wanted", "")
    return _table(head, rows) if rows else ""


def _flags(report: Report) -> str:
    lines = []
    for name in report.names:
        if name != "machine":
            lines.append(f"* {name}, {report.versions[name]}:")
            lines += [f"  `{command}`" for command in report.flags[name]]
    return "<details><summary>Commands</summary>\n\n" + "\n".join(lines) + "\n\n</details>"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
