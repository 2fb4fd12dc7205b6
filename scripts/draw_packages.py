"""Draws the packages in layers on `docs/architecture.md`, from the imports as they are.

Run as `python -m scripts.draw_packages`, or with `--check` to only compare. A package stands below all that
import it, so that every arrow goes down; a circle cannot be drawn and is an error.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from textwrap import wrap

import grimp

PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
PICTURES = {"packages": "exo_inference", "controller": "exo_inference.controller"}
"""What is drawn between which pair of marks of the page."""

_COLUMN, _WIDTH = 20, 118

Imports = Mapping[str, frozenset[str]]


def draw(parent: str) -> str:
    """Return the members of a package in layers, each with what it imports of the layers below.

    Raises:
        CycleError: members import each other in a circle.
    """
    imports = read_imports(parent)
    blocks = []
    for layer in layers_of(imports):
        lines = [line for name in layer for line in _lines(name, sorted(imports[name]))]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _lines(name: str, below: list[str]) -> Iterator[str]:
    rows = wrap(", ".join(below), _WIDTH - _COLUMN - 2) or [""]
    yield f"{name:{_COLUMN}}{'→ ' if below else ''}{rows[0]}".rstrip()
    yield from (" " * (_COLUMN + 2) + row for row in rows[1:])


def read_imports(parent: str) -> Imports:
    """Return which member of a package imports which others; imports for type checkers do not count."""
    graph = grimp.build_graph("exo_inference", exclude_type_checking_imports=True, cache_dir=None)
    below = f"{parent}."
    found: dict[str, set[str]] = {}
    for module in graph.modules:
        if not module.startswith(below):
            continue
        name = module.removeprefix(below).split(".")[0]
        used = graph.find_modules_directly_imported_by(module)
        members = {u.removeprefix(below).split(".")[0] for u in used if u.startswith(below)}
        found.setdefault(name, set()).update(members - {name})
    return {name: frozenset(used) for name, used in found.items()}


def layers_of(imports: Imports) -> list[list[str]]:
    """Return the names layer by layer, from those that nobody below imports down to those that import none."""
    heights: dict[str, int] = {}
    for name in TopologicalSorter(imports).static_order():
        heights[name] = 1 + max((heights[used] for used in imports[name]), default=-1)
    return [
        sorted(name for name, height in heights.items() if height == level)
        for level in range(max(heights.values()), -1, -1)
    ]


def page_with_pictures(page: str) -> str:
    """Return the page with its pictures as they should be."""
    for mark, parent in PICTURES.items():
        start, end = f"<!-- {mark}: `make docs` -->\n", "<!-- end -->"
        before, found, after = page.partition(start)
        assert found, f"{PAGE.name} has no place for the picture of {parent}"
        _, _, after = after.partition(end)
        page = f"{before}{start}```text\n{draw(parent)}\n```\n{end}{after}"
    return page


def main() -> int:
    """Write the pictures, or compare them with `--check`; 1 when they differ or cannot be drawn."""
    present = PAGE.read_text("utf-8")
    try:
        wanted = page_with_pictures(present)
    except CycleError as error:
        print(
            f"packages import each other in a circle: {' → '.join(error.args[1])}", file=sys.stderr
        )
        return 1
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(wanted, "utf-8")
        return 0
    if present == wanted:
        return 0
    print(
        f"the pictures in docs/{PAGE.name} are not what is imported; run `make docs`",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
