"""The two looks of a table: a list in box drawing, and the labelled rows of one object.

Pure text in, text out; the characters are those of the `exo` CLI. Columns are as wide as what they
hold, so that nothing is cut, but on a terminal that is narrower. Used by `output.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from exo_inference.cli.rendering.colours import Paint, as_it_is
from exo_inference.cli.rendering.terminal import display_width, harmless

MIN_WIDTH = 6
"""A column is not made narrower than this, however narrow the terminal is."""

STATUS = "Status"
"""Label of the column and of the row whose words are coloured."""


def draw_list(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    columns: int | None = None,
    paint: Paint = as_it_is,
) -> str:
    """Draw a list; an empty one is drawn as nothing at all.

    Args:
        headers: labels of the columns.
        rows: the cells.
        columns: of the terminal; what does not fit is cut, and ends in `…`.
        paint: colours a padded cell by the state in it.
    """
    if not rows:
        return ""
    cells = [[header.upper() for header in headers]]
    cells += [[harmless(value) for value in row] for row in rows]
    widths = _fitted(_column_widths(cells), columns)
    rule = "┼" + "┼".join("─" * (width + 2) for width in widths) + "┼"
    head, *body = [_padded(row, widths) for row in cells]
    if STATUS in headers:
        at = list(headers).index(STATUS)
        for padded, row in zip(body, rows, strict=True):
            padded[at] = paint(row[at], padded[at])
    lines = ["│" + "│".join(padded) + "│" for padded in (head, *body)]
    return "\n".join([rule, lines[0], rule, *lines[1:], rule]) + "\n"


def draw_rows(
    rows: Sequence[tuple[str, str]], *, columns: int | None = None, paint: Paint = as_it_is
) -> str:
    """Draw one object: a label and a value a row.

    Values are never cut: one that is longer than the terminal's `columns` goes on in its next lines,
    and the others are not padded to that.
    """
    cells = [[label, harmless(value)] for label, value in rows]
    widths = _column_widths(cells)
    if columns is not None and cells:
        widths[1] = min(widths[1], max(MIN_WIDTH, columns - widths[0] - 7))
    drawn = [_padded(row, [widths[0], max(widths[1], display_width(row[1]))]) for row in cells]
    for padded, (label, value) in zip(drawn, rows, strict=True):
        if label in (STATUS, "State"):
            padded[1] = paint(value, padded[1])
    return "".join("|" + "|".join(padded) + "|\n" for padded in drawn)


def _fitted(widths: list[int], columns: int | None) -> list[int]:
    """Narrow the widest columns until the table fits, or no column can be narrower."""
    if columns is None:
        return widths
    excess = sum(widths) + 3 * len(widths) + 1 - columns
    fitted = list(widths)
    while excess > 0 and max(fitted) > MIN_WIDTH:
        fitted[fitted.index(max(fitted))] -= 1
        excess -= 1
    return fitted


def _cut(text: str, width: int) -> str:
    if display_width(text) <= width:
        return text
    while display_width(text) > width - 1:
        text = text[:-1]
    return text + "…"


def _column_widths(cells: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(display_width, column)) for column in zip(*cells, strict=True)]


def _padded(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [
        f" {value}{' ' * (width - display_width(value))} "
        for value, width in (
            (_cut(each, width), width) for each, width in zip(row, widths, strict=True)
        )
    ]
