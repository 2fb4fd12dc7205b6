"""Fills in the tables of request fields in the engine's README from the lists that the engine itself keeps to.

python -m scripts.draw_engine_fields            # write
python -m scripts.draw_engine_fields --check    # fail if anything would change
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from exo_engine.server.inner_fields import OBJECTS
from exo_engine.server.known_fields import ROUTES, KnownFields

PAGE = Path(__file__).parents[1] / "engine-images" / "exo-engine" / "README.md"
BEGIN, END = "<!-- fields: begin, written by `make docs` -->\n", "<!-- fields: end -->\n"
_NOT_THERE = "–"
_WITHIN = "Of the objects within requests (any other field is refused with its place):"


def table() -> str:
    """Return the table: a row per field, a column per route."""
    names = sorted({name for known in ROUTES.values() for name in _listed(known)})
    head = ["field", *(f"`{route}`" for route in ROUTES)]
    rows = [[f"`{name}`", *(state(name, known) for known in ROUTES.values())] for name in names]
    return "".join(_line(row) for row in [head, ["---"] * len(head), *rows])


def table_within() -> str:
    """Return the table of the objects within requests: a row per object, a column per state."""
    states = ("yes", "harmless", "refused")
    rows = [
        [f"`{route}`", where, *(_names(known, each) for each in states)]
        for route, objects in OBJECTS.items()
        for where, known in objects.items()
    ]
    head = ["route", "object", *states]
    return "".join(_line(row) for row in [head, ["---"] * len(head), *rows])


def _names(known: KnownFields, wanted: str) -> str:
    found = sorted({name for name in _listed(known) if state(name, known) == wanted})
    return ", ".join(f"`{name}`" for name in found)


def state(name: str, known: KnownFields) -> str:
    """Return what becomes of a field on a route."""
    if name in known.honoured - known.refused_here:
        return "yes"
    if name in known.harmless:
        return "harmless"
    return "refused" if name in known.refused.keys() | known.refused_here else _NOT_THERE


def filled(page: str) -> str:
    """Return a page with the table in its place."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{_WITHIN}\n\n{table_within()}\n{END}{after}"


def _listed(known: KnownFields) -> Iterator[str]:
    yield from known.honoured
    yield from known.harmless
    yield from known.refused


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def main() -> int:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; fail if it would")
    arguments = parser.parse_args()
    page = PAGE.read_text("utf-8")
    if page == filled(page):
        return 0
    if arguments.check:
        print(f"{PAGE.name} of the engine is not up to date; run `make docs`", file=sys.stderr)
        return 1
    PAGE.write_text(filled(page), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
