"""`-f`: which files a command reads, and the changes that follow. Shared by `apply` and `diff`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import click

from exo_inference.errors import UsageError

if TYPE_CHECKING:
    from exo_inference.cli.gitops.changes import Change
    from exo_inference.sdk import Client

P = ParamSpec("P")
R = TypeVar("R")


def file_options(function: Callable[P, R]) -> Callable[P, R]:
    """Add `-f` and `--prune` to a command."""
    files = click.option(
        "-f",
        "--filename",
        "filenames",
        metavar="<file>",
        required=True,
        multiple=True,
        type=click.Path(allow_dash=True),
        help="YAML file, directory (with all *.yaml and *.yml below it), or `-` for stdin; "
        "may be given several times.",
    )
    prune = click.option(
        "--prune",
        is_flag=True,
        help="Also delete what is in the zone and not in the files, of the kinds in the files.",
    )
    return files(prune(function))


def changes_from_files(client: Client, filenames: tuple[str, ...], *, prune: bool) -> list[Change]:
    """Read the files, look at the zone, and return what would have to change.

    Raises:
        ManifestError: the files are wrong.
        UsageError: standard input was named and cannot be read.
    """
    from exo_inference.cli.gitops.changes import find_changes
    from exo_inference.cli.gitops.live import DEPLOYMENT_KIND, read_live
    from exo_inference.resources.manifest_files import MAX_FILE_BYTES, load_manifests

    stdin = _read_stdin(MAX_FILE_BYTES + 1) if "-" in filenames else None
    manifests = load_manifests(filenames, stdin)
    named = {m.resource.metadata.name for m in manifests if m.resource.kind == DEPLOYMENT_KIND}
    return find_changes(manifests, read_live(client, named.__contains__), prune=prune)


def _read_stdin(max_characters: int) -> str:
    what = "cannot read manifests from standard input"
    if sys.stdin is None:  # it was closed (`<&-`)
        raise UsageError(f"{what}: it is closed", hint="Pipe them into it, or name a file with -f.")
    try:
        return sys.stdin.read(max_characters)
    except OSError as exc:
        raise UsageError(f"{what}: {exc.strerror or exc}") from exc
