"""The table of packages on the page of the architecture has every folder of the packages that have many."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "exo_inference"
TABLE = (ROOT / "docs" / "architecture.md").read_text("utf-8")


@pytest.mark.parametrize(
    "parent", ["", "cli/", "controller/", "planner/", "planner/model/", "gateway/"]
)
def test_every_package_has_a_row(parent: str) -> None:
    there = {f"{parent}{path.parent.name}/" for path in (PACKAGE / parent).glob("*/__init__.py")}
    rows = re.findall(r"^\| (`\S+/`(?:, `\S+/`)*) \|", TABLE, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    assert there - named == set()
