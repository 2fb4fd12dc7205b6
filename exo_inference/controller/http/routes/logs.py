"""`/ai/deployment/{id}/logs`: one JSON object, or one line per entry with `follow=true`."""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections.abc import AsyncIterator, Coroutine

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from exo_inference.connection_limits import client_connections
from exo_inference.controller.admission.problems import Refused
from exo_inference.controller.context import Context, context_of
from exo_inference.controller.http.routes.requests import (
    answer,
    load,
    read_count,
    read_flag,
    read_moment,
    read_text,
    route,
)
from exo_inference.errors import ExoError
from exo_inference.platforms.base import LogLine, LogQuery
from exo_inference.resources import InferenceDeployment
from exo_inference.wire import LogEntry, LogList

DEFAULT_TAIL = 10
GONE_CHECK_SECONDS = 1.0
FOLLOWED_PART = 4
"""Of the connections of clients, one in so many may be a log that is followed."""

MAX_TAIL = 100_000
MAX_ENTRIES = 200_000
"""Of one answer without `follow`, whatever was asked for."""


async def get_logs(request: Request) -> Response:
    """Answer log lines of all replicas, oldest first. `stream` is accepted and changes nothing."""
    context = context_of(request)
    since = read_moment(request, "since")
    tail = read_count(request, "tail", default=DEFAULT_TAIL, maximum=MAX_TAIL)
    read_flag(request, "stream")
    query = LogQuery(
        tail=None if since is not None and "tail" not in request.query_params else tail,
        since=since,
        previous=read_flag(request, "previous"),
        replica=read_text(request, "replica"),
        follow=read_flag(request, "follow"),
    )
    deployment = await load(context.store, InferenceDeployment, request)
    lines = context.platform.logs(deployment.metadata.uid, query)
    if query.follow:
        _check_room(context)
        stream = _stream(lines, _wait_for_end(context, deployment.metadata.uid))
        return _Following(context, stream)
    entries: list[LogEntry] = []
    async for line in lines:
        entries.append(_to_entry(line))
        if len(entries) >= MAX_ENTRIES:
            break
    return answer(LogList(logs=entries))


def _check_room(context: Context) -> None:
    """Refuse one stream too many: as long as they last, their connections are there for nobody else."""
    limit = client_connections(resource.getrlimit(resource.RLIMIT_NOFILE)[0]) // FOLLOWED_PART
    if len(context.following) >= limit:
        raise Refused(
            429,
            "Too many logs followed",
            f"{limit} logs are followed at the moment, as many as the controller's limit of open files allows "
            "(`ulimit -n`)",
            hint="Repeat it when another one has ended, or ask without follow.",
            headers={"retry-after": "5", "connection": "close"},
        )


class _Following(StreamingResponse):
    """A log that is followed: counted as long as it lasts."""

    def __init__(self, context: Context, lines: AsyncIterator[bytes]) -> None:
        super().__init__(lines, media_type="application/x-ndjson")
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        self._context.following.add(self)
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._context.following.discard(self)


async def _wait_for_end(context: Context, uid: str) -> None:
    """Return when the process is asked to stop, or when the deployment is gone."""
    while True:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(context.stopping.wait(), GONE_CHECK_SECONDS)
            return
        try:
            await context.store.get(InferenceDeployment, uid)
        except ExoError:
            return


async def _stream(
    lines: AsyncIterator[LogLine], end: Coroutine[None, None, None]
) -> AsyncIterator[bytes]:
    """Yield one JSON line per entry until the lines end or `end` returns."""
    stop = asyncio.create_task(end, name="log-stream-end")
    following: asyncio.Task[LogLine] | None = None
    try:
        while True:
            following = asyncio.create_task(_next(lines), name="log-stream-next")
            await asyncio.wait({stop, following}, return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                return
            try:
                entry = _to_entry(following.result())
            except StopAsyncIteration:
                return
            yield entry.model_dump_json(by_alias=True, exclude_none=True).encode() + b"\n"
    finally:
        stop.cancel()
        if following is not None:
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration):
                await following
        close = getattr(lines, "aclose", None)
        if close is not None:
            await close()


async def _next(lines: AsyncIterator[LogLine]) -> LogLine:
    return await anext(lines)


def _to_entry(line: LogLine) -> LogEntry:
    return LogEntry(time=line.time, node=line.node, message=line.message, replica=line.replica)


ROUTES = [route("/v2/ai/deployment/{id}/logs", GET=get_logs)]
