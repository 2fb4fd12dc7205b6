"""The listening socket: private, replaced when dead, removed when done."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import itertools
import socket
import stat
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest
from aiohttp import web
from exo_engine.arguments import ServerOptions
from exo_engine.errors import AddressUnavailable
from exo_engine.server import listener as listener_module
from exo_engine.server.listener import accept, address_of, listening_socket

OPTIONS = ServerOptions(("m",), Path("m"), Path("m"), port=0)


def on(path: Path) -> ServerOptions:
    return dataclasses.replace(OPTIONS, uds=str(path))


def test_socket_file_is_private_and_removed_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    with listening_socket(on(path)) as listener:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert address_of(listener, on(path)) == str(path)
    assert not path.exists()


async def test_burst_waits_until_it_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    runner = web.AppRunner(web.Application())
    await runner.setup()
    with listening_socket(on(path)) as listener, contextlib.ExitStack() as clients:
        try:
            await accept(runner, listener)
            for _ in range(400):  # none is accepted meanwhile: nothing else runs
                client = clients.enter_context(socket.socket(socket.AF_UNIX))
                client.setblocking(False)
                assert client.connect_ex(str(path)) == 0
        finally:
            await runner.cleanup()


async def test_connections_beyond_the_bound_wait_and_are_answered(tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    app = web.Application()
    gate, are_held, num_held = asyncio.Semaphore(0), asyncio.Event(), 0

    async def answer(_: web.Request) -> web.Response:
        nonlocal num_held
        num_held += 1
        if num_held == 3:
            are_held.set()
        await gate.acquire()
        return web.Response(text="ok")

    app.router.add_get("/", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    with listening_socket(on(path)) as listener:
        try:
            await accept(runner, listener, 3)
            clients = [await asyncio.open_unix_connection(path) for _ in range(10)]
            for _, writer in clients:
                writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            async with asyncio.timeout(10):
                await are_held.wait()
                assert len(runner.server.connections) == 3
                for _ in range(10):
                    gate.release()
                answers = [await reader.read() for reader, _ in clients]
            assert [answer.split(b" ")[1] for answer in answers] == [b"200"] * 10
            for _, writer in clients:
                writer.close()
        finally:
            await runner.cleanup()


@contextlib.asynccontextmanager
async def serving(path: Path, max_connections: int) -> AsyncIterator[None]:
    """A server with few connections that says so in its answers, as the engine's does."""
    room, app = listener_module.Room(), web.Application()

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def close(request: web.Request, response: web.StreamResponse) -> None:
        room.close_after(request, response)

    app.router.add_get("/", answer)
    app.on_response_prepare.append(close)
    runner = web.AppRunner(app)
    await runner.setup()
    with listening_socket(on(path)) as listener:
        try:
            await accept(runner, listener, max_connections, room)
            yield
        finally:
            await runner.cleanup()


async def close_all(writers: Iterable[asyncio.StreamWriter]) -> None:
    for writer in writers:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def head_of(reader: asyncio.StreamReader) -> bytes:
    """Return the head of an answer; empty where the connection ended without one."""
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        return await reader.readuntil(b"\r\n\r\n")
    return b""


@pytest.mark.parametrize(
    "first",
    [b"", b"GET / HTTP/1.1\r\nHo", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"],
    ids=["silent", "half a head", "kept after an answer"],
)
async def test_connections_without_a_request_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bytes
) -> None:
    """Three hold all the connections there may be, and say nothing more; each of ten others is answered."""
    monkeypatch.setattr(listener_module, "SPARED_SECONDS", 0.05)
    path = tmp_path / "engine.sock"
    async with serving(path, 3), asyncio.timeout(20):
        held = [await asyncio.open_unix_connection(path) for _ in range(3)]
        for reader, writer in held:
            writer.write(first)
            if first.endswith(b"\r\n\r\n"):
                assert (await head_of(reader)).startswith(b"HTTP/1.1 200 ")
        for _ in range(10):
            held.append(await asyncio.open_unix_connection(path))
            reader, writer = held[-1]
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await head_of(reader)).startswith(b"HTTP/1.1 200 ")
        await close_all(writer for _, writer in held)


Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def ask(client: Client) -> bytes:
    """Return the head of the answer to one more request."""
    reader, writer = client
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    head = await head_of(reader)
    if head:
        await reader.readexactly(2)
    return head


async def assert_kept(*clients: Client) -> None:
    """Each is answered, and may ask again."""
    for client in clients:
        head = await ask(client)
        assert head.startswith(b"HTTP/1.1 200 ")
        assert b"Connection: close" not in head


@pytest.fixture
def spared_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare connections for longer than any test takes."""
    monkeypatch.setattr(listener_module, "SPARED_SECONDS", 30.0)


def let_time_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the event loop find that connections were spared for long enough; aiohttp ends none before 75 s."""
    loop = asyncio.get_running_loop()
    real = loop.time
    monkeypatch.setattr(loop, "time", lambda: real() + 60.0)


