"""Log lines of engine pods, through the API: all replicas merged by time, or followed as they come.

`platform.py` hands its `logs` on to here. The kubelet keeps the log of the present and of the previous
run of a container, and that of a deleted pod not at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from datetime import UTC, datetime, timedelta

from exo_inference.errors import StoreError
from exo_inference.kubernetes_api.client import KubernetesApi, object_path
from exo_inference.kubernetes_api.informer import Object
from exo_inference.platforms.base import LogLine, LogQuery
from exo_inference.platforms.kubernetes.names import ENGINE_CONTAINER

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5
"""How soon a new replica's log is followed, and a log that ended is asked for again."""

_IDLE_SECONDS = 10.0
_MAX_WAITING_LINES = 1000

FindPods = Callable[[], Sequence[Object]]


async def read_logs(api: KubernetesApi, pods: Sequence[Object], query: LogQuery) -> list[LogLine]:
    """Return the lines that are there now, in order of time."""
    found = await asyncio.gather(*(_read(api, pod, query) for pod in _chosen(pods, query)))
    lines = sorted((line for some in found for line in some), key=lambda line: line.time)
    return lines if query.tail is None else lines[max(0, len(lines) - query.tail) :]


async def follow_logs(
    api: KubernetesApi, find_pods: FindPods, query: LogQuery
) -> AsyncIterator[LogLine]:
    """Yield the lines that are there, then new ones as they come, of new replicas too."""
    pods, last = find_pods(), datetime.now(UTC)
    for line in await read_logs(api, pods, query):
        last = line.time
        yield line
    seen = {pod["metadata"]["name"]: last for pod in pods}  # of later pods everything is new
    queue: asyncio.Queue[LogLine] = asyncio.Queue(_MAX_WAITING_LINES)
    keeper = asyncio.create_task(_keep_following(api, find_pods, query, seen, queue), name="logs")
    try:
        while True:
            yield await queue.get()
    finally:
        keeper.cancel()
        await asyncio.gather(keeper, return_exceptions=True)


async def _keep_following(
    api: KubernetesApi,
    find_pods: FindPods,
    query: LogQuery,
    seen: dict[str, datetime],
    queue: asyncio.Queue[LogLine],
) -> None:
    """Have one task per pod that reads its log; one that ended begins again where it was."""
    tasks: dict[str, asyncio.Task[None]] = {}
    try:
        while True:
            for pod in _chosen(find_pods(), query):
                name = pod["metadata"]["name"]
                if name not in tasks or tasks[name].done():
                    work = _follow(api, pod, seen, queue)
                    tasks[name] = asyncio.create_task(work, name=f"log of {name}")
            await asyncio.sleep(_LOOK_SECONDS)
    finally:
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)


async def _follow(
    api: KubernetesApi, pod: Object, seen: dict[str, datetime], queue: asyncio.Queue[LogLine]
) -> None:
    name = pod["metadata"]["name"]
    query = {"follow": "true"}
    since = seen.get(name)
    if since is not None:
        query["sinceTime"] = _format(since)
    with contextlib.suppress(StoreError):  # not there yet, or gone: looked at again, or not
        async with contextlib.aclosing(_lines(api, pod, query, idle_seconds=None)) as lines:
            async for line in lines:
                if since is None or line.time > since:
                    seen[name] = line.time
                    await queue.put(line)


async def _read(api: KubernetesApi, pod: Object, query: LogQuery) -> list[LogLine]:
    wanted = {"previous": str(query.previous).lower()}
    if query.tail is not None:
        wanted["tailLines"] = str(query.tail)
    if query.since is not None:
        wanted["sinceTime"] = _format(query.since)
    try:
        async with contextlib.aclosing(
            _lines(api, pod, wanted, idle_seconds=_IDLE_SECONDS)
        ) as lines:
            found = [line async for line in lines]
    except StoreError as exc:  # no such run yet, or its node does not answer
        logger.info("no log of %s: %s", pod["metadata"]["name"], exc.message)
        return []
    # The API takes whole seconds.
    return [line for line in found if query.since is None or line.time >= query.since]


async def _lines(
    api: KubernetesApi, pod: Object, query: dict[str, str], *, idle_seconds: float | None
) -> AsyncGenerator[LogLine, None]:
    name, node = pod["metadata"]["name"], pod["spec"].get("nodeName", "")
    path = object_path(api, "pods", name) + "/log"
    query = {"container": ENGINE_CONTAINER, "timestamps": "true", **query}
    async with contextlib.aclosing(api.lines(path, query, idle_seconds=idle_seconds)) as lines:
        async for text in lines:
            line = parse_line(text, node, name)
            if line is not None:
                yield line


def parse_line(text: str, node: str, replica: str) -> LogLine | None:
    """Read one line with the time that the API puts in front of it; None for what has none."""
    stamp, _, message = text.partition(" ")
    head, _, rest = stamp.rstrip("Z").partition(".")
    try:
        moment = datetime.fromisoformat(head).replace(tzinfo=UTC)
    except ValueError:
        return None
    if rest:  # nanoseconds, of which a datetime keeps the microseconds
        digits = rest[:6].ljust(6, "0")
        moment += timedelta(microseconds=int(digits)) if digits.isdigit() else timedelta()
    return LogLine(moment, node, replica, message.rstrip("\r"))


def _chosen(pods: Sequence[Object], query: LogQuery) -> list[Object]:
    return [
        pod
        for pod in pods
        if query.replica in (None, pod["metadata"]["name"]) and pod["spec"].get("nodeName")
    ]


def _format(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
