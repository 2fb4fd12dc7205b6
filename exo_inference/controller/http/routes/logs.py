"""`/ai/deployment/{id}/logs`: one JSON object, or one line per entry with `follow=true`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

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
        stream = _stream(lines, _wait_for_end(context, deployment.metadata.uid))
        return StreamingResponse(stream, media_type="application/x-ndjson")
    entries: list[LogEntry] = []
    async for line in lines:
        entries.append(_to_entry(line))
        if len(entries) >= MAX_ENTRIES:
            break
    return answer(LogList(logs=entries))


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
