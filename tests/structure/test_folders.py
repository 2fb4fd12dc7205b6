"""No folder holds more modules than can be read at a glance."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
CODE = ("exo_inference", "engine-images", "benchmarks", "images", "scripts", "training")
MOST = 25
"""A folder with more has rooms that nobody has named yet. Tests aside, which mirror the packages."""


def test_no_folder_holds_more_than_25_modules() -> None:
    modules = (path for folder in CODE for path in (ROOT / folder).rglob("*.py"))
    sizes = Counter(path.parent.relative_to(ROOT) for path in modules if "tests" not in path.parts)
    assert {str(folder): size for folder, size in sizes.items() if size > MOST} == {}
