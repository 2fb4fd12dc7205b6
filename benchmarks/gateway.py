"""What the gateway costs: the same requests to an engine directly and through the gateway.

Engine, gateway and client are three processes. The engine is a small aiohttp server that answers at
once, so that all that is measured is the way there and back. Direct and proxied requests take
turns within one run; the figures are medians, and their ratio and difference.

    python benchmarks/gateway.py            # prints
    python benchmarks/gateway.py --write    # also replaces docs/benchmarks/gateway.md
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import aiohttp

from exo_inference.local_settings import prepare_settings, save_settings
from exo_inference.state_dir import StateDir

KEY = "sk-benchmark"
NUM_REQUESTS = 1000
NUM_STREAMS = 200
NUM_CHUNKS = 64
CONCURRENCY = 16
PAGE = Path(__file__).parents[1] / "docs" / "benchmarks" / "gateway.md"

ENGINE = """
import sys
import uvloop
from aiohttp import web

CHUNK = (b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":'
         b'[{"index":0,"delta":{"content":"word "},"finish_reason":null}]}\\n\\n')
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":64}}\\n\\n'

async def chat(request):
    body = await request.json()
    if not body.get("stream"):
        return web.json_response({"choices": [{"message": {"content": "word " * 64}}],
                                  "usage": {"prompt_tokens": 7, "completion_tokens": 64}})
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for _ in range(body["max_tokens"]):
        await response.write(CHUNK)
    if (body.get("stream_options") or {}).get("include_usage"):
        await response.write(USAGE)
    await response.write(b"data: [DONE]\\n\\n")
    return response

