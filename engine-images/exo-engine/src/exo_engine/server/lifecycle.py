"""One server from start to end: listen, start the core, open, drain, close, and the exit status.

`serve()` is the whole life of the API process. It listens before anything slow is begun, opens when
the core and the tokenizer are ready, drains on the first SIGTERM or SIGINT and leaves at once on the
second. When the core dies, it answers what is in flight with an error and ends as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

from aiohttp import web

from exo_engine.arguments import ServeCommand
from exo_engine.core.request import EngineStats
from exo_engine.errors import CoreFailed, InternalError
from exo_engine.server.app import build_app
from exo_engine.server.core_link import CoreFailure, CoreLink
from exo_engine.server.core_start import StartedCore
from exo_engine.server.listener import accept, address_of, listening_socket
from exo_engine.server.service import Service
from exo_engine.server.telemetry.metrics import Metrics
from exo_engine.server.telemetry.tracing import open_tracing

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_LAST_WORDS_SECONDS = 1.0
"""How long answers may take to leave once everything has ended."""
_STATS_SECONDS = 10.0


async def serve(command: ServeCommand, core: StartedCore) -> int:
    """Run one server until it is told to end or its core dies; return the exit status.

    Raises:
        EngineError: it could not start, or its core failed; `exit_code` is the status.
    """
    options = command.server
    if options.simulation is not None:
        logger.warning("this is a simulation of %s", options.simulation.title)
    metrics = Metrics(options.served_model_names[0])
    link = CoreLink(on_step=lambda stats, num_outputs: metrics.apply_stats(stats))
    service = Service(options, link, metrics)
    service.tracing = open_tracing(os.environ, options.served_model_names[0])
    runner = web.AppRunner(
        build_app(service),
        access_log=None,
        handler_cancellation=True,
        shutdown_timeout=_LAST_WORDS_SECONDS,
    )
    with listening_socket(options) as listener, _stop_signals() as stop:
        await runner.setup()
        try:
            await accept(runner, listener, room=service.room)
            logger.info("listening", extra={"address": address_of(listener, options)})
            await link.adopt(core, command.engine)
            return await _live(service, stop)
        finally:
            service.phase = "draining"
            await runner.cleanup()
            await _close(link, stop)
            await service.close()
            if service.tracing is not None:
                await asyncio.to_thread(service.tracing.close)


async def _live(service: Service, stop: _Stop) -> int:
    """Load, serve, drain."""
    async with _Tasks() as tasks:
        core_gone = tasks.spawn(service.link.wait_closed(), "core-watch")
        stopping = tasks.spawn(stop.wait(1), "stop-watch")
        loading = tasks.spawn(_load(service), "load")
        await asyncio.wait({core_gone, stopping, loading}, return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            loading.result()  # raises what went wrong with the model's files
            if service.options.is_stats_log_on:
                tasks.spawn(_log_stats(service), "stats-log")
            await asyncio.wait({core_gone, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if core_gone.done():
            raise _failed(core_gone.result())
        await _drain(service, stop, core_gone)
    return 0


async def _load(service: Service) -> None:
    """Wait for the core and the tokenizer, then open the doors."""
    begin = time.monotonic()
    await service.load_text_tools()
    await service.link.wait_ready()
    if service.link.info is None:
        await service.link.wait_closed()
        raise _failed(service.link.failure)
    info = service.link.info
    if info.pooling is not None:  # found out before requests need it, and refused here
        await asyncio.to_thread(getattr, service.text.tokenizer, "wrapping")
    service.become_ready()
    logger.info(
        "ready",
        extra={
            "seconds": round(time.monotonic() - begin, 2),
            "device": info.device,
            "dtype": info.dtype,
            "max_model_len": info.max_model_len,
            "kv_blocks": info.num_blocks,
        },
    )


async def _drain(
    service: Service, stop: _Stop, core_gone: asyncio.Task[CoreFailure | None]
) -> None:
    """Finish what is in flight, within the time there is."""
    service.begin_drain()
    seconds = service.options.shutdown_timeout_seconds
    logger.info("draining", extra={"timeout_seconds": seconds})
    async with _Tasks() as tasks:
        idle = tasks.spawn(service.wait_idle(), "idle-watch")
        again = tasks.spawn(stop.wait(2), "second-stop-watch")
        await asyncio.wait(
            {idle, again, core_gone}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
        )
        if core_gone.done():
            raise _failed(core_gone.result())
        if not idle.done():
            logger.warning(
                "ending requests that are still being answered",
                extra={"sequences": service.link.num_unfinished},
            )
            await _close(service.link, stop)  # every stream gets its error and ends by itself
            await asyncio.wait({idle}, timeout=_LAST_WORDS_SECONDS)
    logger.info("drained")


async def _close(link: CoreLink, stop: _Stop) -> None:
    """End the core: on a second signal at once, else within a few seconds."""
    async with _Tasks() as tasks:
        closing = tasks.spawn(link.close(), "core-close")
        again = tasks.spawn(stop.wait(2), "second-stop-watch")
        await asyncio.wait({closing, again}, return_when=asyncio.FIRST_COMPLETED)
        if not closing.done():
            link.kill()
        await closing


async def _log_stats(service: Service) -> None:
    """Log load and throughput while there is work."""
    last, last_time = service.link.stats, time.monotonic()
    while True:
        await asyncio.sleep(_STATS_SECONDS)
        stats, now = service.link.stats, time.monotonic()
        if stats.num_steps_total != last.num_steps_total:
            logger.info("engine", extra=interval_fields(last, stats, now - last_time))
        last, last_time = stats, now


def interval_fields(last: EngineStats, stats: EngineStats, seconds: float) -> dict[str, object]:
    """Return what the log says about the work between two snapshots."""
    prompt = stats.prompt_tokens_total - last.prompt_tokens_total
    generated = stats.generation_tokens_total - last.generation_tokens_total
    queries = stats.prefix_cache_queries_total - last.prefix_cache_queries_total
    hits = stats.prefix_cache_hits_total - last.prefix_cache_hits_total
    return {
        "running": stats.num_running,
        "waiting": stats.num_waiting,
        "prompt_tokens_per_second": round(prompt / seconds, 1),
        "generation_tokens_per_second": round(generated / seconds, 1),
        "kv_cache_usage": round(stats.kv_cache_usage, 4),
        "prefix_cache_hit_rate": round(hits / queries, 4) if queries else 0.0,
        "preemptions": stats.num_preemptions_total - last.num_preemptions_total,
    }


def _failed(failure: CoreFailure | None) -> CoreFailed:
    if failure is None:
        return CoreFailed("the engine core ended", exit_code=InternalError.exit_code)
    return CoreFailed(failure.message, exit_code=failure.exit_code, hint=failure.hint)


class _Stop:
    """Counts the signals that ask for an end."""

    def __init__(self) -> None:
        self._num_asked = 0
        self._changed = asyncio.Event()

    def ask(self) -> None:
        self._num_asked += 1
        self._changed.set()

    async def wait(self, count: int) -> None:
        while self._num_asked < count:
            self._changed.clear()
            await self._changed.wait()


@contextlib.contextmanager
def _stop_signals() -> Iterator[_Stop]:
    loop = asyncio.get_running_loop()
    stop = _Stop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.ask)
    try:
        yield stop
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


class _Tasks:
    """Named tasks that end with the block that owns them."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[Any]] = []

    def spawn(self, work: Coroutine[Any, Any, _T], name: str) -> asyncio.Task[_T]:
        task = asyncio.create_task(work, name=name)
        self._tasks.append(task)
        return task

    async def __aenter__(self) -> _Tasks:
        return self

    async def __aexit__(self, *details: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
