"""`events`: what happened to a deployment or a model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from exo_inference.cli.completion.names import complete_objects
from exo_inference.cli.rendering.colours import as_it_is, by_state, takes_colour
from exo_inference.cli.rendering.output import Output
from exo_inference.cli.rendering.terminal import harmless, print_drawn
from exo_inference.cli.rendering.views import Column, View, format_moment
from exo_inference.cli.session import Session, pass_session
from exo_inference.cli.tree import Example, command
from exo_inference.cli.writes import by_name
from exo_inference.errors import Conflict, NotFound

if TYPE_CHECKING:
    from exo_inference.sdk import Client
    from exo_inference.wire import Deployment, Event, Model

EVENT: View[Event] = View(
    (
        Column("time", "Time", "Time", lambda e: format_moment(e.time)),
        Column("type", "Type", "Status", lambda e: e.type),
        Column("reason", "Reason", "Reason", lambda e: e.reason),
        Column("count", "Count", "Count", lambda e: e.count),
        Column("message", "Message", "Message", lambda e: e.message),
    )
)


@command(
    "events",
    examples=[
        Example("See what happened to a deployment", "exo ai events chat"),
        Example("Watch what happens to it", "exo ai events chat --follow"),
        Example(
            "Print the warnings about a model",
            "exo ai events Qwen/Qwen3-0.6B -O json | jq '.[] | select(.type == \"Warning\")'",
        ),
    ],
)
@click.argument("name", metavar="<name-or-id>", shell_complete=complete_objects)
@click.option("-f", "--follow", is_flag=True, help="Go on with new ones until interrupted.")
@pass_session
def events(session: Session, name: str, follow: bool) -> None:
    """Show what happened to a deployment or a model, oldest first.

    Equal events in a row are counted. With `-O json` it is one list, and with `--follow` one object
    a line. `--follow` survives restarts of the control plane, and ends when the object is deleted.
    """
    output = session.output(EVENT.field_names)
    with session.connect() as client:
        found = _find(client, name)
        objects = client.models if _is_model(found) else client.deployments
        with by_name(found):
            if follow:
                _print_as_they_come(output, objects.follow_events(found.id))
                return
            happened = objects.events(found.id)
            listed = [EVENT.record(event) for event in happened]
            if output.fits(listed, EVENT.headers):
                output.show_list(listed, EVENT.headers)
            else:
                _print_as_they_come(output, happened)


def _find(client: Client, name: str) -> Deployment | Model:
    """Return the one deployment or model of that name or id.

    Raises:
        NotFound, Conflict: there is none, or one of each.
    """
    found: list[Deployment | Model] = []
    missing: NotFound | None = None
    for find in (client.deployments.find, client.models.find):
        try:
            found.append(find(name))
        except NotFound as error:
            missing = error if missing is None or "Did you mean" in (error.hint or "") else missing
    if len(found) > 1:
        raise Conflict(
            f"a deployment and a model are named {name!r}",
            status_code=409,
            hint=f"Name the one that is meant by its id: {' or '.join(each.id for each in found)}.",
        )
    if not found:
        assert missing is not None, "neither was found"
        raise NotFound(
            f"there is no deployment and no model {name!r}", status_code=404, hint=missing.hint
        )
    return found[0]


def _is_model(found: Deployment | Model) -> bool:
    from exo_inference.wire import Model

    return isinstance(found, Model)


def _print_as_they_come(output: Output, happening: Iterable[Event]) -> None:
    import sys

    paint = by_state if takes_colour(sys.stdout) else as_it_is
    for event in happening:
        if output.is_for_programs:
            output.show_line(EVENT.record(event))
            continue
        times = f" ({event.count} times)" if event.count > 1 else ""
        kind = paint(event.type, f"{event.type:7}")
        text = harmless(f"{event.reason}: {event.message}{times}")
        print_drawn(f"{format_moment(event.time)} {kind} {text}\n")
