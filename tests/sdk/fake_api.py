"""A scripted HTTP server for what no real control plane does on purpose: odd errors, broken lines.

It is not a control plane. Tests of the flow run against the real one.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit


@dataclass(frozen=True)
class Answer:
    """One answer. `body` is JSON unless it is bytes; `lines` are sent one by one instead."""

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    lines: Sequence[Any] | None = None
    hang_up: bool = False
    """Close the connection before (or, with lines, after them) the answer is complete."""


@dataclass(frozen=True)
class Seen:
    """One request as it arrived."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing when a client left early: some tests do so on purpose."""


class FakeApi:
    """Answers each route with its script; the last answer of a script repeats."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self._script: dict[tuple[str, str], list[Answer]] = {}
        self._server = _Server(("127.0.0.1", 0), self._handler())
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}/v2"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}
        )

    def on(self, method: str, path: str, *answers: Answer | Any) -> None:
        self._script[method, path] = [
            answer if isinstance(answer, Answer) else Answer(answer) for answer in answers
        ]

    def requests(self, method: str, path: str) -> list[Seen]:
        return [seen for seen in self.seen if (seen.method, seen.path) == (method, path)]

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _next(self, method: str, path: str) -> Answer:
        script = self._script.get((method, path))
        if not script:
            return Answer({"title": "Not scripted", "detail": path}, status=404)
        return script.pop(0) if len(script) > 1 else script[0]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: Any) -> None:
                pass

            def handle_any(self) -> None:
                url = urlsplit(self.path)
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                path = url.path.removeprefix("/v2")
                headers = {name.lower(): value for name, value in self.headers.items()}
                query = dict(parse_qsl(url.query, keep_blank_values=True))
                fake.seen.append(Seen(self.command, path, query, headers, body))
                self.give(fake._next(self.command, path))

            def give(self, answer: Answer) -> None:
                if answer.lines is not None:
                    self.give_lines(answer)
                    return
                if answer.hang_up:
                    self.close_connection = True
                    return
                body = (
                    answer.body
                    if isinstance(answer.body, bytes)
                    else json.dumps(answer.body).encode()
                )
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def give_lines(self, answer: Answer) -> None:
                self.send_response(answer.status)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for line in answer.lines or ():
                    text = line if isinstance(line, str) else json.dumps(line, ensure_ascii=False)
                    data = (text + "\n").encode()
                    self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
                if answer.hang_up:
                    self.close_connection = True
                else:
                    self.wfile.write(b"0\r\n\r\n")

            do_GET = do_POST = do_PATCH = do_DELETE = handle_any  # noqa: N815

        return Handler


class VirtualTime:
    """A clock that only moves when something sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sleeps: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds

    async def asleep(self, seconds: float) -> None:
        self.sleep(seconds)
