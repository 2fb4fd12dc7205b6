"""Docs and docstrings name modules that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = ("exo_inference", "engine-images", "benchmarks", "scripts", "tests", "training", "docs")
FILES = {
    path.relative_to(ROOT).as_posix()
    for folder in CODE
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".md") and "changelog" not in path.name
}
FOREIGN = re.compile(
    r"v1/|srt/|config/cache|engine/arg_utils|tensorrt_llm/|benchmarks/kubernetes\.py"
)
"""Paths in the sources of engines, and a module that must not be."""
PLACEHOLDER = re.compile(r"NAME|NOUN|VERB")


@pytest.mark.parametrize("folder", CODE)
def test_modules_that_are_named_are_there(folder: str) -> None:
    missing = [
        f"{file} names {name}"
        for file in sorted(each for each in FILES if each.startswith(f"{folder}/"))
        for name in re.findall(r"`([\w./-]+\.py)`", (ROOT / file).read_text())
        if not FOREIGN.match(name)
        and not PLACEHOLDER.search(name)
        and not any(f"/{each}".endswith(f"/{name.lstrip('./')}") for each in FILES)
    ]
    assert missing == []
