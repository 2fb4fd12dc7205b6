"""What the connections of a bounded block cost."""

from __future__ import annotations

import http.server
import os
import threading
from collections.abc import Iterator

import httpx2
import pytest
from huggingface_hub import get_session

from exo_inference.hub import bounded_requests
from exo_inference.hub.bounded_requests import bounded

NUM_REQUESTS = 50


class Hub(http.server.HTTPServer):
    """Answers one connection after another; `/` redirects to another path."""

    num_connections = 0
    ends_connections = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Hub

    def setup(self) -> None:
        self.server.num_connections += 1
        super().setup()

    def do_GET(self) -> None:
        self.send_response(302 if self.path == "/" else 200)
        if self.path == "/":
            self.send_header("Location", "/there")
        self.send_header("Content-Length", "2")
        if self.server.ends_connections:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def num_descriptors() -> int:
    return len(os.listdir("/dev/fd"))


def test_the_requests_of_a_block_use_one_connection_again(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        bounded_requests, "_LIMITS", httpx2.Limits()
    )  # however slow this machine is
    with bounded(30) as bound:
        for _ in range(NUM_REQUESTS):
            assert bound.client.get(hub.url).text == "ok"
            assert get_session().get(hub.url).text == "ok"
    assert hub.num_connections == 1


def test_a_block_keeps_no_descriptor_of_a_connection_that_ended(hub: Hub) -> None:
    hub.ends_connections = True
    before = num_descriptors()
    with bounded(30):
        for _ in range(NUM_REQUESTS):
            get_session().get(hub.url)
        assert num_descriptors() - before < 10
    assert hub.num_connections == 2 * NUM_REQUESTS


def test_nothing_of_a_block_stays_open(hub: Hub) -> None:
    with bounded(30) as bound:
        bound.client.get(hub.url)
        inside = num_descriptors()
    assert num_descriptors() <= inside - 2  # the library's and its copy
