"""Plans that pages show are those that the planner makes (`exo` finds no home and no control plane here)."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import Exo

ROOT = Path(__file__).parents[3]
# What follows a command on these pages is a part of what it prints.
COMMAND = re.compile(r"exo ai (deployment plan .*(?:--gpu-count 1|--compare))$", re.MULTILINE)


def examples() -> list[tuple[str, str, str]]:
    """Return page, command and what the page shows of its output."""
    found = []
    for page in ("README.md", "docs/how-to/plan.md"):
        text = (ROOT / page).read_text()
        for match in COMMAND.finditer(text):
            shown = text[match.end() :].removeprefix("\n\n```text").split("```")[0]
            found.append((page, match[1], shown))
    return found


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize(("page", "command", "shown"), examples())
def test_what_a_page_shows_of_a_plan_is_printed(
    exo: Exo, monkeypatch: pytest.MonkeyPatch, page: str, command: str, shown: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = exo("ai", *shlex.split(command), "--offline").out
    printed = words(
        re.sub(r"  +why$", "", out, flags=re.MULTILINE)
    )  # a column that pages leave out
    parts = [words(part) for part in re.split(r"\.\.\.\n|…|\.\.\.$", shown.strip())]
    assert any(parts)
    for part in parts:
        assert part in printed, page


def test_all_of_them_are_found() -> None:
    assert [page for page, _, _ in examples()] == ["README.md"] + 2 * ["docs/how-to/plan.md"]
