"""The entry point of `exo`, and the one place where an outcome becomes text and an exit code.

===  ==========================================================================
0    it worked; a list may be empty
1    it failed
2    the command line, a file or an environment variable is wrong
3    `status` alone: no control plane is running
4    no usable endpoint or credentials, or they were refused
8    still not ready when the time was up, or it can no longer become ready
130  interrupted
===  ==========================================================================

Commands raise errors of `exo_inference.errors`; they neither print them nor exit. Only `diff` prints
its own, because 1 stands for a difference there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from exo_inference.cli.errors.output import print_error
from exo_inference.cli.errors.text import Interrupted
from exo_inference.cli.root import COMPLETION_VARIABLE, PROGRAM, root
from exo_inference.errors import ExoError

if TYPE_CHECKING:
    from exo_inference.cli.session import Session

FAILURE = 1
INTERRUPTED = Interrupted.exit_code


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code.

    Args:
        argv: the arguments without the program's name; those of the process by default.
    """
    given = sys.argv[1:] if argv is None else list(argv)
    sessions: list[Session] = []
    try:
        outcome = root.main(
            args=given,
            obj=sessions,
            prog_name=PROGRAM,
            complete_var=COMPLETION_VARIABLE,
            standalone_mode=False,
        )
        sys.stdout.flush()
    except (click.ClickException, ExoError) as error:
        return _report(error, given, sessions)
    except (KeyboardInterrupt, click.Abort):
        return _report(Interrupted(""), given, sessions)
    except BrokenPipeError:
        # Whoever read our output has gone (`exo … | head`); the interpreter would complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE
    except OSError as error:
        what = f"{error.filename}: " if error.filename else ""
        return _report(ExoError(f"{what}{error.strerror or error}"), given, sessions)
    return outcome if isinstance(outcome, int) else 0


def _report(
    error: click.ClickException | ExoError, argv: Sequence[str], sessions: Sequence[Session]
) -> int:
    """Print an error in the form that was asked for, and return the exit code."""
    print_error(error, as_json=_prints_json(argv, sessions))
    return error.exit_code


def _prints_json(argv: Sequence[str], sessions: Sequence[Session]) -> bool:
    """Whether JSON is wanted: by a flag, or by the configuration, where that was read."""
    from exo_inference.cli.errors.objects import asks_for_json

    return asks_for_json(argv) or any(each.known_format == "json" for each in sessions)


if __name__ == "__main__":
    sys.exit(main())
