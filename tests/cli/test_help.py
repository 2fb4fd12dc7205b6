"""Every command explains itself, is in the docs, and costs nothing to ask."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys

import click
import pytest

from exo_inference.cli.global_options import is_global
from exo_inference.cli.main import main
from exo_inference.cli.root import root
from exo_inference.cli.tree import CommandGroup, Example
from scripts.generate_cli_reference import PAGE, reference_page, walk_all

from .conftest import Exo

COMMANDS = {ctx.command_path: command for command, ctx in walk_all()}
HEAVY = ("httpx", "pydantic", "rich", "yaml", "tenacity", "asyncio", "subprocess", "starlette")


def examples_of(command: click.Command) -> tuple[Example, ...]:
    examples: tuple[Example, ...] = getattr(command, "examples", ())
    return examples


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_has_a_summary_a_paragraph_and_three_examples(path: str) -> None:
    command = COMMANDS[path]
    summary, _, paragraph = (command.help or "").partition("\n\n")
    assert summary.endswith(".")
    assert "\n" not in summary
    assert len(summary) <= 80
    assert len(paragraph.split()) >= 5
    assert len(examples_of(command)) >= 3
    assert all(example.intent and not example.intent.endswith(".") for example in command.examples)


@pytest.mark.parametrize("path", COMMANDS)
def test_every_option_has_help_and_a_placeholder_in_angle_brackets(path: str) -> None:
    for param in COMMANDS[path].params:
        if isinstance(param, click.Option):
            assert param.help, param.name
            named = (param.metavar or "").startswith("<")
            assert param.is_flag or named or isinstance(param.type, click.Choice), param.name


@pytest.mark.parametrize("path", COMMANDS)
def test_the_examples_are_command_lines_that_parse(path: str) -> None:
    for example in examples_of(COMMANDS[path]):
        words = shlex.split(example.line, comments=True)
        for position, word in enumerate(words):
            if word in ("exo", "exo-inference") or word.startswith(("$(exo", "<(exo")):
                parses(words[position + 1 :])


def parses(words: list[str]) -> None:
    """Parse one command line up to where the shell takes over; nothing runs."""
    ends = [n for n, word in enumerate(words) if word[:1] in ("|", ">", "<", ";", "&")]
    words = words[: ends[0]] if ends else words
    words = [word.rstrip(")") for word in words]
    command: click.Command = root
    ctx = click.Context(root, info_name="exo", **root.context_settings)
    while isinstance(command, CommandGroup):
        assert words, f"{ctx.command_path} is no complete example"
        found = command.get_command(ctx, words[0])
        assert found is not None, f"{ctx.command_path} has no command {words[0]}"
        command = found
        ctx = click.Context(command, info_name=words[0], parent=ctx, **command.context_settings)
        words = words[1:]
    command.make_context(command.name, [word for word in words if word], parent=ctx.parent)


@pytest.mark.parametrize("path", COMMANDS)
def test_help_lists_the_global_flags_and_the_examples(exo: Exo, path: str) -> None:
    result = exo(*path.split()[1:], "--help")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"Usage: {path}")
    for word in ("--output-format", "--output-template", "--quiet", "--config", "--use-account"):
        assert word in result.out
    assert result.out.count("  # ") >= 3


def test_every_command_is_in_the_docs_word_for_word() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference_page(), (
        "run python -m scripts.generate_cli_reference --write"
    )
    for path in COMMANDS:
        assert f"\n## {path}\n" in PAGE.read_text(encoding="utf-8")


def test_a_group_alone_prints_its_help(exo: Exo) -> None:
    for argv in ((), ("ai",), ("ai", "model"), ("ai", "deployment")):
        result = exo(*argv)
        assert result.code == 0
        assert "Commands:" in result.out


def test_a_flag_of_a_command_hides_the_global_one_of_that_name() -> None:
    command = COMMANDS["exo dedicated-inference deployment create"]
    params = command.get_params(click.Context(command, **command.context_settings))
    timeouts = [param for param in params if "--timeout" in param.opts]
    assert [is_global(param) for param in timeouts] == [False]


def test_aliases_are_declared_alike_by_group_and_command() -> None:
    for command in COMMANDS.values():
        if isinstance(command, CommandGroup):
            for member in command.members:
                assert member.load().aliases == member.aliases, member.name
                assert member.load().name == member.name


@pytest.mark.parametrize("argv", [["--help"], ["version"], ["ai", "--help"], ["completion", "zsh"]])
def test_asking_for_help_loads_no_library(argv: list[str]) -> None:
    code = (
        "import sys, json; from exo_inference.cli.main import main; "
        f"code = main({argv!r}); print(json.dumps([code, sorted(sys.modules)]), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    exit_code, modules = json.loads(done.stderr)
    assert exit_code == 0
    assert [name for name in HEAVY if name in modules] == []


def test_version(exo: Exo) -> None:
    from exo_inference import __version__

    assert exo("version").out == f"{__version__}\n"


def test_both_ways_to_start_the_program_are_the_same() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "exo_inference.cli", "version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip()
    assert callable(main)


@pytest.mark.parametrize("words", [("help",), ("ai", "help", "deployment", "create")])
def test_help_can_be_had_as_json(exo: Exo, words: tuple[str, ...]) -> None:
    result = exo(*words, "-O", "json")
    assert (result.code, result.err) == (0, "")
    found = json.loads(result.out)
    assert found["command"].startswith("exo")
    assert found["help"].startswith(f"Usage: {found['command']}")
