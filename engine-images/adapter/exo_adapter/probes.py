"""The adapter's own HTTP server: `/health` and `/live`, from what the watcher saw last.

`/measurements` and `/metrics` are the engine's own answers: whoever may reach this port, such as Prometheus,
need not reach the engine, which asks nobody for a key.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = tuple[int, str]

_JSON = "application/json"
_OF_RELAYS = {"/metrics": "text/plain; version=0.0.4; charset=utf-8"}


class ProbeServer:
    """Answers probes from a thread, until the process ends.

    Args:
        port: where to listen, on all addresses; 0 takes a free one.
        answers: status and detail by path.
        relays: status and text of the engine by path.

    Raises:
        OSError: the port cannot be listened on.
    """

    def __init__(
        self,
        port: int,
        answers: dict[str, Callable[[], Answer]],
        relays: dict[str, Callable[[], Answer]],
    ) -> None:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                relay = relays.get(path)
                answer = relay or answers.get(path)
                status, text = answer() if answer else (404, "there are /health and /live")
                is_relayed = bool(relay and text)
                body = (text if is_relayed else json.dumps({"detail": text})).encode()
                self.send_response(status)
                self.send_header(
                    "Content-Type", _OF_RELAYS.get(path, _JSON) if is_relayed else _JSON
                )
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Connection", "close")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing: probes come every few seconds."""

        self._server = ThreadingHTTPServer(("", port), Handler)
        self._server.daemon_threads = True

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Start answering."""
        threading.Thread(target=self._server.serve_forever, name="probes", daemon=True).start()
