"""The two looks of a table: a list in box drawing, and the labelled rows of one object.

Pure text in, text out; the characters are those of the `exo` CLI. Columns are as wide as what they
hold, so that nothing is cut. Used by `output.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from exo_inference.cli.terminal import display_width, harmless


def draw_list(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Draw a list; an empty one is drawn as nothing at all."""
    if not rows:
        return ""
    cells = [[header.upper() for header in headers]]
    cells += [[harmless(value) for value in row] for row in rows]
    widths = _column_widths(cells)
    rule = "┼" + "┼".join("─" * (width + 2) for width in widths) + "┼"
    head, *body = ["│" + "│".join(_padded(row, widths)) + "│" for row in cells]
    return "\n".join([rule, head, rule, *body, rule]) + "\n"


def draw_rows(rows: Sequence[tuple[str, str]]) -> str:
    """Draw one object: a label and a value a row."""
    cells = [[label, harmless(value)] for label, value in rows]
    widths = _column_widths(cells)
    return "".join("|" + "|".join(_padded(row, widths)) + "|\n" for row in cells)


def _column_widths(cells: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(display_width, column)) for column in zip(*cells, strict=True)]


def _padded(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [
        f" {value}{' ' * (width - display_width(value))} "
        for value, width in zip(row, widths, strict=True)
    ]