@pytest.mark.usefixtures("spared_for_long")
@pytest.mark.parametrize("is_bound", [True, False], ids=["bound", "descriptors"])
async def test_as_many_clients_as_there_is_room_for_keep_their_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_bound: bool
) -> None:
    """Nobody waits; without a descriptor the kernel does not look whether somebody does, either."""
    path, real, calls = tmp_path / "engine.sock", socket.socket.accept, itertools.count(1)

    def accept_three(listener: socket.socket) -> tuple[socket.socket, object]:
        if next(calls) > 3:
            raise OSError(errno.EMFILE, "no descriptor is left")
        return real(listener)

    if not is_bound:
        monkeypatch.setattr(socket.socket, "accept", accept_three)
    async with serving(path, 3 if is_bound else 100), asyncio.timeout(120):
        clients = [await asyncio.open_unix_connection(path) for _ in range(3)]
        await assert_kept(*clients, *clients)
        let_time_pass(monkeypatch)
        await assert_kept(*clients)
        await close_all(writer for _, writer in clients)


@pytest.mark.usefixtures("spared_for_long")
async def test_new_client_takes_the_place_of_one_that_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are quiet stay: there is room for all three."""
    path = tmp_path / "engine.sock"
    async with serving(path, 3), asyncio.timeout(120):
        quiet = [await asyncio.open_unix_connection(path) for _ in range(2)]
        leaving = await asyncio.open_unix_connection(path)
        await ask(leaving)
        await close_all([leaving[1]])
        let_time_pass(monkeypatch)
        new = await asyncio.open_unix_connection(path)
        await assert_kept(new, *quiet)
        await close_all(writer for _, writer in [new, *quiet])


@pytest.mark.usefixtures("spared_for_long")
async def test_client_that_was_just_answered_is_spared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it was seen to be before that, while somebody waited, does not count."""
    path = tmp_path / "engine.sock"
    async with serving(path, 3), asyncio.timeout(120):
        active, quiet, leaving = [await asyncio.open_unix_connection(path) for _ in range(3)]
        waiting = await asyncio.open_unix_connection(path)
        while b"Connection: close" not in await ask(leaving):
            pass  # until the server has seen that somebody waits
        await assert_kept(waiting, active)
        let_time_pass(monkeypatch)
        last = await asyncio.open_unix_connection(path)
        assert (await ask(last)).startswith(b"HTTP/1.1 200 ")  # so one was given up
        await assert_kept(waiting, active)
        assert await ask(quiet) == b""
        await close_all(writer for _, writer in [active, quiet, leaving, waiting, last])


async def test_busy_clients_let_go_of_connections_that_others_wait_for(tmp_path: Path) -> None:
    """24 clients ask again and again, each on a connection that it keeps as long as it may; all get on."""
    path = tmp_path / "engine.sock"
    num_closed = 0

    async def ask_ten_times() -> int:
        nonlocal num_closed
        num_answers, reader, writer = 0, None, None
        while num_answers < 10:
            if writer is None or reader is None:
                reader, writer = await asyncio.open_unix_connection(path)
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            head = await head_of(reader)
            assert head.startswith(b"HTTP/1.1 200 "), head
            await reader.readexactly(2)
            num_answers += 1
            if b"Connection: close" in head:
                num_closed += 1
                await close_all([writer])
                reader = writer = None
        await close_all([writer] if writer is not None else [])
        return num_answers

    async with serving(path, 3), asyncio.timeout(20):
        assert await asyncio.gather(*(ask_ten_times() for _ in range(24))) == [10] * 24
    assert num_closed >= 21


def test_living_socket_is_not_taken_away(tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    with listening_socket(on(path)):
        with pytest.raises(AddressUnavailable, match="it is taken"), listening_socket(on(path)):
            pass
        assert path.exists()


def test_dead_socket_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with listening_socket(on(path)), socket.socket(socket.AF_UNIX) as client:
        assert client.connect_ex(str(path)) == 0


def test_other_file_in_the_way_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    path.write_text("precious")
    with pytest.raises(AddressUnavailable), listening_socket(on(path)):
        pass
    assert path.read_text() == "precious"


def test_socket_file_of_a_successor_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    with listening_socket(on(path)):
        path.unlink()
        path.write_text("of somebody else")
    assert path.read_text() == "of somebody else"


def test_port_zero_is_told_as_the_real_one() -> None:
    with listening_socket(OPTIONS) as listener:
        port = listener.getsockname()[1]
        assert address_of(listener, OPTIONS) == f"http://127.0.0.1:{port}"
        taken = dataclasses.replace(OPTIONS, port=port)
        with pytest.raises(AddressUnavailable) as caught, listening_socket(taken):
            pass
        assert caught.value.exit_code == 75


@pytest.mark.parametrize("host", ["no such host", "203.0.113.9"])
def test_unusable_address_is_a_clear_error(host: str) -> None:
    with (
        pytest.raises(AddressUnavailable, match="cannot listen on"),
        listening_socket(dataclasses.replace(OPTIONS, host=host)),
    ):
        pass


def test_path_beyond_the_limit_of_the_kernel_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(AddressUnavailable), listening_socket(on(tmp_path / ("x" * 120))):
        pass
