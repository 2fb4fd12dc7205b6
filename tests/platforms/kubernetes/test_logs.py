"""Log lines, from a named fake of the API's log endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from exo_inference.kubernetes_api.client import ApiRefusal
from exo_inference.platforms.base import LogLine, LogQuery
from exo_inference.platforms.kubernetes.logs import follow_logs, parse_line, read_logs
from tests.platforms.kubernetes.recorded import pod

START = datetime(2026, 11, 21, 20, 0, tzinfo=UTC)
ALL = LogQuery(tail=None)


def stamp(seconds: float) -> str:
    moment = START + timedelta(seconds=seconds)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond:06d}789Z"


class FakeLogs:
    """What kubelets have: lines of each pod's runs, by seconds since the start."""

    namespace = "ns"

    def __init__(self) -> None:
        self.present: dict[str, list[tuple[float, str]]] = {}
        self.previous: dict[str, list[tuple[float, str]]] = {}

    async def lines(
        self, path: str, query: Mapping[str, str], *, idle_seconds: float | None = None
    ) -> AsyncGenerator[str, None]:
        runs = self.previous if query.get("previous") == "true" else self.present
        name = path.split("/")[-2]
        if name not in runs:
            raise ApiRefusal("no such container", status_code=400, reason="BadRequest")
        position = 0
        if "tailLines" in query:
            position = max(0, len(runs[name]) - int(query["tailLines"]))
        since = query.get("sinceTime")
        while True:
            for seconds, text in runs[name][position:]:
                moment = START + timedelta(seconds=seconds)
                if since is None or moment >= datetime.fromisoformat(since).replace(microsecond=0):
                    yield f"{stamp(seconds)} {text}"
            position = max(position, len(runs[name]))
            if query.get("follow") != "true":
                return
            await asyncio.sleep(0.001)


@pytest.fixture
def logs() -> FakeLogs:
    found = FakeLogs()
    found.present = {"a": [(1, "a1"), (3, "a3")], "b": [(2, "b2"), (4, "b4")]}
    found.previous = {"a": [(0, "before")]}
    return found


PODS: list[Any] = [pod(name="a", node="n1"), pod(name="b", node="n2"), pod(name="c", node=None)]


async def read(logs: FakeLogs, query: LogQuery) -> list[str]:
    return [line.message for line in await read_logs(logs, PODS, query)]  # type: ignore[arg-type]


async def test_lines_of_all_replicas_are_merged_by_time(logs: FakeLogs) -> None:
    assert await read(logs, ALL) == ["a1", "b2", "a3", "b4"]
    assert await read(logs, replace(ALL, tail=3)) == ["b2", "a3", "b4"]
    assert await read(logs, replace(ALL, tail=0)) == []
    assert await read(logs, replace(ALL, replica="b")) == ["b2", "b4"]
    assert await read(logs, replace(ALL, since=START + timedelta(seconds=3.5))) == ["b4"]


async def test_the_run_before_the_last_restart_can_be_read(logs: FakeLogs) -> None:
    assert await read(logs, replace(ALL, previous=True)) == ["before"]


async def test_following_goes_on_with_new_lines_and_new_replicas(logs: FakeLogs) -> None:
    pods = PODS[:2]
    found: list[LogLine] = []
    stream = follow_logs(logs, lambda: pods, LogQuery(tail=1))  # type: ignore[arg-type]
    found.append(await anext(stream))
    logs.present["a"].append((5, "a5"))
    found.append(await anext(stream))
    logs.present["d"] = [(6, "d6")]
    pods.append(pod(name="d"))
    async with asyncio.timeout(30):
        found.append(await anext(stream))
    await stream.aclose()  # type: ignore[attr-defined]
    assert [line.message for line in found] == ["b4", "a5", "d6"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-21T20:00:00.123456789Z hello there", (123456, "hello there")),
        ("2026-11-21T20:00:00Z ", (0, "")),
        ("2026-11-21T20:00:00.5Z x\r", (500000, "x")),
        ("no time at all", None),
        ("", None),
    ],
)
def test_lines_are_read_with_their_time(text: str, expected: tuple[int, str] | None) -> None:
    line = parse_line(text, "n", "r")
    assert (None if line is None else (line.time.microsecond, line.message)) == expected
