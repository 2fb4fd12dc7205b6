"""What is left of a cluster when the command beside it has ended: nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scripts.kubernetes import binaries, prerequisites
from tests.skipping import skip_check

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.kubernetes


@pytest.fixture(autouse=True)
def can_run() -> None:
    try:
        binaries.require(binaries.all_programs())
    except binaries.ProgramsMissing as exc:
        skip_check(str(exc))
    if os.geteuid() != 0 or prerequisites.missing_packages(prerequisites.CLUSTER):
        skip_check("a cluster needs root and Debian packages. Run `make test-kubernetes`.")


def start(*command: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "scripts.kubernetes.cluster", "--", *command]
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def processes_of(directory: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if directory in line:
            found.append(line)
    return found


def wait_gone(directory: str) -> None:
    deadline = time.monotonic() + 20
    while processes_of(directory):
        assert time.monotonic() < deadline, processes_of(directory)
        time.sleep(0.1)


def leftovers(directory: str) -> list[Path]:
    cgroups = Path("/sys/fs/cgroup")
    name = Path(directory).name
    return [
        path
        for path in [*cgroups.glob(name), *cgroups.glob(f"*/{name}"), Path(directory)]
        if path.exists()
    ]


def test_the_status_is_the_commands_and_nothing_is_left() -> None:
    begun = start("sh", "-c", "echo $EXO_TEST_CLUSTER; exit 7")
    directory = begun.communicate(timeout=120)[0].strip()
    assert begun.returncode == 7
    wait_gone(directory)
    assert not leftovers(directory)


def test_a_cluster_that_is_told_to_end_clears_up() -> None:
    begun = start("sh", "-c", "echo $EXO_TEST_CLUSTER; exec sleep 600")
    assert begun.stdout is not None
    directory = begun.stdout.readline().strip()
    begun.send_signal(signal.SIGTERM)
    begun.communicate(timeout=30)
    assert begun.returncode == 128 + signal.SIGTERM
    wait_gone(directory)
    assert not leftovers(directory)


def test_a_cluster_that_was_killed_ends_and_the_next_one_clears_up() -> None:
    begun = start("sh", "-c", "echo $EXO_TEST_CLUSTER; exec sleep 600")
    assert begun.stdout is not None
    directory = begun.stdout.readline().strip()
    assert processes_of(directory)
    begun.send_signal(signal.SIGKILL)
    begun.communicate(timeout=20)
    wait_gone(directory)
    start("true").communicate(timeout=120)
    assert not leftovers(directory)
