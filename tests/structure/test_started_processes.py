"""Processes that ours start import nothing of the folder that the user is in, which may be that of a stranger's files."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
CODE = ("exo_inference", "engine-images/exo-engine/src")
RUNS_A_MODULE = re.compile(r'sys\.executable,\s*(?P<flags>("-\w+",\s*)*)"-m"')


def test_python_is_told_not_to_import_from_the_current_folder() -> None:
    found = [
        (path.relative_to(ROOT).as_posix(), match["flags"])
        for folder in CODE
        for path in (ROOT / folder).rglob("*.py")
        if "tests" not in path.parts
        for match in RUNS_A_MODULE.finditer(path.read_text(encoding="utf-8"))
    ]
    assert len(found) > 5
    assert [path for path, flags in found if '"-P"' not in flags] == []
