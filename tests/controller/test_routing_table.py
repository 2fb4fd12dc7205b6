"""The routing table: written on change, and honest about what the gateway may still route by."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import ssl
import threading
from pathlib import Path

import pytest

from exo_inference.controller.gateway_client import SocketGatewayClient
from exo_inference.controller.local import routing_table
from exo_inference.controller.local.routing_table import RoutingTable
from exo_inference.state_dir import write_atomically
from exo_inference.wire import Route, RouteKey, RouteReplica, RouteTable
from tests.controller.fakes import FakeGateway


class FakeClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        self.now += 0.2  # every look at the clock finds the last answer too old
        return self.now


@pytest.fixture
def gateway() -> FakeGateway:
    return FakeGateway()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def table(tmp_path: Path, gateway: FakeGateway, clock: FakeClock) -> RoutingTable:
    made = RoutingTable(tmp_path / "routes.json", gateway, monotonic=clock)
    await made.load()
    gateway.version = made.version
    return made


def route(*replicas: str, deployment: str = "d1") -> Route:
    return Route(
        deployment_id=deployment,
        name="chat",
        model="org/m1",
        state="ready",
        keys=[RouteKey(id="k", sha256="ab")],
        replicas=[RouteReplica(name=name, address=f"unix:{name}") for name in replicas],
    )


def read(path: Path) -> RouteTable:
    return RouteTable.model_validate_json(path.read_text())


async def test_it_is_written_only_when_it_changes(table: RoutingTable, tmp_path: Path) -> None:
    path = tmp_path / "routes.json"
    assert read(path).routes == []
    await table.set_route(route("a"))
    inode, version = path.stat().st_ino, table.version
    await table.set_route(route("a"))
    await table.set_public_keys([])
    await table.retain(["d1"])
    await table.remove_route("other")
    assert (path.stat().st_ino, table.version) == (inode, version)
    await table.set_route(route("a", "b"))
    assert read(path).version == table.version > version
    assert path.stat().st_mode & 0o777 == 0o600


async def test_a_replica_is_unrouted_once_the_gateway_has_let_go(
    table: RoutingTable, gateway: FakeGateway
) -> None:
    await table.set_route(route("a", "b"))
    gateway.version = table.version
    assert await table.unrouted(["a", "b"]) == set()
    await table.set_route(route("b"))
    assert await table.unrouted(["a", "b"]) == set()
    gateway.version = table.version
    assert await table.unrouted(["a", "b", "never"]) == {"a", "never"}


async def test_tables_in_between_count_too(table: RoutingTable, gateway: FakeGateway) -> None:
    """The gateway may have read any table between the one it reported and the newest."""
    await table.set_route(route("a"))
    await table.set_route(route("b"))
    await table.set_route(route("c"))
    assert await table.unrouted(["a", "b", "c"]) == set()
    gateway.version = table.version
    assert await table.unrouted(["a", "b", "c"]) == {"a", "b"}


async def test_a_deployment_is_unrouted_once_its_route_is_gone(
    table: RoutingTable, gateway: FakeGateway
) -> None:
    await table.set_route(route("a"))
    await table.remove_route("d1")
    assert not await table.is_unrouted("d1")
    gateway.version = table.version
    assert await table.is_unrouted("d1")


async def test_a_silent_gateway_counts_as_gone_after_a_while(
    table: RoutingTable, gateway: FakeGateway, clock: FakeClock
) -> None:
    await table.set_route(route("a"))
    await table.set_route(route("b"))
    gateway.version = None
    assert await table.unrouted(["a"]) == set()
    clock.now += 6
    assert await table.unrouted(["a", "b"]) == {"a"}


async def test_a_gateway_that_answers_again_is_believed_again(
    table: RoutingTable, gateway: FakeGateway, clock: FakeClock
) -> None:
    await table.set_route(route("a"))
    gateway.version = None
    assert await table.unrouted(["a"]) == set()
    clock.now += 3
    gateway.version = table.version
    await table.unrouted(["a"])
    await table.set_route(route("b"))
    gateway.version = None
    clock.now += 3
    assert await table.unrouted(["a"]) == set()


async def test_a_restart_goes_on_with_the_table_on_disk(
    table: RoutingTable, gateway: FakeGateway, tmp_path: Path
) -> None:
    await table.set_route(route("a"))
    await table.set_public_keys([RouteKey(id="p", sha256="cd")])
    again = RoutingTable(tmp_path / "routes.json", gateway)
    await again.load()
    assert again.version == table.version
    assert again.has_route("d1")
    before = read(tmp_path / "routes.json")
    await again.set_route(route("a"))
    assert read(tmp_path / "routes.json") == before
    await again.retain([])
    assert read(tmp_path / "routes.json").routes == []
    assert again.version > table.version


async def test_a_gateway_on_an_older_table_than_the_restart_knows_is_not_trusted(
    table: RoutingTable, gateway: FakeGateway, tmp_path: Path
) -> None:
    gateway.version = table.version
    await table.set_route(route("b"))
    again = RoutingTable(tmp_path / "routes.json", gateway)
    await again.load()
    assert await again.unrouted(["a"]) == set()
    gateway.version = again.version
    fresh = RoutingTable(tmp_path / "routes.json", gateway)
    await fresh.load()
    assert await fresh.unrouted(["a"]) == {"a"}


async def test_versions_grow_even_when_the_file_is_lost(
    table: RoutingTable, gateway: FakeGateway, tmp_path: Path
) -> None:
    await table.set_route(route("a"))
    for text in (None, "{broken", json.dumps({"format": 9})):
        path = tmp_path / "routes.json"
        path.unlink() if text is None else path.write_text(text)
        again = RoutingTable(path, gateway)
        await again.load()
        assert again.version >= table.version
        assert read(path).routes == []


async def test_waiting_for_the_gateway_ends_when_it_follows_or_is_dead(
    table: RoutingTable, gateway: FakeGateway, clock: FakeClock
) -> None:
    async def waited_seconds() -> float:
        start = clock.now
        await table.wait_until_applied(timeout_seconds=5.0)
        return clock.now - start

    await table.set_route(route("a"))
    assert await waited_seconds() >= 5.0
    gateway.version = table.version
    assert await waited_seconds() < 5.0
    gateway.version = None
    assert await waited_seconds() < 5.0


async def test_a_key_is_waited_for_as_long_as_no_table_has_it(
    table: RoutingTable, gateway: FakeGateway
) -> None:
    waiting = asyncio.create_task(table.wait_for_key("ab", accepted=True), name="wait-for-key")
    await asyncio.sleep(0)
    assert not waiting.done()
    await table.set_route(route("a"))
    gateway.version = table.version
    await waiting
    await table.wait_for_key("unknown", accepted=False)


async def test_a_key_is_waited_for_until_the_table_is_on_disk(
    tmp_path: Path, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No gateway runs, and one that starts in that moment would read the file from before."""
    gateway.version = None
    table = RoutingTable(tmp_path / "routes.json", gateway, monotonic=lambda: 0.0)
    await table.load()
    may_write = threading.Event()

    def write_late(path: Path, text: str) -> None:
        may_write.wait(10)
        write_atomically(path, text)

    monkeypatch.setattr(routing_table, "write_atomically", write_late)
    writing = asyncio.create_task(table.set_route(route("a")), name="write")
    waiting = asyncio.create_task(table.wait_for_key("ab", accepted=True), name="wait-for-key")
    for _ in range(10):
        await asyncio.sleep(0)
    assert not waiting.done()
    may_write.set()
    await waiting
    assert read(tmp_path / "routes.json").routes == [route("a")]
    await writing


