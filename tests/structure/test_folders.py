"""No folder holds more modules than can be read at a glance, and no file more lines."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
CODE = ("exo_inference", "engine-images", "benchmarks", "images", "scripts", "training")
MOST = 25
"""A folder with more has rooms that nobody has named yet. Tests aside, which mirror the packages."""
MOST_LINES = 450
"""Tests included: a longer file has several subjects."""


def test_no_folder_holds_more_than_25_modules() -> None:
    modules = (path for folder in CODE for path in (ROOT / folder).rglob("*.py"))
    sizes = Counter(path.parent.relative_to(ROOT) for path in modules if "tests" not in path.parts)
    assert {str(folder): size for folder, size in sizes.items() if size > MOST} == {}


def test_no_file_has_more_than_450_lines() -> None:
    paths = (path for folder in (*CODE, "tests") for path in (ROOT / folder).rglob("*.*"))
    code = (path for path in paths if path.suffix in (".py", ".h", ".cpp"))
    sizes = {path: len(path.read_bytes().splitlines()) for path in code}
    assert {path.suffix for path in sizes} == {".py", ".h", ".cpp"}
    assert len(sizes) > 1000
    assert {str(path): size for path, size in sizes.items() if size > MOST_LINES} == {}
