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

import click

from exo_inference.cli.failures import describe, describe_usage
from exo_inference.cli.root import COMPLETION_VARIABLE, PROGRAM, root
from exo_inference.cli.terminal import harmless
from exo_inference.errors import ExoError

FAILURE = 1
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code.

    Args:
        argv: the arguments without the program's name; those of the process by default.
    """
    try:
        outcome = root.main(
            args=None if argv is None else list(argv),
            prog_name=PROGRAM,
            complete_var=COMPLETION_VARIABLE,
            standalone_mode=False,
        )
        sys.stdout.flush()
    except click.ClickException as error:
        return _report(describe_usage(error), error.exit_code)
    except ExoError as error:
        return _report(describe(error), error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        return _report("", INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output has gone (`exo … | head`); the interpreter would complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE
    except OSError as error:
        what = f"{error.filename}: " if error.filename else ""
        return _report(harmless(f"error: {what}{error.strerror or error}"), FAILURE)
    return outcome if isinstance(outcome, int) else 0


def _report(text: str, exit_code: int) -> int:
    if text:
        click.echo(text, err=True)
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
