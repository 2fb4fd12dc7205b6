"""`apply`: make a zone be as files say."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from exo_inference.cli.gitops.sources import changes_from_files, file_options
from exo_inference.cli.hub_token import TokenSources, read_token
from exo_inference.cli.session import Session, pass_session
from exo_inference.cli.tree import Example, command
from exo_inference.cli.wait import wait_options
from exo_inference.errors import ExoError, UsageError

if TYPE_CHECKING:
    from exo_inference.cli.gitops.changes import Change
    from exo_inference.cli.gitops.report import Report
    from exo_inference.sdk import Client
    from exo_inference.wire import Operation


IN_PLACE, DELETE_FIRST = "in-place", "delete-first"


@dataclass(frozen=True)
class ApplyOptions:
    """What `apply` was asked to do."""

    filenames: tuple[str, ...]
    prune: bool
    replace: str | None
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
    type=click.Choice([IN_PLACE, DELETE_FIRST]),
    is_flag=False,
    flag_value=IN_PLACE,
    default=None,
    help="Also change model, GPU type, GPU count and engine; the control plane puts the new "
    "deployment in the old one's place, with its id, URL and key. `delete-first` is for an API that "
    "cannot: it deletes and creates anew, and id, URL and key change.",
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
    replace: str | None,
    yes: bool,
    dry_run: str | None,
    huggingface_token_file: Path | None,
    wait: bool,
    wait_timeout: float,
) -> None:
    """Create and change models and deployments to be as files say.

    The files hold InferenceModel and InferenceDeployment objects, several to a file if you like. A
    field that a file does not name is left as it is. All files are checked before anything
    is changed. A change of model, GPU type, GPU count or engine is refused unless `--replace` is
    given; then the new deployment is admitted before the old one is touched, starts beside it where
    there is room, and the old one comes back if the new one does not become ready. When an object
    fails, nothing is pruned. Exits with 0 when all objects are as wanted, 1 when some could not be
    changed, 2 when the files are wrong, 8 when `--wait` ran out.
    """
    options = ApplyOptions(
        filenames, prune, replace, yes, dry_run, huggingface_token_file, wait, wait_timeout
    )
    run(session, options)


def run(session: Session, options: ApplyOptions) -> None:
    """Find the changes, check, ask, make them, and wait when asked to."""
    from exo_inference.cli.gitops.execution import Executor
    from exo_inference.cli.gitops.report import Report

    token = read_token(TokenSources(file=options.token_file))
    with session.connect() as client:
        changes = changes_from_files(client, options.filenames, prune=options.prune)
        _check_replacements(client, changes, options)
        if not _confirmed(session, changes, options):
            click.echo("Nothing was changed.", err=True)
            Report(session, options.dry_run).finish(client)
            return
        report = Report(session, options.dry_run)
        try:
            deletes_first = options.replace == DELETE_FIRST
            executor = Executor(client, report, options.dry_run, token, deletes_first)
            ids = executor.run(changes)
            _raise_failures(report, len(changes))
            if options.wait and options.dry_run is None:
                _wait(session, client, changes, ids, executor.made, options.wait_seconds)
        finally:
            report.finish(client)


def _check_replacements(client: Client, changes: Sequence[Change], options: ApplyOptions) -> None:
    """Refuse all changes if one needs a replacement that was not allowed, or is not known there."""
    from exo_inference.cli.gitops.changes import Action
    from exo_inference.cli.gitops.live import MODEL_KIND

    wanted = [change for change in changes if change.action == Action.REPLACE]
    if not wanted or options.replace == DELETE_FIRST or options.dry_run == "client":
        return
    can_replace = client.can_replace()
    if options.replace == IN_PLACE:
        wanted = [] if can_replace else [c for c in wanted if c.kind != MODEL_KIND]
    if not wanted:
        return
    lines = [
        f"  {change.label}: {field}"
        for change in wanted
        for field in change.fields
        if not field.in_place
    ]
    what = "need --replace" if can_replace else "cannot be changed by this API"
    raise ExoError(
        f"these fields {what}; nothing was changed\n" + "\n".join(lines),
        hint="Use --replace: a deployment keeps its id, URL and key; a model is deleted and fetched anew."
        if can_replace
        else "Use --replace=delete-first to delete these objects and create them anew; they are down "
        "meanwhile, and a deployment gets another id, URL and key.",
    )


def _confirmed(session: Session, changes: Sequence[Change], options: ApplyOptions) -> bool:
    """Ask before anything is deleted, unless nothing is or `--yes` was given."""
    from exo_inference.cli.rendering.prompts import confirm

    doomed = [c.label for c in changes if _is_deleted(c, options)]
    if not doomed or options.yes or options.dry_run is not None:
        return True
    if "-" in options.filenames:
        raise UsageError(
            f"this would delete {', '.join(doomed)}, and stdin is taken by the files",
            hint="Look at `diff` with the same files first, then use --yes.",
        )
    question = f"Are you sure you want to delete {', '.join(doomed)}?"
    for_programs = session.output(()).is_for_programs
    return confirm(question, instead="--yes", on_stderr=for_programs)


def _is_deleted(change: Change, options: ApplyOptions) -> bool:
    from exo_inference.cli.gitops.changes import Action
    from exo_inference.cli.gitops.live import MODEL_KIND

    if change.action == Action.REPLACE:
        return change.kind == MODEL_KIND or options.replace == DELETE_FIRST
    return change.action == Action.DELETE


def _raise_failures(report: Report, num_changes: int) -> None:
    """Raise the one error, or print all and raise their number."""
    from exo_inference.cli.errors.text import SeveralFailed

    if not report.failures:
        return
    if len(report.failures) == 1:
        raise report.failures[0][1]
    errors = [error for _, error in report.failures]
    raise SeveralFailed(f"{len(errors)} of {num_changes} objects could not be applied", errors)


def _wait(
    session: Session,
    client: Client,
    changes: Sequence[Change],
    ids: dict[str, str],
    made: Mapping[str, Operation],
    timeout_seconds: float,
) -> None:
    """Wait until the objects of the files are ready and the pruned ones gone, all in one time."""
    from exo_inference.cli.gitops.changes import Action, shown_fields
    from exo_inference.cli.gitops.live import MODEL_KIND
    from exo_inference.cli.wait import Followed, follow

    end = time.monotonic() + timeout_seconds
    for change in changes:
        left = max(0.0, end - time.monotonic())
        is_model = change.kind == MODEL_KIND
        noun, objects = ("model", client.models) if is_model else ("deployment", client.deployments)
        if change.action == Action.DELETE:
            assert change.live is not None, "only what exists is deleted"
            gone = Followed(noun, change.name, objects.wait_until_deleted, until_gone=True)
            follow(session, gone, change.live.id, left)
        elif is_model:
            fetched = Followed(noun, change.name, client.models.wait_until_ready)
            follow(session, fetched, ids[change.label], left)
        else:
            wanted = change.manifest.spec.get("replicas") if change.manifest is not None else None
            is_off = wanted == 0
            deployments = client.deployments
            served = deployments.wait_until_scaled if is_off else deployments.wait_until_ready
            operation = made.get(change.label)
            until = partial(served, change=operation, asked=shown_fields(change))
            ready = Followed(noun, change.name, until)
            follow(session, ready, ids[change.label], left)
