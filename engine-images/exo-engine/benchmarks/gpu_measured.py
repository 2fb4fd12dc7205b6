"""What `gpu_check.py` has measured on a GPU, as a part of the documentation's page; no figure here is reckoned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_TABLES: Sequence[tuple[str, str, Mapping[str, tuple[str, float]]]] = (
    ("The device", "limit", {"bytes_per_second": ("TB/s", 1e-12), "operations_per_second": ("TFLOP/s", 1e-12)}),
    ("Steps of single tokens", "sequences", {"context": ("context", 1), "step_seconds": ("ms per step", 1e3), "tokens_per_second": ("tokens/s", 1), "planner_tokens_per_second": ("planner, tokens/s", 1), "share_of_roofline": ("of the copy rate, %", 100)}),
    ("Batches that do not fit into the cache", "does_not_fit", {"context": ("context", 1), "sequences_that_fit": ("sequences that do", 1)}),
    ("Prompts", "prompt", {"seconds": ("ms", 1e3), "tokens_per_second": ("tokens/s", 1)}),
    ("Mixed requests", "mixed_requests", {"seconds": ("s", 1), "tokens_per_second": ("tokens/s", 1), "times_transformers": ("times transformers", 1)}),
    ("Idle time in steps", "idle_at", {"idle_share": ("idle, %", 100)}),
    ("What --batch-invariant costs", "cost_at", {"lost_share": ("tokens/s lost, %", 100)}),
    ("Starts", "ready_seconds", {"weights_bytes": ("weights, GB", 1e-9)}),
)  # fmt: skip
"""Title, the key that tells a table's rows, and the other columns: key, title and what the number is multiplied by."""

MOST_LOST = 0.15
"""Of tokens per second, by sums that depend on no neighbour."""

_TARGETS: Sequence[tuple[Mapping[str, Any], str, float]] = (
    ({"model": "llama-3.1-8b", "sequences": 1}, "tokens_per_second", 240),
    ({"model": "llama-3.1-8b", "sequences": 32}, "tokens_per_second", 5_700),
    ({"model": "llama-3.1-8b", "sequences": 256}, "tokens_per_second", 16_000),
    ({"model": "llama-3.1-8b", "prompt": 2048}, "tokens_per_second", 40_000),
    ({"model": "llama-3.1-8b fp8", "sequences": 256}, "tokens_per_second", 26_000),
    ({"model": "qwen3-0.6b", "sequences": 1}, "tokens_per_second", 900),
    ({"model": "qwen3-0.6b", "sequences": 256}, "tokens_per_second", 25_000),
    ({"model": "llama-3.1-8b", "mixed_requests": 256}, "times_transformers", 5),
    ({"model": "llama-3.1-8b", "idle_at": 32}, "idle_share", 0.03),
    ({"model": "llama-3.1-8b batch-invariant", "cost_at": 32}, "lost_share", MOST_LOST),
    ({"model": "llama-3.1-8b"}, "ready_seconds", 20),
)
"""On one H200: what tells a row, what of it counts, and how much it is to be; at most of idle time, of what is lost and of starts."""
_AT_MOST = ("idle_share", "lost_share", "ready_seconds")


def step_targets() -> Mapping[tuple[str, int], float]:
    """Return the least tokens per second of steps on one H200, by model and sequences."""
    return {
        (row["model"], row["sequences"]): aim
        for row, key, aim in _TARGETS
        if key == "tokens_per_second" and "sequences" in row
    }


def measured(report: Mapping[str, Any]) -> list[str]:
    """Return the lines of a page.

    Args:
        report: what `gpu_check.py --output` wrote.

    Raises:
        ValueError: it was not made on a GPU, or the GPU did not answer.
    """
    environment, parts = report["environment"], report["parts"]
    if environment["device"] != "cuda":
        raise ValueError("these figures were not measured on a GPU, so they are none of this page")
    if "problem" in environment:
        raise ValueError(f"nothing was measured: {environment['problem']}")
    return [
        "## Measured",
        "",
        f"By `make gpu-check` on one {environment['gpu']} with {environment['gpu_memory_gib']} GiB, "
        f"torch {environment['torch']}, Triton {environment['triton']}, in {report['wall_seconds']:.0f} s.",
        *tables(parts),
        *(_targets(parts) if "H200" in environment["gpu"] else ()),
        "",
    ]


def tables(parts: Mapping[str, Any]) -> list[str]:
    """Return the lines of what became of each part, and of what was measured."""
    lines = ["", "| part | result | comparisons that hold |", "| --- | --- | --- |"]
    for name, part in parts.items():
        checks = [row["ok"] for row in part["rows"] if "ok" in row]
        held = f"{sum(checks)} of {len(checks)}" if checks else ""
        reason = f": {part['refused']}" if part["passed"] and "refused" in part else ""
        lines.append(f"| {name} | {result(part)}{reason} | {held} |")
    rows = [row for part in parts.values() for row in part["rows"]]
    for title, key, columns in _TABLES:
        lines += _table(title, key, columns, [row for row in rows if key in row])
    return lines


def result(part: Mapping[str, Any]) -> str:
    """Return what became of a part, in a word."""
    if not part["passed"]:
        return "FAILED"
    return "refused" if "refused" in part else "passed"


def _targets(parts: Mapping[str, Any]) -> Iterator[str]:
    yield from ("", "### Targets on an H200", "", "| what | wanted | measured | reached |", "| --- | --- | --- | --- |")  # fmt: skip
    rows = [row for part in parts.values() for row in part["rows"]]
    for told, what, wanted in _TARGETS:
        found = (row[what] for row in rows if told.items() <= row.items() and what in row)
        value = next(found, None)
        words = ", ".join(str(each) if name == "model" else f"{name.replace('_', ' ')} {each}" for name, each in told.items())  # fmt: skip
        sign, reached = "≤" if what in _AT_MOST else "≥", ""
        if value is not None:
            reached = "yes" if (value <= wanted if what in _AT_MOST else value >= wanted) else "no"
        shown = "not measured" if value is None else _number(value)
        yield f"| {words}: {what.replace('_', ' ')} | {sign} {_number(wanted)} | {shown} | {reached} |"


def _table(
    title: str,
    key: str,
    columns: Mapping[str, tuple[str, float]],
    rows: Sequence[Mapping[str, Any]],
) -> Iterator[str]:
    if not rows:
        return
    yield from ("", f"### {title}", "")
    heads = ["what", key.replace("_", " "), *(head for head, _ in columns.values())]
    yield f"| {' | '.join(heads)} |"
    yield f"|{' --- |' * len(heads)}"
    for row in rows:
        what = row.get("model") or ("transformers" if "transformers" in row else "")
        cells = [
            _number(row[each] * by) if each in row else "" for each, (_, by) in columns.items()
        ]
        told = row[key] if isinstance(row[key], str) else _number(row[key])
        yield f"| {' | '.join([what, told, *cells])} |"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) or value >= 1000 else f"{value:.3g}"
