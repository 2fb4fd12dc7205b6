"""Parts of the page on GPUs: what `gpu_check.py` has measured, what kernels are held to, and the aims that are missed.

No figure of the first is reckoned. The tests hold what is compiled to the bounds that are told here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

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


# Bytes per thread that are moved from registers to memory, at most, by the size of a head: 0 is what has no heads,
# 576 latent attention.
MOST_SPILLED: Mapping[int, int] = {0: 0, 64: 0, 128: 0, 256: 64, 576: 256}
MOST_SPILLED_AMD: Mapping[int, int] = {0: 0, 64: 0, 128: 0, 256: 128, 576: 64}
# Of queries of float32 on NVIDIA's GPUs, and of them fixed sums alone: these have two loops in each other.
MOST_SPILLED_FLOAT32: Mapping[int, int] = {64: 16, 128: 32, 256: 64}


class Step(Protocol):
    """A step of single tokens; see `gpu_reckoning.Step`."""

    @property
    def card(self) -> str:
        """Its name."""

    @property
    def model(self) -> str:
        """Its name."""

    @property
    def sequences(self) -> int:
        """With a token each."""

    @property
    def plain_us(self) -> float:
        """What it takes without `--batch-invariant`."""

    @property
    def lost(self) -> float:
        """The share of its tokens per second that `--batch-invariant` takes."""


def bounds() -> Sequence[str]:
    """Return the section on what the compiler makes of kernels."""
    of_float32 = MOST_SPILLED_FLOAT32
    return [
        "## What the compiler is held to",
        "",
        "The tests compile every kernel and hold it to these bounds.",
        "",
        "| heads | bytes of a thread's registers in memory, NVIDIA | AMD | float32 with fixed sums, NVIDIA |",
        "| --- | --- | --- | --- |",
        *(
            f"| {_HEADS[dim]} | {_most(most)} | {_most(MOST_SPILLED_AMD[dim])} | "
            f"{_most(of_float32[dim]) if dim in of_float32 else ''} |"
            for dim, most in MOST_SPILLED.items()
        ),
        "",
        "A thread reads 16 bytes of a row at once. These reads are narrower:",
        "",
        "- Numbers of one byte: 8 bytes, and 4 on AMD's GPUs. They become 16-bit numbers, and a tensor core takes 16 bytes of those from a thread.",
        "- Numbers of one byte beside queries of float32: 4 bytes, and 2 on AMD's GPUs. Each becomes 4 bytes.",
        "- Other numbers on AMD's GPUs: 8 bytes. A wave has 64 threads there, so each has half as much of a tile.",
        "- Codes that AMD's GPUs turn into a matrix of numbers: 1 byte. The compiler takes them one by one.",
        "- Inputs of codes in groups of 32: 4 bytes. A tile has only 16 inputs of a group, and 128 threads share them.",
        "- Parts of a sum that are added up: 4 bytes. A program has one row or little more.",
        "- Scales, tables, positions, and weights of norms: one number or two. A thread needs no more of them.",
    ]


_HEADS = {
    0: "none",
    64: "of 64 numbers",
    128: "of 128 numbers",
    256: "of 256 numbers",
    576: "latents (MLA)",
}


def _most(num_bytes: int) -> str:
    return f"≤ {num_bytes}" if num_bytes else "0"


def missed(steps: Iterable[Step]) -> Sequence[str]:
    """Return the section on aims that steps miss, of the figures in their table."""
    return [
        "### Aims that these times miss",
        "",
        *(list(_missed(tuple(steps))) or ["They miss none."]),
    ]


def _missed(steps: Sequence[Step]) -> Iterator[str]:
    for each in steps:
        if each.lost > MOST_LOST:
            yield (
                f"- {each.card}, {each.model}, {each.sequences} sequences: `--batch-invariant` takes {100 * each.lost:.1f} % "
                f"of the tokens per second. The aim is {100 * MOST_LOST:.0f} % at most."
            )
    for each in steps:
        aim = step_targets().get((each.model.lower(), each.sequences))
        reckoned = each.sequences / each.plain_us * 1e6
        if each.card == "H200" and aim is not None and reckoned < aim:
            yield (
                f"- {each.card}, {each.model}, {each.sequences} sequences: {reckoned:,.0f} tokens per second without "
                f"`--batch-invariant`. The aim is {aim:,.0f} at least."
            )
