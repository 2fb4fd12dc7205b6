"""What kernels are held to as they are compiled, and which aims whole steps miss as they are reckoned.

`gpu_reckoning.py` writes both into the page of the documentation; the tests hold what is compiled to the same bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from gpu_measured import MOST_LOST, step_targets

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
