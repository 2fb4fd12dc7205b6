"""What counts as a line of code."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.count_code import count_code, main

MODULE = '''"""A module.

Of one constant.
"""

# A comment.
LIMIT = 3  # another
"""What it is."""


def answer(text: str = """two
lines""") -> str:
    """Return it."""

    return (
        text
    )
'''


def test_blank_lines_comments_and_docstrings_do_not_count() -> None:
    assert count_code(MODULE) == 6


def test_packages_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "part").mkdir()
    (tmp_path / "top.py").write_text("A = 1\n")
    (tmp_path / "part" / "module.py").write_text(MODULE)
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out.split() == ["1", ".", "6", "part", "7", str(tmp_path)]
