"""`diff`: show what `apply` would change."""

from __future__ import annotations

import difflib
import sys
from typing import TYPE_CHECKING

import click

from exo_inference.cli.gitops.sources import changes_from_files, file_options
from exo_inference.cli.session import Session, pass_session
from exo_inference.cli.tree import Example, command
from exo_inference.errors import ExoError

if TYPE_CHECKING:
    from exo_inference.cli.gitops.changes import Change

NO_DIFFERENCES, DIFFERENCES, FAILURE = 0, 1, 2


@command(
    "diff",
    examples=[
        Example("See what `apply` would change", "exo ai diff -f deploy/"),
        Example("Include what it would delete", "exo ai diff -f deploy/ --prune"),
        Example(
            "Find out in a script whether the zone has drifted from the files",
            "exo ai diff -f deploy/ > /dev/null || echo drifted",
        ),
    ],
)
@file_options
@pass_session
def diff(session: Session, filenames: tuple[str, ...], prune: bool) -> int:
    """Show how a zone differs from files, as `apply` would change it.

    Nothing is changed. Exits with 0 when there is no difference, 1 when there is one, and 2 or
    above when it could not be found out, so that a script can tell the two apart.
    """
    try:
        return run(session, filenames, prune=prune)
    except ExoError as error:
        from exo_inference.cli.errors.output import print_error

        # 1 stands for a difference here, so a failure needs a code of its own.
        print_error(error, as_json=session.known_format == "json")
        return max(FAILURE, error.exit_code)


def run(session: Session, filenames: tuple[str, ...], *, prune: bool) -> int:
    """Print the differences and return the exit code."""
    from exo_inference.cli.gitops.changes import Action
    from exo_inference.cli.gitops.report import as_json
    from exo_inference.cli.rendering.terminal import for_stream

    with session.connect() as client:
        changes = changes_from_files(client, filenames, prune=prune)
    different = [change for change in changes if change.action != Action.UNCHANGED]
    output = session.output(())
    if output.is_structured:
        output.print_value([as_json(change) for change in different])
    else:
        for change in different:
            click.echo(for_stream(unified_diff(change), sys.stdout), nl=False)
    return DIFFERENCES if different else NO_DIFFERENCES


def unified_diff(change: Change) -> str:
    """Return one object's change as a unified diff of its YAML."""
    from exo_inference.cli.gitops.changes import Action, merged_spec
    from exo_inference.resources.yaml import dump_manifest

    if change.manifest is not None:
        name = change.manifest.resource.metadata.name
    else:
        assert change.live is not None, "a change is of something that is wanted or there"
        name = change.live.object_name
    before = dump_manifest(change.kind, name, change.live.spec) if change.live else ""
    after = (
        ""
        if change.action == Action.DELETE
        else dump_manifest(change.kind, name, merged_spec(change))
    )
    note = (
        "  (cannot be changed in place: needs --replace)" if change.action == Action.REPLACE else ""
    )
    lines = difflib.unified_diff(
        before.splitlines(keepends=True),
        after.splitlines(keepends=True),
        fromfile=f"zone/{change.label}",
        tofile=f"files/{change.label}{note}",
    )
    return "".join(lines)
