"""Lists over zones: one zone with `-z`, all of them in parallel without, as the `exo` CLI does.

A zone that fails or takes too long is a warning; the rows of the others are still printed, and the
command fails at the end.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

import click

from exo_inference.cli.rendering.terminal import harmless
from exo_inference.cli.rendering.views import InZone, View
from exo_inference.errors import AuthenticationFailed, ExoError

if TYPE_CHECKING:
    from exo_inference.cli.session import Session
    from exo_inference.sdk import Client
    from exo_inference.wire import Zone

T = TypeVar("T")

MAX_PARALLEL = 8
"""Zones that are asked at the same time."""


@dataclass
class _Answer(Generic[T]):
    """What one zone answered; both fields stay empty while it has not."""

    items: list[T] | None = None
    error: ExoError | None = None


def print_list(
    session: Session,
    view: View[InZone[T]],
    fetch: Callable[[Client], list[T]],
    manifest: Callable[[T], str] | None = None,
) -> None:
    """Print what every zone, or the one of `-z`, has.

    Args:
        session: the flags and settings.
        view: how a row is printed.
        fetch: asks one zone.
        manifest: an object as `apply` takes it, where it does.

    Raises:
        ExoError: a zone failed; what the others had has been printed.
    """
    output = session.output(view.field_names)
    answers = _ask_zones(session, fetch)
    rows = [InZone(item, zone) for zone, answer in answers.items() for item in answer.items or []]
    manifests = None if manifest is None else partial(map, manifest, [row.item for row in rows])
    output.show_list([view.record(row) for row in rows], view.headers, manifests=manifests)
    _report_failures(session, answers)


def _ask_zones(session: Session, fetch: Callable[[Client], list[T]]) -> dict[str, _Answer[T]]:
    """Ask the zones, some at the same time, and give each the limit of `--timeout`."""
    limit_seconds = session.list_timeout_seconds
    client = session.connect(timeout_seconds=limit_seconds)
    wanted = session.flags.zone
    zones: list[str | Zone] = [wanted] if wanted is not None else [*client.zones.list()]
    names = [zone if isinstance(zone, str) else zone.name for zone in zones]
    answers: dict[str, _Answer[T]] = {name: _Answer() for name in names}
    waiting = deque(zip(zones, answers.values(), strict=True))
    num_threads = min(MAX_PARALLEL, len(zones))
    shared = _SharedClient(client, num_threads)
    # Daemon threads: one that hangs beyond the limit must not keep the program from ending.
    threads = [
        threading.Thread(
            target=_ask_in_turn, args=(shared, waiting, fetch), name=f"list-{number}", daemon=True
        )
        for number in range(num_threads)
    ]
    for thread in threads:
        thread.start()
    rounds = math.ceil(len(zones) / MAX_PARALLEL)
    deadline = time.monotonic() + limit_seconds * rounds
    for thread in threads:
        left = deadline - time.monotonic()
        thread.join(None if math.isinf(left) else max(0.0, left))
    return answers


class _SharedClient:
    """Closes a client when the last of its users is done, however late that is."""

    def __init__(self, client: Client, num_users: int) -> None:
        self._client = client
        self._num_users = num_users
        self._lock = threading.Lock()
        if not num_users:
            client.close()

    def __enter__(self) -> Client:
        return self._client

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._num_users -= 1
            if not self._num_users:
                self._client.close()


def _ask_in_turn(
    shared: _SharedClient,
    waiting: deque[tuple[str | Zone, _Answer[T]]],
    fetch: Callable[[Client], list[T]],
) -> None:
    """Ask one zone after the other until none waits; several threads share the queue."""
    with shared as client:
        while True:
            try:
                zone, answer = waiting.popleft()
            except IndexError:
                return
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
