"""`deployment logs`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

import click

from exo_inference.cli.completion.names import complete_deployments
from exo_inference.cli.deployment.log_lines import readable
from exo_inference.cli.durations import Moment
from exo_inference.cli.rendering.output import Field, Output, Record
from exo_inference.cli.rendering.terminal import print_data
from exo_inference.cli.session import Session, pass_session
from exo_inference.cli.tree import Example, command
from exo_inference.cli.writes import by_name
from exo_inference.errors import NotFound, UsageError

if TYPE_CHECKING:
    from exo_inference.sdk import Client
    from exo_inference.wire import Deployment, LogEntry

DEFAULT_TAIL = 10
_FIELD_NAMES = ("Time", "Replica", "Node", "Message")


@command(
    "logs",
    examples=[
        Example("Show the last lines of a deployment's engines", "exo ai deployment logs chat"),
        Example("Go on with new lines as they are written", "exo ai deployment logs chat --follow"),
        Example(
            "See why a replica ended the last time",
            "exo ai deployment logs chat --previous --tail 100",
        ),
        Example(
            "Show the last ten minutes of one replica, with times",
            "exo ai deployment logs chat --since 10m --replica chat-6fbc99c8 --timestamps --tail 1000",
        ),
    ],
)
@click.argument("deployment", metavar="<name-or-id>", shell_complete=complete_deployments)
@click.option(
    "--tail",
    metavar="<lines>",
    type=int,
    default=DEFAULT_TAIL,
    help=f"How many of the last lines (default {DEFAULT_TAIL}; 0 and below are the default, too).",
)
@click.option("-f", "--follow", is_flag=True, help="Go on until interrupted.")
@click.option(
    "--since",
    metavar="<time>",
    type=Moment(),
    help="Only lines from then on: 10m, 2h, or 2026-01-31T12:00:00Z.",
)
@click.option("--previous", is_flag=True, help="Show the engine run before the present one.")
@click.option("--replica", metavar="<name>", help="Show one replica alone.")
@click.option("--timestamps", is_flag=True, help="Begin each line with its time.")
@pass_session
def logs(
    session: Session,
    deployment: str,
    tail: int,
    follow: bool,
    since: datetime | None,
    previous: bool,
    replica: str | None,
    timestamps: bool,
) -> None:
    """Show what the engines of a deployment wrote.

    Lines come oldest first; with `-O json`, each as one JSON object. A terminal shows what engines write
    as JSON in a form that reads well; into a pipe lines go as they were written. `--follow` survives
    restarts of the control plane and of replicas; it ends when the deployment is deleted.
    """
    if follow and previous:
        raise UsageError(
            "--follow and --previous were both given: a run that has ended writes nothing more",
            hint="Leave one of them out.",
        )
    output = session.output(_FIELD_NAMES, configured=False)
    with session.connect() as client:
        found = client.deployments.find(deployment)
        if replica is not None:
            _check_replica(client, found, replica)
        entries = client.deployments.logs(
            found.id,
            tail=tail if tail > 0 else DEFAULT_TAIL,
            since=since,
            previous=previous,
            replica=replica,
            follow=follow,
        )
        with by_name(found):
            is_empty = _print_all(output, entries, timestamps)
        if is_empty and previous and since is None:
            session.remark(
                "No engine has run before the present one; the log of a replica that is gone is not "
                f"kept. Why it ended is told by `exo dedicated-inference deployment show {found.name}`."
            )


def _print_all(output: Output, entries: Iterable[LogEntry], timestamps: bool) -> bool:
    """Print the lines as they come, and return whether none came."""
    for_people = sys.stdout.isatty() and output.format == "table"
    is_empty = True
    for entry in entries:
        is_empty = False
        if output.is_for_programs:
            output.show_line(_record(entry))
        else:
            print_data(format_entry(entry, timestamps, for_people) + "\n")
    return is_empty


def _check_replica(client: Client, found: Deployment, name: str) -> None:
    """Refuse a replica that the deployment does not have, where the server names its replicas.

    Raises:
        NotFound: there is none of that name.
    """
    present = client.deployments.get(found.id).replica_status
    names = [replica.name for replica in present or []]
    if present is None or name in names:
        return
    raise NotFound(
        f'deployment "{found.name}" has no replica {name!r}',
        status_code=404,
        hint=f"It has: {', '.join(names)}." if names else "It has none at present.",
    )


def _record(entry: LogEntry) -> Record:
    """Return a line of the log as fields, with the keys of the API."""
    from exo_inference.wire.base import format_time

    return (
        Field("time", "Time", "", format_time(entry.time)),
        Field("replica", "Replica", "", entry.replica or ""),
        Field("node", "Node", "", entry.node),
        Field("message", "Message", "", entry.message),
    )


def format_entry(entry: LogEntry, timestamps: bool, for_people: bool = False) -> str:
    """Return one line of the log as it is printed."""
    message = readable(entry.message) if for_people else entry.message
    if not timestamps:
        return message
    from exo_inference.wire.base import format_time

    return f"{format_time(entry.time)} {message}"
