"""Starts the engine-core process, before this one has imported what it needs for itself.

`main` calls it first of all: importing PyTorch is the longest part of a start, and goes on beside
the rest. A core ends by itself when the other end of its socket closes.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import dataclass

from exo_engine.pulse import Pulse


@dataclass(frozen=True, slots=True)
class StartedCore:
    """A process that waits for its configuration."""

    process: subprocess.Popen[bytes]
    connection: socket.socket
    pulse: Pulse
    """What it writes."""

    def end(self) -> None:
        """End the process, if it has not ended, and wait until it is gone."""
        self.connection.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def start_core(log_level: str) -> StartedCore:
    """Start a core; from the main thread, since the kernel ends it with the thread that started it."""
    ours, theirs = socket.socketpair()
    pulse = Pulse.shared()
    assert pulse.fd is not None, "it is shared"
    command = [sys.executable, "-P", "-m", "exo_engine.server.core_process"]
    command += ["--socket", str(theirs.fileno()), "--parent", str(os.getpid())]
    command += ["--log-level", log_level, "--pulse", str(pulse.fd)]
    with theirs:
        process = subprocess.Popen(
            command, pass_fds=[theirs.fileno(), pulse.fd], stdin=subprocess.DEVNULL
        )
    return StartedCore(process, ours, pulse)
