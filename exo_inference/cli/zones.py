"""Lists over zones: one zone with `-z`, all of them in parallel without, as the `exo` CLI does.

A zone that fails or takes too long is a warning; the rows of the others are still printed, and the
command fails at the end.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import click

from exo_inference.cli.terminal import harmless
from exo_inference.cli.views import InZone, View
from exo_inference.errors import AuthenticationFailed, ExoError

if TYPE_CHECKING:
    from exo_inference.cli.session import Session
    from exo_inference.sdk import Client
    from exo_inference.wire import Zone

T = TypeVar("T")


@dataclass
class _Answer(Generic[T]):
    """What one zone answered; both fields stay empty while it has not."""

    items: list[T] | None = None
    error: ExoError | None = None


def print_list(session: Session, view: View[InZone[T]], fetch: Callable[[Client], list[T]]) -> None:
    """Print what every zone, or the one of `-z`, has.

    Args:
        session: the flags and settings.
        view: how a row is printed.
        fetch: asks one zone.

    Raises:
        ExoError: a zone failed; what the others had has been printed.
    """
    output = session.output(view.field_names)
    answers = _ask_zones(session, fetch)
    rows = [InZone(item, zone) for zone, answer in answers.items() for item in answer.items or []]
    output.show_list([view.record(row) for row in rows], view.headers)
    _report_failures(session, answers)


def _ask_zones(session: Session, fetch: Callable[[Client], list[T]]) -> dict[str, _Answer[T]]:
    """Ask the zones at the same time and give each the limit of `--timeout`."""
    limit_seconds = session.list_timeout_seconds
    client = session.connect(timeout_seconds=limit_seconds)
    wanted = session.flags.zone
    zones: list[str | Zone] = [wanted] if wanted is not None else [*client.zones.list()]
    answers: dict[str, _Answer[T]] = {}
    threads = []
    for zone in zones:
        name = zone if isinstance(zone, str) else zone.name
        answers[name] = _Answer()
        arguments = (client, zone, fetch, answers[name])
        # Daemon threads: one that hangs beyond the limit must not keep the program from ending.
        threads.append(
            threading.Thread(target=_ask, args=arguments, name=f"list-{name}", daemon=True)
        )
        threads[-1].start()
    deadline = time.monotonic() + limit_seconds
    for thread in threads:
        left = deadline - time.monotonic()
        thread.join(None if math.isinf(left) else max(0.0, left))
    if not any(thread.is_alive() for thread in threads):
        client.close()
    return answers


def _ask(
    client: Client, zone: str | Zone, fetch: Callable[[Client], list[T]], answer: _Answer[T]
) -> None:
    try:
        answer.items = fetch(client.for_zone(zone))
    except ExoError as error:
        answer.error = error


def _report_failures(session: Session, answers: dict[str, _Answer[T]]) -> None:
    failed = {zone: answer for zone, answer in answers.items() if answer.items is None}
    if not failed:
        return
    problems = [answer.error or _late(session) for answer in failed.values()]
    if session.flags.zone is not None:
        raise problems[0]
    for zone, problem in zip(failed, problems, strict=True):
        click.echo(harmless(f"warning: zone {zone}: {problem.message}"), err=True)
    refused = all(isinstance(problem, AuthenticationFailed) for problem in problems)
    kind = _ZonesRefused if refused else ExoError
    raise kind(f"{len(failed)} zone(s) failed", hint=problems[0].hint)


def _late(session: Session) -> ExoError:
    seconds = session.list_timeout_seconds
    return ExoError(
        f"no answer within {seconds:g} s", hint="Allow more time with --timeout, such as 60s."
    )


class _ZonesRefused(ExoError):
    """Every zone that failed refused our credentials."""

    exit_code = AuthenticationFailed.exit_code
