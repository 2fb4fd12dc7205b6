"""Following logs and events across broken connections; `logs(follow=True)` and `follow_events` call it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import datetime
from typing import TYPE_CHECKING

from exo_inference.errors import ConnectionFailed, NotFound, ServerError, TooManyRequests
from exo_inference.sdk import _requests
from exo_inference.sdk._log_cursor import LogCursor
from exo_inference.sdk._messages import Call
from exo_inference.wire import Event, LogEntry
from exo_inference.wire.base import format_time

if TYPE_CHECKING:
    from exo_inference.sdk._async.client import AsyncClient

RECONNECT_SECONDS = 1.0
EVENT_SECONDS = 1.0
MAX_FAILED_CONNECTIONS = 30
"""So many attempts in a row may fail before following ends: half a minute of a restart."""

CATCH_UP_LINES = "1000"
"""How many lines are asked for where a server answers with its last lines whatever `since` says."""


async def follow_logs(
    client: AsyncClient, deployment_id: str, query: _requests.Query, since: datetime | None
) -> AsyncGenerator[LogEntry, None]:
    """Yield log lines as they are written, until the deployment is gone."""
    cursor = LogCursor(since)
    failures = 0
    while True:
        before = cursor.num_connections
        try:
            entries = _connection(client, deployment_id, query, cursor)
            async with aclosing(entries):
                async for entry in entries:
                    if cursor.is_new(entry):
                        yield entry
            failures = 0
        except NotFound:
            if cursor.num_connections == 0:
                raise
            return
        except (ConnectionFailed, ServerError, TooManyRequests):
            failures = failures + 1 if cursor.num_connections == before else 0
            if cursor.num_connections == 0 or failures >= MAX_FAILED_CONNECTIONS:
                raise
        await client._http.sleep(RECONNECT_SECONDS)


async def follow_events(
    client: AsyncClient, kind: str, object_id: str
) -> AsyncGenerator[Event, None]:
    """Yield the events that there are, then each new one, until the object is gone.

    One that is counted up is yielded again. Nothing is missed as long as the server keeps the events
    of two looks.
    """
    seen: frozenset[Event] = frozenset()
    found_once, failures = False, 0
    while True:
        try:
            found = (await client.send(_requests.list_events(kind, object_id))).events
            failures = 0
        except NotFound:
            if not found_once:
                raise
            return
        except (ConnectionFailed, ServerError, TooManyRequests):
            failures += 1
            if not found_once or failures >= MAX_FAILED_CONNECTIONS:
                raise
        else:
            found_once = True
            for event in found:
                if event not in seen:
                    yield event
            seen = frozenset(found)
        await client._http.sleep(EVENT_SECONDS)


async def _connection(
    client: AsyncClient, deployment_id: str, query: _requests.Query, cursor: LogCursor
) -> AsyncGenerator[LogEntry, None]:
    """Yield the lines of one connection."""
    call: Call[list[LogEntry]] = _requests.deployment_logs(deployment_id, _resumed(query, cursor))
    async with client._http.stream(await client.endpoint(), call.request) as (head, lines):
        if head.status_code >= 300:
            call.result(head)
        cursor.connected()
        async for line in lines:
            entries = _requests.read_log_line(line, call.action)
            if entries is None:
                cursor.is_polled = True
                entries = _requests.read_log_list(line, call.action)
            for entry in entries:
                yield entry


def _resumed(query: _requests.Query, cursor: LogCursor) -> _requests.Query:
    """Return the arguments of the next connection: where the last one ended."""
    if cursor.num_connections > 0 and cursor.since is not None:
        kept = tuple(item for item in query if item[0] not in ("tail", "since"))
        tail = (("tail", CATCH_UP_LINES),) if cursor.is_polled else ()
        query = (*kept, *tail, ("since", format_time(cursor.since)))
    return (*query, ("follow", "true"))
