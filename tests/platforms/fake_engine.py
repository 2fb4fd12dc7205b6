"""A fake engine: answers on a unix socket as `exo-engine` does, without a model.

Started by the shim in tests of the local platform, with the standard library alone. Flags choose
how it behaves; files in its working directory change that while it runs: `crash` (with the exit code),
`hang` (no answer), `stalled` (says that it does not get on), `not-ready`, `loaded` (ends its start). It
makes `working` when it has begun with a request.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--uds", required=True)
parser.add_argument("--start-seconds", type=float, default=0.0)
parser.add_argument("--detail", default="loading weights 43 %")
parser.add_argument("--exit-code", type=int)
parser.add_argument("--error", default="the model is broken; use another one")
parser.add_argument("--ignore-sigterm", action="store_true")
parser.add_argument("--child", action="store_true", help="start a second process, as cores do")
parser.add_argument("--log-lines", type=int, default=0)
parser.add_argument("--label", default="")
options = parser.parse_args()

started = time.monotonic()
draining = False
pending = 0


def ready() -> bool:
    is_loaded = time.monotonic() - started >= options.start_seconds or Path("loaded").exists()
    return is_loaded and not Path("not-ready").exists()


def health() -> tuple[int, dict[str, str]]:
    if draining:
        return 503, {"status": "draining"}
    if Path("stalled").exists():
        return 503, {"status": "stalled", "detail": "nothing was computed for 7 s"}
    if ready():
        return 200, {"status": "ok"}
    return 503, {"status": "starting", "detail": options.detail}


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    global pending
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    path = head.split(" ")[1]
    if Path("hang").exists():
        await asyncio.sleep(3600)
    status, document = health()
    if path != "/health" and status == 200:
        pending += 1
        Path("working").touch()
        await asyncio.sleep(float(path.rpartition("/")[2]))
        document = {"label": options.label, "pid": str(os.getpid())}
        pending -= 1
    body = json.dumps(document).encode()
    writer.write(
        f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n"
        f"{'x-exo-draining: 1' if draining else 'x-a: b'}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
        + body
    )
    await writer.drain()
    writer.close()


def stop() -> None:
    global draining
    print("asked to stop", flush=True)
    draining = not options.ignore_sigterm


async def main() -> int:
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    if options.exit_code is not None and not Path("mended").exists():
        print("Traceback of something", file=sys.stderr)
        print(f"exo-engine: error: {options.error}", file=sys.stderr, flush=True)
        return options.exit_code
    if options.child:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
        print(f"child {child.pid}", flush=True)
    print(f"hello from {options.label or 'the fake engine'}", flush=True)
    print(json.dumps(dict(os.environ)), flush=True)
    for number in range(options.log_lines):
        print(f"line {number}", flush=True)
    server = await asyncio.start_unix_server(answer, options.uds)
    async with server:
        while not (draining and pending == 0):
            await asyncio.sleep(0.02)
            if Path("crash").exists():
                code = int(Path("crash").read_text())
                Path("crash").unlink()
                print("exo-engine: error: it crashed on request", file=sys.stderr, flush=True)
                os._exit(code)
    return 0


sys.exit(asyncio.run(main()))
