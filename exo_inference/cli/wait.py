"""`--wait`: follow an object until it is ready, with its state details, or say why it is not.

The waiting itself is the SDK's; here are the flags and what is shown meanwhile.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar

import click

from exo_inference.cli.durations import Limit
from exo_inference.cli.errors.text import Interrupted
from exo_inference.cli.rendering.progress import step
from exo_inference.cli.rendering.views import download_progress

if TYPE_CHECKING:
    from exo_inference.cli.session import Session
    from exo_inference.sdk import Client
    from exo_inference.sdk.lookup import Named
    from exo_inference.wire import Deployment, Model, Operation

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

DEFAULT_WAIT_SECONDS = 1800.0


def wait_options(until: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Add `--wait` and `--timeout` to a command.

    Args:
        until: what is waited for, as `the model is ready`.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        timeout = click.option(
            "--timeout",
            "wait_timeout",
            metavar="<duration>",
            type=Limit(),
            default=DEFAULT_WAIT_SECONDS,
            help="How long --wait waits, -1s for ever (default 30m); "
            "then the command ends with exit code 8.",
        )
        wait = click.option("--wait", is_flag=True, help=f"Return when {until}.")
        return wait(timeout(function))

    return decorate


class Wait(Protocol[R_co]):
    """One of the SDK's waits."""

    def __call__(
        self, object_id: str, /, *, timeout: float, on_change: Callable[[Any], None]
    ) -> R_co:
        """Wait for one object."""


@dataclass(frozen=True)
class Followed(Generic[R_co]):
    """What is waited for.

    Attributes:
        kind, name: the object, for people.
        wait: the wait of the SDK, such as `client.models.wait_until_ready`.
        until_gone: it is being deleted.
    """

    kind: str
    name: str
    wait: Wait[R_co]
    until_gone: bool = False

    @property
    def title(self) -> str:
        """What stands before the progress."""
        named = f'{self.kind} "{self.name}"'
        return f"Waiting until {named} is gone" if self.until_gone else f"Waiting for {named}"

    def interrupted(self, where: str) -> Interrupted:
        """Say that what was asked for goes on, and how to follow it.

        Args:
            where: the flags that name the same control plane.
        """
        what = "the deletion of " if self.until_gone else ""
        error = Interrupted(f'{what}{self.kind} "{self.name}" goes on at the control plane')
        show = f"exo dedicated-inference {self.kind} show {shlex.quote(self.name)}{where}"
        error.hint = f"See where it stands with `{show}`."
        return error


def follow(
    session: Session, followed: Followed[R_co], object_id: str, limit_seconds: float
) -> R_co:
    """Wait for an object, and show where it stands meanwhile.

    Args:
        session: the flags.
        followed: what is waited for.
        object_id: its id.
        limit_seconds: how long.

    Raises:
        NotReady: it is not so, and the time is up or it never will be.
        Interrupted: Ctrl-C; what was asked for goes on.
    """
    try:
        with step(followed.title, quiet=session.quiet) as running:
            return followed.wait(
                object_id,
                timeout=limit_seconds,
                on_change=lambda item: running.detail(_standing(item)),
            )
    except KeyboardInterrupt as exc:
        where = "".join(f" {shlex.quote(word)}" for word in session.flags.to_paste)
        raise followed.interrupted(where) from exc


def wait_for_deployment(
    session: Session,
    client: Client,
    name: str,
    deployment_id: str,
    limit_seconds: float,
    change: Operation | None = None,
    asked: Mapping[str, Any] | None = None,
) -> Deployment:
    """Wait until a deployment is ready.

    Args:
        session: the flags.
        client: of the zone.
        name: of the deployment.
        deployment_id: its id.
        limit_seconds: how long.
        change: what has to be in effect.
        asked: what it asked for, by fields of `Deployment`.

    Raises:
        NotReady: it is not, and the time is up or it never will be.
    """
    wait = partial(client.deployments.wait_until_ready, change=change, asked=asked)
    followed = Followed("deployment", name, wait)
    return follow(session, followed, deployment_id, limit_seconds)


def wait_until_scaled(
    session: Session,
    client: Client,
    found: Named,
    limit_seconds: float,
    change: Operation | None = None,
    *,
    asked: Mapping[str, Any] | None = None,
    replaced: Collection[str] = (),
) -> None:
    """Wait until as many replicas serve as are wanted, and say so where they are not what was asked for.

    Args:
        session: the flags.
        client: of the zone.
        found: the deployment.
        limit_seconds: how long.
        change: what has to be in effect.
        asked: what it asked for, by fields of `Deployment`.
        replaced: names of replicas that have to be gone by then.

    Raises:
        NotReady: they do not, and the time is up or they never will.
    """
    until = client.deployments.wait_until_scaled
    wait = partial(until, change=change, asked=asked, replaced=replaced)
    settled = follow(session, Followed("deployment", found.name, wait), found.id, limit_seconds)
    if (served := settled.last_in_effect) is None:
        return
    name = f'"{found.name}"'
    if settled.replicas == 0:
        session.remark(f"{name} is scaled to 0: the change is tried when it is scaled up.")
    else:
        session.remark(
            f"{name} serves {served.model} as before the change that failed, see `deployment show`."
        )


def _standing(item: Model | Deployment) -> str:
    from exo_inference.wire import Model

    return _model_standing(item) if isinstance(item, Model) else deployment_standing(item)


def _model_standing(model: Model) -> str:
    """Say in one line where a model stands."""
    parts = [str(model.state)]
    is_moving = not model.state_details or model.state_details.startswith("downloading")
    if model.downloaded_bytes is not None and str(model.state) == "downloading" and is_moving:
        parts.append(download_progress(model))
    elif model.state_details:
        parts.append(model.state_details)
    return ": ".join(parts)


def deployment_standing(deployment: Deployment) -> str:
    """Say in one line where a deployment stands."""
    parts = [str(deployment.state)]
    if deployment.ready_replicas is not None and deployment.replicas:
        parts[0] += f" ({deployment.ready_replicas}/{deployment.replicas} replicas ready)"
    if deployment.state_details:
        parts.append(deployment.state_details)
    return ": ".join(parts)
