"""Following a log across broken connections; `Deployments.logs(follow=True)` is the only caller."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import datetime
from typing import TYPE_CHECKING

from exo_inference.errors import ConnectionFailed, NotFound, ServerError, TooManyRequests
from exo_inference.sdk import _requests
from exo_inference.sdk._log_cursor import LogCursor
from exo_inference.sdk._messages import Call
from exo_inference.wire import LogEntry
from exo_inference.wire.base import format_time

if TYPE_CHECKING:
    from exo_inference.sdk._async.client import AsyncClient

RECONNECT_SECONDS = 1.0
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
