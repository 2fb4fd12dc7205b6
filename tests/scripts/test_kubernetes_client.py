"""What the tests' own client of the Kubernetes API makes of an API server that ends while it answers."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from scripts.kubernetes.client import ApiClient, ApiError


@contextmanager
def answering(answer: bytes) -> Iterator[ApiClient]:
    """Answer one request with these bytes and close the connection."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while self.rfile.readline() not in (b"\r\n", b""):
                pass
            self.wfile.write(answer)

    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        yield ApiClient(f"http://127.0.0.1:{server.server_address[1]}", "", "token")
        thread.join()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTT",
        b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n{"items":\r\n',
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{",
        b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 9\r\n\r\n{",
    ],
    ids=["nothing", "status", "chunk", "length", "error"],
)
def test_an_answer_that_is_cut_off_is_an_error_of_the_connection(answer: bytes) -> None:
    with answering(answer) as client, pytest.raises(ConnectionError):
        client.request("GET", "/api/v1/pods")


def test_whole_answers_are_read_and_refusals_told() -> None:
    head: Callable[[int], bytes] = b"HTTP/1.1 %d So\r\nContent-Length: 8\r\n\r\n".__mod__
    with answering(head(200) + b'{"a": 1}') as client:
        assert client.request("GET", "/api/v1/pods") == {"a": 1}
    with answering(head(409) + b"conflict") as client, pytest.raises(ApiError, match="409: conf"):
        client.request("GET", "/api/v1/pods")