app = web.Application()
app.router.add_post("/v1/chat/completions", chat)
web.run_app(app, path=sys.argv[1], access_log=None, print=None, loop=uvloop.new_event_loop())
"""


@dataclass(frozen=True)
class Way:
    """One of the two ways to the engine."""

    name: str
    session: aiohttp.ClientSession
    url: str


@dataclass(frozen=True)
class Figure:
    """One measurement: medians over both ways, in milliseconds."""

    what: str
    direct_ms: float
    gateway_ms: float

    def row(self) -> str:
        """Return the line of the table."""
        ratio = self.gateway_ms / self.direct_ms
        return (
            f"| {self.what} | {self.direct_ms:.2f} ms | {self.gateway_ms:.2f} ms "
            f"| {self.gateway_ms - self.direct_ms:+.2f} ms | {ratio:.2f} |"
        )


async def plain(way: Way) -> float:
    """Time one request without streaming."""
    started = time.perf_counter()
    async with way.session.post(way.url, json={"model": "m", "messages": []}) as answer:
        await answer.read()
        assert answer.status == 200, await answer.text()
    return time.perf_counter() - started


async def stream(way: Way) -> tuple[float, float]:
    """Time one stream: until its first byte, and until its end."""
    started = time.perf_counter()
    body = {"model": "m", "messages": [], "stream": True, "max_tokens": NUM_CHUNKS}
    async with way.session.post(way.url, json=body) as answer:
        assert answer.status == 200, await answer.text()
        await answer.content.readany()
        first = time.perf_counter() - started
        await answer.read()
    return first, time.perf_counter() - started


async def alternate(
    ways: list[Way], count: int, measure: Callable[[Way], Awaitable[tuple[float, ...]]]
) -> list[list[tuple[float, ...]]]:
    """Measure both ways in turns, each `count` times."""
    results: list[list[tuple[float, ...]]] = [[] for _ in ways]
    for turn in range(count):
        order = (0, 1) if turn % 2 else (1, 0)  # neither way is always the second
        for index in order:
            results[index].append(await measure(ways[index]))
    return results


async def measure_all(ways: list[Way]) -> list[Figure]:
    """Take all figures."""

    async def one(way: Way) -> tuple[float, ...]:
        return (await plain(way),)

    async def many(way: Way) -> tuple[float, ...]:
        started = time.perf_counter()
        await asyncio.gather(*(plain(way) for _ in range(CONCURRENCY)))
        return ((time.perf_counter() - started) / CONCURRENCY,)

    await alternate(ways, 50, one)  # connections, caches
    single = await alternate(ways, NUM_REQUESTS, one)
    streams = await alternate(ways, NUM_STREAMS, stream)
    parallel = await alternate(ways, NUM_REQUESTS // CONCURRENCY, many)
    return [
        figure("one request, whole answer", single, 0),
        figure(f"one stream of {NUM_CHUNKS} chunks, first byte", streams, 0),
        figure(f"one stream of {NUM_CHUNKS} chunks, end", streams, 1),
        figure(f"{CONCURRENCY} requests at once, time per request", parallel, 0),
    ]


def figure(what: str, results: list[list[tuple[float, ...]]], column: int) -> Figure:
    """Reduce the samples of both ways to their medians."""
    medians = [statistics.median(sample[column] for sample in way) * 1000 for way in results]
    return Figure(what, *medians)


async def run() -> list[Figure]:
    """Start the three processes, measure, and stop them."""
    root = Path(tempfile.mkdtemp(prefix="exo-bench-", dir="/tmp"))
    state = StateDir(root)
    state.create()
    settings = prepare_settings(state).settings
    save_settings(state, settings)
    write_table(state)
    socket = root / "engine.sock"
    gateway = [sys.executable, "-m", "exo_inference.gateway", "--state-dir", str(root)]
    with (root / "log").open("wb") as log:
        processes = [
            subprocess.Popen([sys.executable, "-c", ENGINE, str(socket)], stderr=log),  # noqa: ASYNC220
            subprocess.Popen(gateway, stderr=log, cwd=root),  # noqa: ASYNC220
        ]
    try:
        async with (
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(socket))) as direct,
            aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}) as proxied,
        ):
            path = "/v1/chat/completions"
            ways = [
                Way("direct", direct, f"http://engine{path}"),
                Way("gateway", proxied, f"{settings.gateway_url}/bench{path}"),
            ]
            await until_ready(ways)
            return await measure_all(ways)
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()
        shutil.rmtree(root)


def write_table(state: StateDir) -> None:
    """Publish the one engine."""
    key = {"id": "k", "sha256": hashlib.sha256(KEY.encode()).hexdigest()}
    route = {
        "deployment-id": "bench",
        "name": "bench",
        "model": "m",
        "state": "ready",
        "keys": [key],
        "replicas": [{"name": "bench-a", "address": "unix:engine.sock"}],
    }
    table = {"version": 1, "routes": [route], "public-keys": []}
    state.routes_file.write_text(json.dumps(table))


async def until_ready(ways: list[Way]) -> None:
    """Wait until both ways answer."""
    async with asyncio.timeout(20):
        for way in ways:
            while True:
                try:
                    await plain(way)
                    break
                except (aiohttp.ClientConnectionError, AssertionError):
                    await asyncio.sleep(0.05)


def machine() -> str:
    """Name the processor."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def report(figures: list[Figure], load: float) -> str:
    """Return the page. `load` is the machine's load average before the run."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("aiohttp", "uvloop"))
    rows = "\n".join(figure.row() for figure in figures)
    return f"""# What the gateway costs

The same requests to an engine on its unix socket, and through the gateway, in turns within one run.
The engine answers at once, so all that is measured is the way. Through the gateway a request is
authenticated, routed, logged and counted, and crosses a TCP connection of this machine.

| | direct | through the gateway | difference | ratio of medians |
| --- | --- | --- | --- | --- |
{rows}

{NUM_REQUESTS} single requests and {NUM_STREAMS} streams each way. Engine, gateway and client share
the machine's cores.

* Machine: {os.cpu_count()} cores of {machine()}, {platform.system()} {platform.release()}
* Load average before the run: {load:.1f}; on a busy machine, read the ratios
* Versions: exo-inference {version("exo-inference")}, Python {platform.python_version()}, {versions}
* Date: {datetime.now(UTC):%Y-%m-%d}
* Command: `python benchmarks/gateway.py --write`
"""


def main() -> None:
    """Measure, print, and write the page where asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"replace {PAGE.name}")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    page = report(asyncio.run(run()), load)
    print(page)
    if options.write:
        PAGE.write_text(page)


if __name__ == "__main__":
    main()
