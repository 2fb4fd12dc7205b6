"""The flags about the engine that `create` and `update` share, and the engine's own help.

Engine parameters are split as a shell would split them, so that JSON and blanks in quotes survive.
"""

from __future__ import annotations

import shlex
import shutil
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import click

from exo_inference.cli.rendering.terminal import print_data
from exo_inference.engine_names import ENGINES, default_engine
from exo_inference.errors import ConfigurationError, ConnectionFailed, UsageError

if TYPE_CHECKING:
    from exo_inference.cli.session import Session
    from exo_inference.wire import EngineParameter

P = ParamSpec("P")
R = TypeVar("R")

INDENT = 24
# The `exo` CLI lets a line grow to 57 columns after the indent where the width is not known.
DEFAULT_TEXT_WIDTH = 57
MIN_TEXT_WIDTH = 20


def parameter_options(function: Callable[P, R]) -> Callable[P, R]:
    """Add the engine's flags and their version to a command."""
    flags = click.option(
        "--inference-engine-params",
        "parameters",
        metavar="<flags>",
        multiple=True,
        help="Flags of the engine, split as a shell does; may be given several times.",
    )
    version = click.option(
        "--inference-engine-version",
        "engine_version",
        metavar="<version>",
        help="Version of the engine whose flags these are.",
    )
    return flags(version(function))


def engine_options(function: Callable[P, R]) -> Callable[P, R]:
    """Add the options about the engine to a command: its flags, and the help about them."""
    parameter_help = click.option(
        "--inference-engine-parameter-help",
        "parameter_help",
        is_flag=True,
        help="List the flags of the engine and exit.",
    )
    search = click.option(
        "--search",
        "search",
        metavar="<text>",
        help="With the list of flags: only those about this, such as context or memory.",
    )
    engine = click.option(
        "--inference-engine",
        "engine",
        type=click.Choice(ENGINES),
        help="Engine (default: what runs on the GPU family).",
    )
    return parameter_options(engine(parameter_help(search(function))))


def split_parameters(texts: Sequence[str]) -> list[str]:
    """Split what `--inference-engine-params` was given, in order.

    Raises:
        UsageError: a quote is never closed.
    """
    parameters: list[str] = []
    for text in texts:
        try:
            parameters += shlex.split(text)
        except ValueError as exc:
            raise UsageError(
                f"--inference-engine-params: cannot split {text!r}: {str(exc).lower()}",
                hint="Quote values with blanks as in a shell: "
                """--inference-engine-params '--chat-template="a b"'""",
            ) from exc
    return parameters


def wants_parameter_help(parameter_help: bool, search: str | None) -> bool:
    """Say whether the command is to list flags and do nothing else.

    Raises:
        UsageError: a search without the list that it searches.
    """
    if search is not None and not parameter_help:
        raise UsageError(
            "--search was given without --inference-engine-parameter-help, which it searches",
            hint="Add --inference-engine-parameter-help, or leave --search out.",
        )
    return parameter_help


def print_parameter_help(
    session: Session,
    version: str | None,
    search: str | None = None,
    *,
    engine: str | None = None,
    gpu_type: str | None = None,
) -> None:
    """Print the flags of an engine by section, or those about a text.

    Without an engine the API is asked which one runs, on the GPU family or on all of them. Where
    no API is configured or none answers, the engine is that of the plans: vLLM, or exo for `cpu`.
    """
    if engine is None:
        try:
            with session.connect() as client:
                parameters = client.deployments.parameters(version or None, gpu_type=gpu_type)
            print_parameters(session, parameters, search)
            return
        except (ConfigurationError, ConnectionFailed) as error:
            engine = default_engine(gpu_type or "")
            session.remark(
                f"{error.message}; these are the flags of {engine}, see --inference-engine"
            )
    from exo_inference.engines import get_engine

    print_parameters(session, get_engine(engine).parameters(version or None), search)


def print_parameters(
    session: Session, parameters: Sequence[EngineParameter], search: str | None
) -> None:
    """Print flags by section, or those about a text; that there are none is said on stderr."""
    from exo_inference.engines.flags.search import search_parameters

    found = search_parameters(parameters, search or "")
    if not found:
        click.echo(f"No flag is about {search!r}.", err=True)
    if session.known_format in ("json", "yaml"):
        output = session.output((), configured=False)
        output.print_value([each.model_dump(mode="json", by_alias=True) for each in found])
        return
    print_data(format_parameters(found, text_width()))


def text_width() -> int:
    """Return how wide descriptions may be: what COLUMNS or the terminal leave after the indent."""
    columns = shutil.get_terminal_size(fallback=(0, 0)).columns
    return max(MIN_TEXT_WIDTH, columns - INDENT) if columns else DEFAULT_TEXT_WIDTH


def format_parameters(parameters: Sequence[EngineParameter], width: int) -> str:
    """Format flags as the engine's own `--help` does: sections sorted, flags in server order."""
    sections: dict[str, list[str]] = {}
    for parameter in parameters:
        sections.setdefault(parameter.section, []).append(_format_parameter(parameter, width))
    blocks = (f"{name}:\n" + "".join(entries) for name, entries in sorted(sections.items()))
    return "\n".join(blocks)


def _format_parameter(parameter: EngineParameter, width: int) -> str:
    head = "  " + ", ".join(parameter.flags)
    if parameter.type not in ("boolean", "enum"):
        head += " " + parameter.name.upper().replace("-", "_")
    text = parameter.description
    default = f"(default: {parameter.default})"
    if parameter.default and default not in text:
        text = f"{text} {default}".lstrip()
    wrapped = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
    return "".join(f"{line}\n" for line in [head, *(" " * INDENT + part for part in wrapped)])
