"""What a verb prints on stdout goes through `session.output`, or `-O json` would not hold for it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import exo_inference.cli

CLI = Path(exo_inference.cli.__file__).parent
PRINTERS = ("rendering/", "errors/")
"""Folders that know the output formats; what they print was asked of `session.output`, or goes to stderr."""
_WRITERS = frozenset({"echo", "secho", "print", "print_data", "print_drawn"})

THEIR_OWN = {
    "chat.py": "an answer as it comes; `-O json` waits for it all",
    "completion/command.py": "a script for a shell, whatever the format",
    "deployment/create.py": "the manifest of `--dry-run -O yaml`, which `apply` takes",
    "deployment/engine_flags.py": "the text of `params list`, which asks for the format first",
    "deployment/logs.py": "lines as they come; `-O json` has an object a line",
    "events.py": "lines as they come; `-O json` has an object a line",
    "gitops/diff.py": "a unified diff; `-O json` has the changes",
    "gitops/export.py": "YAML that `apply` takes; `-O json` has the objects",
    "help.py": "help is text",
    "metrics.py": "Prometheus's text; `-O json` has the samples",
    "params/check.py": "problems as lines; `-O json` has an array",
    "params/migrate.py": "flags that other programs take; `-O json` has what changed",
    "plan/report.py": "bars and colours; `-O json` has the plan",
    "tree.py": "help is text",
    "version.py": "the number alone; `-O json` has an object",
}
"""Files that write text of their own, and what becomes of it in other formats."""


def _writes(tree: ast.Module) -> bool:
    """Whether code writes to stdout by itself."""
    return any(_is_write(node) for node in ast.walk(tree) if isinstance(node, ast.Call))


def _is_write(call: ast.Call) -> bool:
    match call.func:
        case ast.Attribute(value=ast.Attribute(attr="stdout"), attr="write" | "writelines"):
            return True
        case ast.Name(id=name) | ast.Attribute(attr=name):
            is_elsewhere = any(keyword.arg in ("err", "file") for keyword in call.keywords)
            return name in _WRITERS and not is_elsewhere
    return False


@pytest.mark.parametrize(
    "code",
    ['click.echo("a")', 'click.secho("a")', 'echo("a", nl=False)', 'print("a")', "print_data(a)",
     'sys.stdout.write("a")'],
)  # fmt: skip
def test_every_way_to_write_is_seen(code: str) -> None:
    assert _writes(ast.parse(code))


@pytest.mark.parametrize(
    "code", ['click.echo("a", err=True)', "output.show(fields)", "file.write(text)"]
)
def test_what_is_no_output_is_none(code: str) -> None:
    assert not _writes(ast.parse(code))


def test_verbs_print_through_the_session_but_for_those_with_a_text_of_their_own() -> None:
    paths = (path for path in CLI.rglob("*.py"))
    trees = {path.relative_to(CLI).as_posix(): ast.parse(path.read_text("utf-8")) for path in paths}
    found = {name for name, tree in trees.items() if _writes(tree)}
    assert {name for name in found if not name.startswith(PRINTERS)} == THEIR_OWN.keys()
