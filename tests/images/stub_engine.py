#!/usr/bin/env python3
"""A stub of every engine's command line: no model, only what the adapter sees of an engine.

Tests put it on the PATH under the engine's name. It listens on the port after `--port`, and what it
answers is in files of STUB_DIR that tests write: `healthy` makes /health 200, `metrics` is the text at
any other path, `exit` ends it with the status in it. It writes `argv` at its start and `terminated` on
SIGTERM.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

DIRECTORY = Path(os.environ["STUB_DIR"])


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        path = DIRECTORY / ("healthy" if self.path == "/health" else "metrics")
        text = path.read_bytes() if path.exists() else b""
        self.send_response(200 if path.exists() else 503)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        pass


def on_sigterm(number: int, frame: object) -> None:
    (DIRECTORY / "terminated").touch()
    if not (DIRECTORY / "stubborn").exists():
        os._exit(0)


def main() -> None:
    signal.signal(signal.SIGTERM, on_sigterm)
    (DIRECTORY / "argv.new").write_text(json.dumps(sys.argv[1:]))
    (DIRECTORY / "argv.new").rename(DIRECTORY / "argv")
    port = int(sys.argv[sys.argv.index("--port") + 1])
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    while not (DIRECTORY / "exit").exists():
        time.sleep(0.02)
    os._exit(int((DIRECTORY / "exit").read_text()))


if __name__ == "__main__":
    main()
