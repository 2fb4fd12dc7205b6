"""What somebody without a key can hold of the controller: connections for a while, and no memory."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Iterator

import pytest

from exo_inference.controller.http import connections, middleware
from tests.controller.conftest import Controller

LENGTHS = "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"


@pytest.fixture
def hurried(
    stopped_controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Controller]:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.5)
    with stopped_controller.running() as controller:
        yield controller


def connect(controller: Controller, text: str = "") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", controller.port), timeout=10)
    connection.sendall(text.encode())
    return connection


def read(connection: socket.socket) -> str:
    """Return what comes until the server hangs up."""
    found = b""
    while block := connection.recv(65536):
        found += block
    return found.decode()


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param("GET /v2/zone HTTP/1.1\r\nHost: x\r\nX-", id="half a head"),
        pytest.param("GET /v2/zone HTTP/1.1\r\nHost: x\r\n\r\nGET", id="half of the next head"),
    ],
)
def test_head_that_does_not_come_ends_the_connection(hurried: Controller, text: str) -> None:
    started = time.monotonic()
    with connect(hurried, text) as connection:
        answers = read(connection)
    assert answers.count("HTTP/1.1 200") == text.count("\r\n\r\n")
    assert 0.4 < time.monotonic() - started < 5


def test_head_that_drips_ends_the_connection(hurried: Controller) -> None:
    with connect(hurried, "GET /v2/zone HTTP/1.1\r\nHost: x\r\nX-A: ") as connection:
        started = time.monotonic()
        while not select.select([connection], [], [], 0.1)[0]:
            connection.sendall(b"a")
            assert time.monotonic() - started < 5


def test_connection_with_a_request_in_progress_is_not_ended(hurried: Controller) -> None:
    head = "POST /v2/ai/plan HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n"
    with connect(hurried, head) as connection:
        time.sleep(1)
        connection.sendall(b"more")
        assert "HTTP/1.1 403" in read(connection)


def test_kernel_ends_connections_whose_client_takes_nothing(hurried: Controller) -> None:
    seen = []
    made = connections.Connection.connection_made

    def note(self, transport):
        made(self, transport)
        seen.append(transport.get_extra_info("socket"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connections.Connection, "connection_made", note)
        assert hurried.call("GET", "/v2/zone").status_code == 200
        with connect(hurried, "GET /v2/zone HTTP/1.1\r\nHost: x\r\n\r\n") as connection:
            connection.recv(65536)
            option = seen[-1].getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    assert option == 60_000


def unfinished(authorization: str) -> str:
    return (
        "POST /v2/ai/model HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n"
        f"{authorization}\r\n" + " " * 400_000
    )


@pytest.mark.parametrize("authorization", ["", "Authorization: EXO2-HMAC-SHA256 credential=x\r\n"])
def test_bodies_of_strangers_take_no_room(
    controller: Controller, monkeypatch: pytest.MonkeyPatch, authorization: str
) -> None:
    monkeypatch.setattr(middleware, "MAX_BODIES_BYTES", 1 << 20)
    with contextlib.ExitStack() as stack:
        held = [
            stack.enter_context(connect(controller, unfinished(authorization))) for _ in range(5)
        ]
        assert controller.call("POST", "/v2/ai/model", data=b" " * 900_000).status_code == 400
        for connection in held:
            connection.sendall(b" " * 600_000)
            assert "HTTP/1.1 403" in connection.recv(65536).decode()


def test_bodies_that_name_a_key_have_one_room_together(
    stopped_controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The id of a key is no secret: who has seen a request can name it."""
    monkeypatch.setattr(middleware, "MAX_BODIES_BYTES", 1 << 20)
    with stopped_controller.running() as controller:
        signature = "A" * 43 + "="
        named = (
            f"Authorization: EXO2-HMAC-SHA256 credential={controller.key},"
            f"expires={int(time.time())},signature={signature}\r\n"
        )
        with contextlib.ExitStack() as stack:
            answers = []
            for _ in range(3):
                connection = stack.enter_context(connect(controller, unfinished(named)))
                if select.select([connection], [], [], 1)[0]:
                    answers.append(connection.recv(65536).decode())
            (answer,) = answers
            assert "HTTP/1.1 429" in answer
            assert "retry-after: 1" in answer
            assert controller.call("POST", "/v2/ai/model", data=b"{}").status_code == 400
        large = b" " * 900_000
        controller.wait_for(
            lambda: controller.call("POST", "/v2/ai/model", data=large).status_code == 400
        )


@pytest.mark.parametrize("path", ["/v2/zone", "/v2/ai/model"])
def test_body_of_two_lengths_is_refused_and_ends_the_connection(
    idle_controller: Controller, path: str
) -> None:
    after = "0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    with connect(
        idle_controller, f"POST {path} HTTP/1.1\r\nHost: x\r\n{LENGTHS}\r\n{after}"
    ) as connection:
        answers = read(connection)
    assert answers.startswith("HTTP/1.1 400")
    assert answers.count("HTTP/1.1") == 1


HEAD = "GET /v2/zone HTTP/1.1\r\nHost: x\r\n"
CHUNKS = "POST /v2/ai/model HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(f"{HEAD}\r\n".replace("\r\n", "\n"), id="all"),
        pytest.param(f"{HEAD}X-A: b\n\r\n", id="one header"),
        pytest.param(f"{HEAD}\n", id="the end"),
        pytest.param(f"{CHUNKS}X-A: b\n\r\n", id="a trailer"),
    ],
)
def test_line_of_a_head_that_ends_otherwise_is_refused(controller: Controller, text: str) -> None:
    """A proxy before this might read another head."""
    with connect(controller, text) as connection:
        assert "HTTP/1.1 400" in read(connection)


def test_head_that_comes_in_parts_is_read(controller: Controller) -> None:
    text = HEAD + "Connection: close\r\n\r\n"
    with connect(controller) as connection:
        for at in range(0, len(text), 7):
            connection.sendall(text[at : at + 7].encode())
        assert read(connection).startswith("HTTP/1.1 200")
