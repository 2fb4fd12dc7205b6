"""The example files as objects, for all tests of this folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
REPOSITORY = "https://github.com/exo-inference/exo-inference"


def load(path: str) -> list[dict[str, Any]]:
    """Return the objects of one file below `examples/`."""
    text = (EXAMPLES / path).read_text("utf-8")
    return [item for item in yaml.safe_load_all(text) if item]


def only(path: str, kind: str, name: str) -> dict[str, Any]:
    """Return the one object of a file with this kind and name."""
    (found,) = [
        item for item in load(path) if item["kind"] == kind and item["metadata"]["name"] == name
    ]
    return found
