"""`python -m exo_inference.gateway --state-dir DIR`: the gateway as a process.

Started and restarted by the supervisor. SIGTERM lets requests in flight end; a second one does not.
Exits 78 when it cannot work as configured, after one last line on stderr that says why.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
from pathlib import Path

import uvloop

from exo_inference.errors import ExoError, UsageError
from exo_inference.gateway.app import Gateway
from exo_inference.local_settings import LocalSettings, load_settings, take_inherited_listener
from exo_inference.logs import set_up_logging
from exo_inference.state_dir import StateDir

logger = logging.getLogger("exo_inference.gateway")


async def serve(
    state: StateDir,
    settings: LocalSettings,
    grace_seconds: float,
    listener: socket.socket | None = None,
) -> None:
    """Run until SIGTERM or SIGINT, or until background work fails.

    Raises:
        PlatformError: the port cannot be listened on.
    """
    stop, hurry = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            hurry.set()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    gateway = Gateway(state, on_failure=stop.set)  # the supervisor starts it again
    try:
        port = await gateway.start(settings.gateway_host, settings.gateway_port, listener=listener)
        logger.info("listening on http://%s:%d", settings.gateway_host, port)
        await stop.wait()
    finally:
        await gateway.stop(grace_seconds=grace_seconds, hurry=hurry)


def main(argv: list[str] | None = None) -> int:
    """Parse the command line and run. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="exo-gateway", description=__doc__)
    parser.add_argument("--state-dir", type=Path, required=True)
    parser.add_argument("--grace-seconds", type=float, default=30.0)
    options = parser.parse_args(argv)
    set_up_logging()
    state = StateDir(options.state_dir)
    try:
        settings = load_settings(state)
        if settings is None:
            raise UsageError(f"{state.settings_file} does not exist; `up` writes it")
        os.chdir(state.root)  # the paths of sockets are relative, to stay short
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(state, settings, options.grace_seconds, take_inherited_listener()))
    except (ExoError, OSError) as exc:
        text = exc.text if isinstance(exc, ExoError) else str(exc)
        print(f"exo-gateway: error: {text}", file=sys.stderr)
        return os.EX_CONFIG
    return 0


if __name__ == "__main__":
    sys.exit(main())