async def test_a_key_that_moves_is_waited_for_until_it_opens_nothing_else(
    table: RoutingTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway is asked as soon as the table is as the key's scope says, and not before."""
    asked = []

    async def has_argument() -> None:
        asked.append(table.version)

    monkeypatch.setattr(table, "wait_until_applied", has_argument)

    async def is_followed(scope: str) -> bool:
        asked.clear()
        await table.wait_for_scope("ab", scope)
        return bool(asked)

    closed = {"keys": []}
    await table.set_route(route(deployment="d1"))
    await table.set_route(route(deployment="d2").model_copy(update=closed))
    assert await is_followed("d1")
    assert not await is_followed("d2")
    await table.set_route(route(deployment="d2"))
    assert not await is_followed("d2")  # it opens both
    await table.set_route(route(deployment="d1").model_copy(update=closed))
    assert await is_followed("d2")
    assert not await is_followed("public")
    await table.set_public_keys([RouteKey(id="k", sha256="ab")])
    assert not await is_followed("public")
    await table.set_route(route(deployment="d2").model_copy(update=closed))
    assert await is_followed("public")
    await table.set_public_keys([])
    assert await is_followed("not-routed-yet")


async def test_no_gateway_is_no_answer(tmp_path: Path) -> None:
    assert await SocketGatewayClient(tmp_path / "no/run/gateway.sock").applied_version() is None
    assert await SocketGatewayClient(tmp_path / "gateway.sock").applied_version() is None


async def test_a_gateway_is_asked_without_loading_certificates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That takes 25 ms of the loop that answers the API, and every look at a deployment asks."""

    def load(*_: object, **__: object) -> None:
        raise AssertionError("certificate authorities are loaded for a unix socket")

    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", load)
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", load)
    assert await SocketGatewayClient(tmp_path / "gateway.sock").applied_version() is None


async def test_a_gateway_is_asked_over_its_socket_however_long_its_path(tmp_path: Path) -> None:
    """The path of a unix socket is limited to 107 bytes; a state directory's is not."""
    directory = tmp_path / ("long" * 30)
    directory.mkdir()
    answers = [b'{"table_version": 42}', b'{"table_version": "x"}', b"not json", b"[]"]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = answers.pop(0)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    descriptor = os.open(directory, os.O_PATH)
    try:
        path = f"/proc/self/fd/{descriptor}/gateway.sock"
        async with await asyncio.start_unix_server(answer, path):
            link = SocketGatewayClient(directory / "gateway.sock")
            assert [await link.applied_version() for _ in range(4)] == [42, None, None, None]
    finally:
        os.close(descriptor)
    assert await link.applied_version() is None


@pytest.mark.parametrize("damage", ['{"x', None, "replaced"])
async def test_a_damaged_or_lost_file_is_written_anew(
    table: RoutingTable, tmp_path: Path, damage: str | None
) -> None:
    path = tmp_path / "routes.json"
    await table.set_route(route("a"))
    good, version = path.read_text(), table.version
    await table.repair()
    assert (path.read_text(), table.version) == (good, version), "nothing to repair"
    if damage is None:
        path.unlink()
    elif damage == "replaced":
        os.replace(shutil.copy(path, tmp_path / "other"), path)
    else:
        path.write_text(damage)
    assert await table.repair()
    assert read(path).version == table.version > version
    assert read(path).routes == [route("a")]
    assert not await table.repair()


async def test_a_table_that_could_not_be_written_is_written_later(
    table: RoutingTable, tmp_path: Path
) -> None:
    path = tmp_path / "routes.json"
    real, table._path = table._path, tmp_path / "missing" / "routes.json"
    with pytest.raises(OSError, match="missing"):
        await table.set_route(route("a"))
    table._path = real
    assert await table.repair()
    assert read(path).routes == [route("a")]


async def test_the_file_is_watched_until_cancelled(table: RoutingTable, tmp_path: Path) -> None:
    path = tmp_path / "routes.json"
    watching = asyncio.create_task(table.keep_written(), name="keep-written")
    path.write_text('{"x')
    async with asyncio.timeout(5):
        while not path.read_text().startswith("{\n"):
            await asyncio.sleep(0.02)
    watching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching
