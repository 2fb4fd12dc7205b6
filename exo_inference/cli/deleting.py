"""`delete`, for models and deployments alike: several at once, asked about first, in parallel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from exo_inference.cli.failures import describe
from exo_inference.cli.progress import step
from exo_inference.cli.prompts import confirm
from exo_inference.cli.terminal import harmless
from exo_inference.cli.writing import by_name
from exo_inference.errors import ExoError, NotFound

if TYPE_CHECKING:
    from exo_inference.cli.session import Session
    from exo_inference.sdk import Client
    from exo_inference.sdk.lookup import Named
    from exo_inference.wire import Operation

MAX_PARALLEL = 10


@dataclass(frozen=True)
class DeleteOptions:
    """What a `delete` was asked to do."""

    targets: tuple[str, ...]
    force: bool
    dry_run: bool


@dataclass(frozen=True)
class Deletable:
    """One kind of object.

    Attributes:
        kind: its name in messages.
        listed: every object of the zone.
        delete: deletes one by its id; the second argument is the dry run.
    """

    kind: str
    listed: Callable[[], Sequence[Named]]
    delete: Callable[[str, bool], Operation]


def delete_all(
    session: Session, client: Client, what: Deletable, options: DeleteOptions
) -> tuple[Named, ...]:
    """Delete the objects named, after asking, and return them; nothing if the user said no.

    Raises:
        NotFound: a name is unknown and `--force` was not given.
        ExoError: some could not be deleted.
    """
    found = _find(what, options)
    if not options.force and not options.dry_run:
        for target in found:
            question = f'Are you sure you want to delete {what.kind} "{target.name}"?'
            if not confirm(question, instead="--force"):
                return ()
    with step(f"Deleting {what.kind}(s)", quiet=session.quiet):
        errors = _delete_in_parallel(client, what, found, options.dry_run)
    _raise(errors, what.kind)
    kind = what.kind.capitalize()
    done = "would be deleted (dry run)" if options.dry_run else "deleted"
    session.success(f"{kind}(s) {done}.")
    return found


def _find(what: Deletable, options: DeleteOptions) -> tuple[Named, ...]:
    """Resolve names and ids through one list; with `--force`, unknown ones are warned about."""
    from exo_inference.sdk.lookup import find

    listed = what.listed()
    found: dict[str, Named] = {}
    for target in options.targets:
        try:
            match = find(listed, target, what.kind)
        except NotFound:
            if not options.force:
                raise
            click.echo(f"warning: {harmless(target)} not found.", err=True)
        else:
            found[match.id] = match
    return tuple(found.values())


def _delete_in_parallel(
    client: Client, what: Deletable, targets: Sequence[Named], dry_run: bool
) -> list[ExoError]:
    def attempt(target: Named) -> ExoError | None:
        try:
            with by_name(target):
                client.operations.wait(what.delete(target.id, dry_run))
        except ExoError as error:
            return error
        return None

    if not targets:
        return []
    with ThreadPoolExecutor(max_workers=min(MAX_PARALLEL, len(targets))) as pool:
        return [error for error in pool.map(attempt, targets) if error is not None]


def _raise(errors: list[ExoError], kind: str) -> None:
    """Raise the one error, or print all and raise their number."""
    if len(errors) > 1:
        for error in errors:
            click.echo(describe(error), err=True)
        raise ExoError(f"{len(errors)} {kind}s could not be deleted")
    if errors:
        raise errors[0]
