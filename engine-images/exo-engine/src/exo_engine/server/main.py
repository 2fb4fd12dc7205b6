"""Entry point of `exo-engine`: read the command line, run it, end with the right status.

The only place that prints, installs the event loop and turns errors into exit statuses: 0 after a
clean end, 78 when flags or model files are wrong, 71 and 75 when resources are short and another
try may help, 70 when the engine itself broke. A start that fails ends with one line on stderr that
begins with `exo-engine: error:`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import sys
from collections.abc import Sequence
from typing import NoReturn

from exo_engine import garbage
from exo_engine.arguments import PrintCommand, ServeCommand, parse
from exo_engine.errors import EngineError, InternalError, ModelUnusable
from exo_engine.foreign_files import shown
from exo_engine.process_end import leave
from exo_engine.server.core_start import start_core

logger = logging.getLogger(__name__)

_MOST_SHOWN = 8192
"""Characters of an error on the terminal."""


def run() -> NoReturn:
    """Be the process `exo-engine`, from its words to its exit status."""
    leave(main())


def main(argv: Sequence[str] | None = None) -> int:
    """Run `exo-engine` with the given words, or the process's own; return the exit status."""
    try:
        command = parse(sys.argv[1:] if argv is None else argv)
        if isinstance(command, PrintCommand):
            _print_page(command.text)
            return 0
        return _serve(command)
    except EngineError as exc:
        _print_error(exc)
        return exc.exit_code
    except Exception as exc:  # the edge of the process
        logger.error("unexpected error", exc_info=exc)
        print(f"exo-engine: error: internal error: {type(exc).__name__}: {exc}", file=sys.stderr)
        return InternalError.exit_code


def _serve(command: ServeCommand) -> int:
    model_dir = command.server.model_dir
    if not (model_dir / "config.json").is_file():
        found = "no config.json in it" if model_dir.is_dir() else "no such directory"
        raise ModelUnusable(
            f"cannot load the model {model_dir}: {found}",
            hint="Give the directory of a downloaded model.",
        )
    _raise_descriptor_limit()
    core = start_core(command.server.log_level)
    garbage.pause()
    try:
        # Not needed for --help and --version, which should answer at once.
        import uvloop

        from exo_engine.server.lifecycle import serve
        from exo_engine.server.logs import configure_logging

        configure_logging(command.server.log_level)
        garbage.resume()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(serve(command, core))
    finally:
        core.end()


def _raise_descriptor_limit() -> None:
    """Have as many descriptors as the process may: each stream costs one, and 1,024 is soon reached."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65536)), hard))


def _print_page(text: str) -> None:
    """Print to whoever reads it to its end; one who has had enough (`| head`) is no error."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # What is left in the buffer would fail once more when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_error(error: EngineError) -> None:
    text = error.message if error.hint is None else f"{error.message.rstrip('.')}. {error.hint}"
    # It may have names of files and tensors, which strangers chose.
    line = shown(" ".join(text.split()), limit=_MOST_SHOWN)
    print(f"exo-engine: error: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    run()
