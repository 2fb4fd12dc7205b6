"""What the commands that change something share: `--dry-run`, `--force`, and the operation's end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from exo_inference.cli.rendering.progress import step
from exo_inference.errors import ExoError

if TYPE_CHECKING:
    from exo_inference.cli.session import Session
    from exo_inference.resources.wanted import WantedDeployment
    from exo_inference.sdk import Client
    from exo_inference.sdk.lookup import Named
    from exo_inference.wire import Operation

MAX_REPLICAS = 100
"""Of our control planes, for help; another server may take more, so it is left to that to refuse them."""

dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Only check whether the control plane would accept it."
)

override_option = click.option(
    "--force", is_flag=True, help="Go ahead although the plan says that it does not fit."
)

room_option = click.option(
    "--force",
    is_flag=True,
    help="Go ahead although the machine has too little memory; what does not fit waits.",
)

force_option = click.option("-f", "--force", is_flag=True, help="Do not ask.")


@contextmanager
def by_name(found: Named) -> Iterator[None]:
    """Have errors of requests by id name the object as its user does."""
    try:
        yield
    except ExoError as error:
        error.message = error.message.replace(f" {found.id}", f' "{found.name}"')
        raise


def titled(what: str, *, dry_run: bool) -> str:
    """Return what is being done, and that it is not done for real."""
    return f"{what} (dry run)" if dry_run else what


def send_create(
    client: Client, wanted: WantedDeployment, *, dry_run: bool, force: bool = False
) -> Operation:
    """Ask the API for a deployment; where the number of its replicas is open, for one."""
    from exo_inference.wire import ModelRef

    return client.deployments.create(
        wanted.name or "",
        model=wanted.model or ModelRef(),
        gpu_type=wanted.gpu_type or "",
        gpu_count=1 if wanted.gpu_count is None else wanted.gpu_count,
        replicas=1 if wanted.replicas is None else wanted.replicas,
        engine_parameters=wanted.engine_parameters or (),
        engine_version=wanted.engine_version,
        engine=wanted.engine,
        product_name=wanted.product_name,
        dry_run=dry_run,
        force=force,
    )


def finish(
    session: Session, client: Client, title: str, write: Callable[[], Operation]
) -> Operation:
    """Make a change and wait until it is accepted and recorded.

    Args:
        session: the flags.
        client: what the change is made through.
        title: what is being done, as `Creating model "x"`.
        write: makes the change.

    Raises:
        OperationFailed: it was accepted and then failed.
    """
    with step(title, quiet=session.quiet):
        operation = write()
        done = client.operations.wait(operation)
    # Only the answer to the change itself has the plan and the warnings.
    told = {"plan": operation.plan, "warnings": operation.warnings}
    return done.model_copy(update={name: value for name, value in told.items() if value})


def changed_id(operation: Operation) -> str | None:
    """Return the id of the object that an operation is about, where the server said so."""
    return operation.reference.id if operation.reference is not None else None
