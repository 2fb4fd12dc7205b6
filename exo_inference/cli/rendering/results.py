"""What a command that changes something leaves for programs: the object that results, and no more.

People read a sentence, which is `Session.success`'s; with `-O json`, `-O yaml` or a template, stdout
holds the object as `show` prints it, or as `apply` takes it. The keys are frozen by a test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from exo_inference.cli.rendering.output import Output
from exo_inference.cli.rendering.views import (
    DEPLOYMENT,
    MODEL,
    Column,
    View,
    in_effect_rows,
    model_rows,
    replica_rows,
)
from exo_inference.errors import ExoError, NotReady

if TYPE_CHECKING:
    from exo_inference.wire import Deployment, Model


@dataclass(frozen=True)
class Answer:
    """What became of an object that is not there to be shown: deleted, or only asked about.

    Attributes:
        kind: `model`, `deployment` or `api-key`.
        id: empty where it has none yet.
        name: what people call it.
        state: `deleted`, or what would be so.
        operation_id: of the change; empty for a dry run.
        dry_run: nothing was changed.
    """

    kind: str
    id: str
    name: str
    state: str
    operation_id: str = ""
    dry_run: bool = False


ANSWER: View[Answer] = View(
    (
        Column("kind", "Kind", "Kind", lambda a: a.kind),
        Column("id", "ID", "ID", lambda a: a.id),
        Column("name", "Name", "Name", lambda a: a.name),
        Column("state", "State", "Status", lambda a: a.state),
        Column("operation_id", "OperationID", "Operation ID", lambda a: a.operation_id),
        Column("dry_run", "DryRun", "Dry Run", lambda a: a.dry_run),
    )
)


@contextmanager
def resulting(output: Output, show: Callable[[], None]) -> Iterator[None]:
    """Print what results when the block ends, for programs; also where it waited in vain."""
    try:
        yield
    except NotReady:
        if output.is_for_programs:
            with suppress(ExoError):  # the error that is on its way says more
                show()
        raise
    if output.is_for_programs:
        show()


def conclude(output: Output, answer: Answer) -> None:
    """Print, for programs, what became of an object that cannot be shown."""
    if output.is_for_programs:
        output.show(ANSWER.record(answer))


def model_manifest(model: Model) -> str:
    """Return a model as `apply` takes it."""
    from exo_inference.cli.gitops.live import live_model

    return live_model(model).manifest()


def deployment_manifest(deployment: Deployment) -> str:
    """Return a deployment, as `GET` of one shows it, as `apply` takes it."""
    from exo_inference.cli.gitops.live import live_deployment

    return live_deployment(deployment).manifest()


def show_model(output: Output, model: Model) -> None:
    """Print a model."""
    manifest = partial(model_manifest, model)
    output.show(MODEL.record(model), rows=model_rows(model), manifest=manifest)


def show_deployment(output: Output, deployment: Deployment) -> None:
    """Print a deployment."""
    manifest = partial(deployment_manifest, deployment)
    rows = [*in_effect_rows(deployment), *replica_rows(deployment)]
    output.show(DEPLOYMENT.record(deployment), rows=rows, manifest=manifest)
