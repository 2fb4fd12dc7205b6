"""`delete`, for all kinds of objects alike: several at once, asked about first, in parallel."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from exo_inference.cli.errors.text import SeveralFailed
from exo_inference.cli.rendering.output import Output
from exo_inference.cli.rendering.progress import step
from exo_inference.cli.rendering.prompts import confirm
from exo_inference.cli.rendering.results import ANSWER, Answer
from exo_inference.cli.rendering.terminal import harmless
from exo_inference.cli.wait import Followed, Wait, follow
from exo_inference.cli.writes import by_name
from exo_inference.errors import ExoError, NotFound

if TYPE_CHECKING:
    from exo_inference.cli.session import Session
    from exo_inference.sdk import Client
    from exo_inference.sdk.lookup import Named
    from exo_inference.wire import Operation

MAX_PARALLEL = 10


@dataclass(frozen=True)
class DeleteOptions:
    """What a `delete` was asked to do.

    Attributes:
        wait_seconds: how long to look until the objects are gone, for servers whose operations end
            before; without it that is not looked at.
        limit_seconds: how long their operations may take.
    """

    targets: tuple[str, ...]
    force: bool
    dry_run: bool
    wait_seconds: float | None = None
    limit_seconds: float | None = None


@dataclass(frozen=True)
class Deletable:
    """One kind of object.

    Attributes:
        kind: its name in messages.
        listed: every object of the zone.
        delete: deletes one by its id; the second argument is the dry run.
        wait_until_deleted: of the SDK; None for what goes at once.
    """

    kind: str
    listed: Callable[[], Sequence[Named]]
    delete: Callable[[str, bool], Operation]
    wait_until_deleted: Wait[None] | None = None

    @property
    def noun(self) -> str:
        """Its name in sentences."""
        return "API key" if self.kind == "api-key" else self.kind


def delete_all(session: Session, client: Client, what: Deletable, options: DeleteOptions) -> None:
    """Delete the objects named, after asking; nothing if the user said no to one.

    Raises:
        NotFound: a name is unknown and `--force` was not given.
        NotReady: some are still there when the time to wait is up.
        ExoError: some could not be deleted.
    """
    output = session.output(ANSWER.field_names)
    found = _find(what, options)
    if not options.force and not options.dry_run:
        for target in found:
            question = f'Are you sure you want to delete {what.noun} "{target.name}"?'
            if not confirm(question, instead="--force", on_stderr=output.is_for_programs):
                _print_answers(output, [])
                return
    outcomes = _delete(session, client, what, found, options)
    answers = [outcome for outcome in outcomes if isinstance(outcome, Answer)]
    errors = [outcome for outcome in outcomes if isinstance(outcome, ExoError)]
    try:
        if errors:
            raise _as_one(errors, what.noun)
        if options.wait_seconds is not None and not options.dry_run:
            _wait(session, what, answers, options.wait_seconds)
    finally:
        _print_answers(output, answers)


def _delete(
    session: Session,
    client: Client,
    what: Deletable,
    targets: Sequence[Named],
    options: DeleteOptions,
) -> list[Answer | ExoError]:
    """Delete in parallel, and say so where all of it worked and there was anything to do."""
    if not targets:
        session.remark("Nothing was deleted.")
        return []
    kind = f"{what.noun}(s)"
    with step(f"Deleting {kind}", quiet=session.quiet or options.dry_run):
        outcomes = _delete_in_parallel(client, what, targets, options)
    if all(isinstance(outcome, Answer) for outcome in outcomes):
        done = "would be deleted (dry run)" if options.dry_run else "deleted"
        session.success(f"{kind[:1].upper()}{kind[1:]} {done}.")
    return outcomes


def _wait(
    session: Session, what: Deletable, answers: Sequence[Answer], limit_seconds: float
) -> None:
    """Wait until all are gone, in one time for all of them."""
    if what.wait_until_deleted is None:
        return
    end = time.monotonic() + limit_seconds
    for answer in answers:
        followed = Followed(what.kind, answer.name, what.wait_until_deleted, until_gone=True)
        follow(session, followed, answer.id, max(0.0, end - time.monotonic()))


def _print_answers(output: Output, answers: Sequence[Answer]) -> None:
    if output.is_for_programs:
        output.show_list([ANSWER.record(answer) for answer in answers], ANSWER.headers)


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
    client: Client, what: Deletable, targets: Sequence[Named], options: DeleteOptions
) -> list[Answer | ExoError]:
    def attempt(target: Named) -> Answer | ExoError:
        try:
            with by_name(target):
                operation = what.delete(target.id, options.dry_run)
                operation = client.operations.wait(operation, timeout=options.limit_seconds)
        except ExoError as error:
            return error
        is_dry = options.dry_run
        state = "would be deleted" if is_dry else "deleted"
        operation_id = "" if is_dry else operation.id
        return Answer(what.kind, target.id, target.name, state, operation_id, is_dry)

    with ThreadPoolExecutor(max_workers=min(MAX_PARALLEL, len(targets))) as pool:
        return list(pool.map(attempt, targets))


def _as_one(errors: Sequence[ExoError], kind: str) -> ExoError:
    if len(errors) == 1:
        return errors[0]
    return SeveralFailed(f"{len(errors)} {kind}s could not be deleted", errors)
