"""A control plane of a test's own, and what it says."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from exo_inference.state_dir import process_start_ticks
from tests.cli.conftest import Exo, Result


def up(*argv: str) -> Result:
    """Run `exo ai up` as a process of its own: it leaves a child behind, as it should."""
    done = subprocess.run(
        [sys.executable, "-m", "exo_inference.cli", "ai", "up", *argv],
        capture_output=True,
        text=True,
    )
    return Result(done.returncode, done.stdout, done.stderr)


def status_of(exo: Exo) -> dict[str, Any]:
    status: dict[str, Any] = json.loads(exo("ai", "status", "-O", "json").out)
    return status


def pids(status: dict[str, Any]) -> dict[str, int]:
    return {process["name"]: process["pid"] for process in status["processes"]}


def until(condition: Callable[[], bool]) -> None:
    """Wait as long as the test may take."""
    while not condition():
        time.sleep(0.01)


def until_gone(*gone: int) -> None:
    until(lambda: all(process_start_ticks(pid) is None for pid in gone))


def is_refused(url: str) -> bool:
    address = urlsplit(url)
    try:
        socket.create_connection((address.hostname, address.port), timeout=5).close()
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:
        pass
    return False
