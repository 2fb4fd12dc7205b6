"""`apply`: make a zone be as files say."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from exo_inference.cli.gitops.sources import file_options, plan_from_files
from exo_inference.cli.hub_token import TokenSources, read_token
from exo_inference.cli.session import Session, pass_session
from exo_inference.cli.tree import Example, command
from exo_inference.cli.waiting import wait_options
from exo_inference.errors import ExoError, UsageError

if TYPE_CHECKING:
    from exo_inference.cli.gitops.plan import Change
    from exo_inference.cli.gitops.report import Report
    from exo_inference.sdk import Client


@dataclass(frozen=True)
class ApplyOptions:
    """What `apply` was asked to do."""

    filenames: tuple[str, ...]
    prune: bool
    replace: bool
    yes: bool
    dry_run: str | None
    token_file: Path | None
    wait: bool
    wait_seconds: float


@command(
    "apply",
    examples=[
        Example("Make the zone be as the files of a repository say", "exo ai apply -f deploy/"),
        Example("See what the server would say to it first", "exo ai apply -f deploy/ --dry-run"),
        Example(
            "From a pipeline: delete what was removed from the files, and wait until all is ready",
            "exo ai apply -f deploy/ --prune --yes --wait --timeout 30m",
        ),
        Example("Apply what another program writes", "helm template . | exo ai apply -f -"),
    ],
)
@file_options
@click.option(
    "--replace",
    is_flag=True,
    help="Delete and create anew what cannot be changed in place; its endpoint and key change.",
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask before anything is deleted.")
@click.option(
    "--dry-run",
    type=click.Choice(["server", "client"]),
    is_flag=False,
    flag_value="server",
    default=None,
    help="Change nothing; `server` (without a value) also asks the control plane for admission.",
)
@click.option(
    "--huggingface-token-file",
    metavar="<file>",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File that holds the Hub token for gated models; without it [env HF_TOKEN].",
)
@wait_options("every object of the files is ready")
@pass_session
def apply(
    session: Session,
    filenames: tuple[str, ...],
    prune: bool,
    replace: bool,
    yes: bool,
    dry_run: str | None,
    huggingface_token_file: Path | None,
    wait: bool,
    wait_timeout: float,
) -> None:
    """Create and change models and deployments to be as files say.

    The files hold InferenceModel and InferenceDeployment objects, several to a file if you like. A
    field that a file does not name is left as it is. All files are checked before anything
    is changed. What the API cannot change in place (model, GPU type, GPU count, engine) is refused
    unless `--replace` is given. Exits with 0 when all objects are as wanted, 1 when some could not
    be changed, 2 when the files are wrong, 8 when `--wait` ran out.
    """
    options = ApplyOptions(
        filenames, prune, replace, yes, dry_run, huggingface_token_file, wait, wait_timeout
    )
    run(session, options)


def run(session: Session, options: ApplyOptions) -> None:
    """Plan, check, ask, change, and wait when asked to."""
    from exo_inference.cli.gitops.execute import Executor
    from exo_inference.cli.gitops.report import Report

    token = read_token(TokenSources(file=options.token_file))
    with session.connect() as client:
        changes = plan_from_files(client, options.filenames, prune=options.prune)
        _check_replacements(changes, options)
        if not _confirmed(changes, options):
            click.echo("Nothing was changed.", err=True)
            return
        report = Report(session, options.dry_run)
        try:
            ids = Executor(client, report, options.dry_run, token).run(changes)
        finally:
            report.finish()
        _raise_failures(report, len(changes))
        if options.wait and options.dry_run is None:
            _wait(session, client, changes, ids, options.wait_seconds)


def _check_replacements(changes: Sequence[Change], options: ApplyOptions) -> None:
    """Refuse the whole plan if it needs a replacement that was not allowed."""
    from exo_inference.cli.gitops.plan import Action

    refused = [change for change in changes if change.action == Action.REPLACE]
    if not refused or options.replace or options.dry_run == "client":
        return
    lines = [
        f"  {change.label}: {field}"
        for change in refused
        for field in change.fields
        if not field.in_place
    ]
    raise ExoError(
        "these fields cannot be changed in place; nothing was changed\n" + "\n".join(lines),
        hint="Use --replace to delete these objects and create them anew; "
        "they are down meanwhile, and a deployment gets another endpoint and key.",
    )


def _confirmed(changes: Sequence[Change], options: ApplyOptions) -> bool:
    """Ask before anything is deleted, unless nothing is or `--yes` was given."""
    from exo_inference.cli.gitops.plan import Action
    from exo_inference.cli.prompts import confirm

    doomed = [c.label for c in changes if c.action in (Action.DELETE, Action.REPLACE)]
    if not doomed or options.yes or options.dry_run is not None:
        return True
    if "-" in options.filenames:
        raise UsageError(
            f"this would delete {', '.join(doomed)}, and stdin is taken by the files",
            hint="Look at `diff` with the same files first, then use --yes.",
        )
    return confirm(f"Are you sure you want to delete {', '.join(doomed)}?", instead="--yes")


def _raise_failures(report: Report, num_changes: int) -> None:
    """Raise the one error, or print all and raise their number."""
    from exo_inference.cli.failures import describe

    if not report.failures:
        return
    if len(report.failures) == 1:
        raise report.failures[0][1]
    for _, error in report.failures:
        click.echo(describe(error), err=True)
    raise ExoError(f"{len(report.failures)} of {num_changes} objects could not be applied")


def _wait(
    session: Session,
    client: Client,
    changes: Sequence[Change],
    ids: dict[str, str],
    timeout_seconds: float,
) -> None:
    """Wait until the objects of the files are ready and the pruned ones gone, all in one time."""
    from exo_inference.cli.gitops.live import MODEL_KIND
    from exo_inference.cli.gitops.plan import Action
    from exo_inference.cli.waiting import follow

    end = time.monotonic() + timeout_seconds
    for change in changes:
        left = max(0.0, end - time.monotonic())
        is_model = change.kind == MODEL_KIND
        noun, objects = ("model", client.models) if is_model else ("deployment", client.deployments)
        if change.action == Action.DELETE:
            assert change.live is not None, "only what exists is deleted"
            title = f'Waiting until {noun} "{change.name}" is gone'
            follow(session, title, objects.wait_until_deleted, change.live.id, left)
        else:
            title = f'Waiting for {noun} "{change.name}"'
            follow(session, title, objects.wait_until_ready, ids[change.label], left)
