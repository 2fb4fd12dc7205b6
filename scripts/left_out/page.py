"""The part of the planner's page on constants that are set without a part of their starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from exo_inference.planner.overheads import BAND
from scripts.left_out.constants import LeftOut

_LEFT_OUT = """## One constant left out

Each measured constant, set again without one kind of GPU, and the error of what is then predicted for the starts on that
kind. Where all of its starts are on one kind, one machine is left out at a time; where they are on one machine, that cannot
be told. Memory outside PyTorch: the error of the KV memory.

| constant | starts | value | half between | left out | mean error | median error |
| --- | ---: | ---: | ---: | --- | ---: | ---: |
"""

_GRAPHS_LEFT_OUT = """
Captured graphs: the error of the estimate that a start prints. Per layer and size there is one middle, of all estimates; what
lies beside that is added to it.

| constant | starts | value | half between | left out | mean error | median error |
| --- | ---: | ---: | ---: | --- | ---: | ---: |
"""

_BAND_LEFT_OUT = f"""
`{BAND}` predicts no memory by itself: set without a kind of GPU it holds {{inside}} of {{count}} starts ({{share:.1%}}; it
is to hold nine in ten).
"""


@dataclass(frozen=True, slots=True)
class LeftOutPart:
    """What the page says of constants that are set without a part of their starts.

    Attributes:
        outside, graphs: of memory outside PyTorch, and of captured graphs.
        band: starts in the band that is set without their kind of GPU, and of how many.
    """

    outside: Sequence[LeftOut]
    graphs: Sequence[LeftOut]
    band: tuple[int, int]

    def lines(self) -> list[str]:
        """Return its part of the page."""
        inside, count = self.band
        rows = "\n".join(_left_out_row(each) for each in self.outside)
        graphs = "\n".join(_left_out_row(each) for each in self.graphs)
        band = _BAND_LEFT_OUT.format(inside=inside, count=count, share=inside / max(1, count))
        return [f"{_LEFT_OUT}{rows}\n{_GRAPHS_LEFT_OUT}{graphs}\n{band}"]


def _left_out_row(each: LeftOut) -> str:
    value = each.value
    errors = [
        "one machine" if error is None else f"{100 * error:.1f} %"
        for error in (each.mean, each.median)
    ]
    if each.gib is not None:
        errors = [f"{size:.2f} GiB ({text})" for size, text in zip(each.gib, errors, strict=True)]
    return (
        f"| {each.constant} | {value.starts} | {value.value:.2f} {each.unit} | {value.low:.2f} to {value.high:.2f} | "
        f"{each.apart or 'nothing'} | {' | '.join(errors)} |"
    )
