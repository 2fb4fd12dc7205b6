"""What users see when processes are stopped, started four times at once, or short of descriptors."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.burst import FINE, ask_all
from exo_inference.state_dir import StateDir

from .conftest import Stack, clean_environment, processes_of, run_exo, start_stack

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "odd"
    yield folder
    run_exo(folder, "down", check=False)
    assert processes_of(folder) == {}, "down left processes behind"


def controllers(folder: Path) -> set[int]:
    """Return the pids of controllers; what one is about to start has its command line for a moment."""
    wanted = b"exo_inference.controller"
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if wanted in words and str(folder).encode() in words:
            found[int(entry.name)] = parent
    return {pid for pid, parent in found.items() if parent not in found}


def test_four_starts_at_once_never_show_two_controllers(folder: Path) -> None:
    seen, done = Counter(), threading.Event()

    def watch() -> None:
        while not done.is_set():
            seen[len(controllers(folder))] += 1
            time.sleep(0.01)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        command = [sys.executable, "-m", "exo_inference.cli", "dedicated-inference", "up"]
        starts = [
            subprocess.Popen(command, env=clean_environment(folder), stdout=subprocess.DEVNULL)
            for _ in range(4)
        ]
        assert [start.wait(timeout=200) for start in starts] == [0, 0, 0, 0]
    finally:
        done.set()
        watcher.join()
    assert max(seen) == 1
    assert seen[1]


@pytest.mark.parametrize("name", ["gateway", "controller"])
def test_stopped_server_is_started_again(folder: Path, name: str) -> None:
    start_stack(folder)
    state = StateDir(folder)
    pid = state.read_record(name).pid
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + 120
    while True:
        record = state.read_record(name)
        if record is not None and record.pid != pid and record.alive:
            break
        assert time.monotonic() < deadline
        time.sleep(0.1)
    run_exo(folder, "up")
    log = (state.logs_dir / "supervisor.log").read_text()
    assert f"{name} (pid {pid}) hangs: it was stopped by a signal" in log


@pytest.mark.parametrize("num_streams", [200, 300])
def test_few_descriptors_leave_clients_waiting_or_told(folder: Path, num_streams: int) -> None:
    """With 128 descriptors each of many streams is answered or told to come again, and none hung up on."""

    def lower() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))

    run_exo(folder, "up", preexec_fn=lower)
    stack: Stack = start_stack(folder)  # it runs already
    stack.exo("model", "create", "exo/tiny-chat", "--wait")
    made = stack.exo(
        *("deployment", "create", "chat", "--model-name", "exo/tiny-chat", "--gpu-type", "cpu"),
        *("--gpu-count", "1", "--replicas", "1", "--wait", "-O", "json"),
        timeout=300,  # engines give way to all else, and beside other work start in minutes
    )
    url = json.loads(made.stdout)["deployment_url"]
    key = json.loads(stack.exo("deployment", "reveal-api-key", "chat", "-O", "json").stdout)
    found = stream(url, key["api_key"], num_streams)
    print(found)
    assert set(found) <= FINE
    assert found["200, whole"] >= 32
    assert set(stream(url, key["api_key"], 2)) == {"200, whole"}
    assert StateDir(folder).read_failure("gateway") is None


def stream(url: str, key: str, num_streams: int) -> Counter[str]:
    """Ask for so many streams at once; return how each of them ended, counted."""
    body = {
        "model": "exo/tiny-chat",
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 32,
        "stream": True,
    }
    return asyncio.run(ask_all(url, key, body, num_streams))
