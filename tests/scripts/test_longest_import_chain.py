"""What counts as an import, and that the longest chain of them does not grow again."""

from __future__ import annotations

from graphlib import CycleError
from pathlib import Path

import pytest

from scripts.longest_import_chain import longest_chain, main, read_imports

ROOT = Path(__file__).parents[2]
MOST = 28
"""Modules of the longest chain; it had 29 before rooms and layers were drawn."""

MODULES = {
    "__init__.py": "",
    "top.py": "import json\nfrom package.middle import first\nfrom package.part import second",
    "middle.py": "try:\n    import package.part\nexcept ImportError:\n    import package.spare",
    "spare.py": "",
    "part/__init__.py": "from package.part.second import third",
    "part/second.py": (
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from package.top import name\n"
        "else:\n    import package.spare\n"
        "def later():\n    from package.middle import name\n"
    ),
}


def write(folder: Path, modules: dict[str, str]) -> Path:
    for name, text in modules.items():
        path = folder / "package" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "package"


def test_what_is_imported_later_or_for_types_alone_does_not_count(tmp_path: Path) -> None:
    imports = read_imports(write(tmp_path, MODULES))
    assert imports == {
        "package": set(),
        "package.top": {"package.middle", "package.part.second"},
        "package.middle": {"package.part", "package.spare"},
        "package.spare": set(),
        "package.part": {"package.part.second"},
        "package.part.second": {"package.spare"},
    }
    names = ("top", "middle", "part", "part.second", "spare")
    assert longest_chain(imports) == [f"package.{name}" for name in names]


def test_a_circle_has_no_longest_chain(tmp_path: Path) -> None:
    circle = {"one.py": "import package.two", "two.py": "import package.one"}
    with pytest.raises(CycleError):
        longest_chain(read_imports(write(tmp_path, circle)))


def test_the_longest_chain_is_shorter_than_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(ROOT / "exo_inference")]) == 0
    head, *chain = capsys.readouterr().out.splitlines()
    assert int(head.split()[0]) == len(chain) <= MOST, chain
