"""The pages for contributors name files that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOTS = (ROOT, ROOT / "engine-images" / "exo-engine")
"""A page on the engine names its files from there."""
PAGES = sorted((ROOT / "docs" / "contributing").glob("*.md"))
A_FILE = re.compile(r"`((?:exo_inference|engine-images|charts|docs|scripts|tests)/[^`\s]*)`")
TO_BE_WRITTEN = re.compile(r"NAME|NOUN|VERB")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_is_named_is_there(page: Path) -> None:
    named = [
        each for each in A_FILE.findall(page.read_text("utf-8")) if not TO_BE_WRITTEN.search(each)
    ]
    assert [each for each in named if not any((root / each).exists() for root in ROOTS)] == []
