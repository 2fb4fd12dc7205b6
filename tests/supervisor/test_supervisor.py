"""Servers are kept running, adopted rather than doubled, and stopped in order. Real processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from exo_inference.errors import PlatformError
from exo_inference.state_dir import StateDir, process_start_ticks
from exo_inference.supervisor import supervisor as supervisor_module
from exo_inference.supervisor.logs import LogCopier, rotate_if_large
from exo_inference.supervisor.processes import find_processes
from exo_inference.supervisor.server_process import (
    RestartPolicy,
    ServerCommand,
)
from exo_inference.supervisor.supervisor import (
    Supervisor,
    SupervisorSettings,
    lock,
    server_commands,
)

# A fake server: says that it is up, then obeys its mode. Its arguments make it unique on the machine.
FAKE = """
import signal, sys, time
name, mode, root = sys.argv[1:]
def note(what):
    with open(root + "/order", "a") as file:
        file.write(what + " " + name + "\\n")
def stop(*_):
    note("ended")
    sys.exit(0)
if mode != "deaf":
    signal.signal(signal.SIGTERM, stop)
else:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
note("began")
print(name, "is up", flush=True)
if mode == "misconfigured":
    print("error: the port is taken", file=sys.stderr)
    sys.exit(78)
if mode == "crashing":
    print("error: out of luck", file=sys.stderr)
    sys.exit(1)
while True:
    signal.pause()
"""

# A supervisor of fake servers as a process of its own, to be killed.
SUPERVISOR = """
import asyncio, logging, sys
from pathlib import Path
from exo_inference.supervisor.supervisor import *
from exo_inference.supervisor.supervisor import lock, supervise
from exo_inference.state_dir import StateDir
logging.basicConfig(level=logging.INFO)
fake, root = sys.argv[1:]
state = StateDir(Path(root))
lock(state)
commands = [
    ServerCommand(name, (sys.executable, "-S", "-c", fake, name, "steady", root))
    for name in ("controller", "gateway")
]
sys.exit(asyncio.run(supervise(state, commands, SupervisorSettings())))
"""

QUICK = RestartPolicy(first_seconds=0.02, max_seconds=0.1, stable_seconds=0.5)


def fake(state: StateDir, name: str, mode: str = "steady") -> ServerCommand:
    argv = (sys.executable, "-S", "-c", FAKE, name, mode, str(state.root))
    return ServerCommand(name, argv)


def settings(**changes) -> SupervisorSettings:
    return SupervisorSettings(**{"policy": QUICK, "server_grace_seconds": 5.0, **changes})


@pytest.fixture
def state(tmp_path: Path):
    state = StateDir(tmp_path / "state")
    state.create()
    yield state
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(state.root).encode() in (entry / "cmdline").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)


@contextlib.asynccontextmanager
async def supervised(state: StateDir, *modes: str, **changes):
    """A supervisor of a fake controller and a fake gateway; stopped at the end of the block."""
    names = ("controller", "gateway")
    pairs = zip(names, modes or ("steady", "steady"), strict=True)
    supervisor = Supervisor(state, [fake(state, n, m) for n, m in pairs], settings(**changes))
    task = asyncio.create_task(supervisor.run())
    try:
        yield supervisor, task
    finally:
        supervisor.request_stop()
        await asyncio.wait_for(task, 20)


def order(state: StateDir) -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        return (state.root / "order").read_text().splitlines()
    return []


def begin(command, output=subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    """Start a process that the supervisor under test has not started."""
    return subprocess.Popen(command, stdout=output, stderr=output)


async def eventually(condition):
    """Wait until `condition()` is true, as long as the test may take, and return what it returned."""
    while not (value := condition()):
        await asyncio.sleep(0.01)
    return value


def running(state: StateDir, name: str):
    record = state.read_record(name)
    return record if record is not None and record.alive else None


async def recorded(state: StateDir, name: str):
    return await eventually(lambda: running(state, name))


async def test_servers_are_started_recorded_and_stopped_controller_first(state):
    async with supervised(state):
        for name in ("controller", "gateway"):
            record = await eventually(lambda name=name: running(state, name))
            assert record.pid in find_processes(fake(state, name).argv)
        record = await eventually(lambda: running(state, "supervisor"))
        assert record.pid == os.getpid()
        await eventually(lambda: len(order(state)) == 2)
        (state.run_dir / ".gateway.json.x7").touch()  # a record half written by what was killed
        pids = [state.read_record(name).pid for name in ("controller", "gateway")]
    assert order(state)[2:] == ["ended controller", "ended gateway"]
    assert all(process_start_ticks(pid) is None for pid in pids)
    assert list(state.run_dir.iterdir()) == []


@pytest.mark.parametrize("name", ["controller", "gateway"])
async def test_killed_server_is_started_again(state, name):
    async with supervised(state):
        first = await eventually(lambda: running(state, name))
        os.kill(first.pid, signal.SIGKILL)
        again = await eventually(lambda: (r := running(state, name)) and r.pid != first.pid and r)
        assert find_processes(fake(state, name).argv) == [again.pid]


async def test_crashing_server_is_tried_again_and_its_last_words_are_kept(state):
    async with supervised(state, "steady", "crashing") as (_, task):
        failure = await eventually(
            lambda: (f := state.read_failure("gateway")) and f.attempts >= 3 and f
        )
        assert failure.exit_code == 1
        assert failure.message == "error: out of luck"
        assert state.read_failure("controller") is None
        assert not task.done()
    assert state.read_failure("gateway") is None


@pytest.mark.parametrize("stable_seconds", [0.5, 0.0], ids=["at once", "on a busy machine"])
async def test_misconfigured_first_start_ends_everything_with_the_reason(
    state, caplog, stable_seconds
):
    policy = replace(QUICK, stable_seconds=stable_seconds)
    async with supervised(state, "steady", "misconfigured", policy=policy) as (_, task):
        assert await asyncio.wait_for(task, 20) == os.EX_CONFIG
    assert "gateway cannot start: error: the port is taken" in caplog.text
    assert running(state, "controller") is None
    assert list(state.run_dir.iterdir()) == []


async def test_failure_is_forgotten_once_the_server_stays_up(state):
    async with supervised(state):
        first = await eventually(lambda: running(state, "gateway"))
        os.kill(first.pid, signal.SIGKILL)
        failure = await eventually(lambda: state.read_failure("gateway"))
        assert failure.exit_code == -signal.SIGKILL
        await eventually(lambda: state.read_failure("gateway") is None)


# A fake gateway that answers one connection after the other on the socket it inherits.
ECHO = """
import os, socket, sys
listener = socket.socket(fileno=int(os.environ["EXO_LISTEN_FD"]))
while True:
    connection, _ = listener.accept()
    connection.sendall(str(os.getpid()).encode())
    connection.close()
"""


async def test_connections_made_while_a_server_is_restarted_wait_for_it(state):
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = free.getsockname()
    argv = (sys.executable, "-S", "-c", ECHO, str(state.root))
    commands = [fake(state, "controller"), ServerCommand("gateway", argv, listen=address)]
    supervisor = Supervisor(state, commands, settings())
    task = asyncio.create_task(supervisor.run())

    async def ask() -> int:
        reader, writer = await asyncio.open_connection(*address)
        answer = await asyncio.wait_for(reader.read(), 10)
        writer.close()
        return int(answer)

    first = await eventually(lambda: running(state, "gateway"))
    assert await ask() == first.pid
    os.kill(first.pid, signal.SIGKILL)
    await eventually(lambda: not first.alive)
    assert await ask() not in (0, first.pid)
    supervisor.request_stop()
    await asyncio.wait_for(task, 20)
    with pytest.raises(ConnectionRefusedError):
        await ask()


async def test_deaf_server_is_killed_after_the_grace(state):
    async with supervised(state, "deaf", "steady", server_grace_seconds=0.2):
        await eventually(lambda: len(order(state)) == 2)
        pid = state.read_record("controller").pid
    assert process_start_ticks(pid) is None


async def test_second_signal_hurries(state):
    async with supervised(state, "deaf", "deaf", server_grace_seconds=60.0) as (supervisor, _):
        await eventually(lambda: len(order(state)) == 2)
        supervisor.request_stop()
        supervisor.request_stop()
        started = time.monotonic()
    assert time.monotonic() - started < 60  # the grace


async def test_servers_of_a_killed_supervisor_are_adopted_not_doubled(state):
    command = [sys.executable, "-c", SUPERVISOR, FAKE, str(state.root)]
    with (state.logs_dir / "supervisor.log").open("wb") as log:
        first = begin(command, log)
        try:
            await eventually(lambda: len(order(state)) == 2)
            # A server says that it runs a moment before it is recorded.
            await eventually(lambda: running(state, "gateway") and running(state, "controller"))
        finally:
            first.kill()
            first.wait()
    before = {name: running(state, name).pid for name in ("controller", "gateway")}
    # Killed before it could record one: it is found by its command line.
    state.remove_record("gateway")
    async with supervised(state):
        await eventually(lambda: running(state, "gateway") and running(state, "controller"))
        after = {name: running(state, name).pid for name in ("controller", "gateway")}
        assert after == before
        os.kill(before["gateway"], signal.SIGKILL)
        await eventually(lambda: (r := running(state, "gateway")) and r.pid != before["gateway"])
    assert [line for line in order(state) if line == "began controller"] == ["began controller"]
    assert process_start_ticks(before["controller"]) is None


async def test_doubled_server_is_reduced_to_the_recorded_one(state):
    command = fake(state, "gateway")
    twins = [begin(command.argv) for _ in range(2)]
    await eventually(lambda: len(order(state)) == 2)
    state.write_record("gateway", twins[1].pid)
    async with supervised(state):
        assert await asyncio.to_thread(twins[0].wait, 10) == 0
        assert running(state, "gateway").pid == twins[1].pid
    assert twins[1].wait(10) == 0


def test_only_one_supervisor_per_directory(state):
    descriptor = lock(state)
    state.write_record("supervisor", os.getpid())
    with pytest.raises(PlatformError, match=f"pid {os.getpid()}"):
        lock(state)
    os.close(descriptor)
    os.close(lock(state))
    assert [p.name for p in state.run_dir.iterdir()] == ["supervisor.json"]


def test_second_supervisor_process_says_so_and_ends(state):
    descriptor = lock(state)
    command = [sys.executable, "-m", "exo_inference.supervisor", "--state-dir", str(state.root)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    os.close(descriptor)
    assert ended.returncode == 75
    assert ended.stderr.startswith("exo-supervisor: error: another supervisor")


def test_supervisor_imports_no_server():
    script = (
        f"import sys, {supervisor_module.__name__};"
        "print(sorted({'aiohttp','httpx','pydantic','starlette','uvicorn'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout.strip() == "[]"


def test_real_servers_run_by_module_with_the_directory(state):
    commands = server_commands(state)
    assert [command.name for command in commands] == ["controller", "gateway"]
    for command in commands:
        assert command.argv[1:3] == ("-P", "-m")
        assert command.argv[3] == f"exo_inference.{command.name}"
        assert command.argv[4:] == ("--state-dir", str(state.root))


@pytest.mark.parametrize(
    ("failures", "delay"), [(1, 0.2), (2, 0.4), (3, 0.8), (6, 6.4), (7, 10.0), (10_000, 10.0)]
)
def test_back_off_doubles_up_to_its_ceiling(failures, delay):
    assert RestartPolicy().delay_seconds(failures) == pytest.approx(delay)


@pytest.mark.parametrize(
    ("up_seconds", "exit_code", "answered", "started"),
    [
        pytest.param(0.9, -9, False, False, id="killed while it started"),
        pytest.param(0.4, -9, True, True, id="killed once it had answered"),
        pytest.param(1.1, -9, False, True, id="killed while it ran"),
        pytest.param(1.1, None, False, True, id="adopted, so not known how it ended"),
        pytest.param(1.1, 1, True, False, id="ended itself while it started"),
        pytest.param(1.1, -11, True, False, id="crashed while it started"),
        pytest.param(3.1, 1, True, True, id="ended itself after a while"),
        pytest.param(6.0, 78, True, False, id="saw late that it cannot work as configured"),
    ],
)
def test_only_failed_starts_are_backed_off_from(up_seconds, exit_code, answered, started):
    assert RestartPolicy().had_started(up_seconds, exit_code, answered=answered) == started


def test_large_log_is_rotated_under_its_writer(tmp_path):
    path = tmp_path / "gateway.log"
    with path.open("ab", buffering=0) as writer:
        for generation in (b"one", b"two", b"three", b"four"):
            writer.write(generation * 10)
            assert rotate_if_large(path, max_bytes=20, max_files=3)
        writer.write(b"now")
    assert path.read_bytes() == b"now"
    assert (tmp_path / "gateway.log.1").read_bytes() == b"four" * 10
    assert (tmp_path / "gateway.log.2").read_bytes() == b"three" * 10
    assert len(list(tmp_path.iterdir())) == 3
    assert not rotate_if_large(path, max_bytes=20, max_files=3)
    assert not rotate_if_large(tmp_path / "missing.log")


def test_foreground_copies_new_lines_with_their_server(tmp_path, capsysbinary):
    path = tmp_path / "gateway.log"
    path.write_bytes(b"old\n")
    copier = LogCopier({"gateway": path})
    with path.open("ab", buffering=0) as log:
        log.write(b"one\ntw")
        copier.copy()
        log.write(b"o\n")
        copier.copy()
        os.truncate(path, 0)
        log.write(b"x\n")
        copier.copy()
    assert capsysbinary.readouterr().err == b"gateway: one\ngateway: two\ngateway: x\n"


async def test_full_disk_for_records_does_not_stop_the_servers(state, monkeypatch):
    def refuse(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(state, "write_record", refuse)
    async with supervised(state) as (_, task):
        await eventually(lambda: len(order(state)) == 2)
        assert not task.done()
    assert order(state)[2:] == ["ended controller", "ended gateway"]


async def test_deleted_records_are_made_anew_and_the_lock_stays(state, monkeypatch):
    monkeypatch.setattr(supervisor_module, "_RECORD_SECONDS", 0.02)
    descriptor = lock(state)
    try:
        async with supervised(state):
            before = [(await recorded(state, name)).pid for name in ("controller", "gateway")]
            shutil.rmtree(state.run_dir)
            with pytest.raises(PlatformError, match="another supervisor"):
                lock(state)
            after = [(await recorded(state, name)).pid for name in ("controller", "gateway")]
            assert after == before
            assert (await recorded(state, "supervisor")).pid == os.getpid()
    finally:
        os.close(descriptor)


async def test_a_deleted_state_directory_is_not_made_anew(state, monkeypatch):
    monkeypatch.setattr(supervisor_module, "_RECORD_SECONDS", 0.01)
    async with supervised(state):
        await recorded(state, "gateway")
        state.root.rename(state.root.with_name("moved away"))
        await asyncio.sleep(0.1)
        assert not state.root.exists()
        state.create()


@pytest.mark.parametrize(
    "module", ["exo_inference.supervisor", "exo_inference.controller.supervisor"]
)
def test_supervisor_of_a_directory_that_was_deleted_keeps_others_away(state, module):
    """Also one of a version that called itself otherwise, as `up`, `down` and `status` find it."""
    argv = (module, "--state-dir", str(state.root))
    code = "import time; print('up', flush=True); time.sleep(60)"
    # `-m` after the program is an argument of it; what counts is how the command line reads.
    other = begin((sys.executable, "-S", "-c", code, "-m", *argv), subprocess.PIPE)
    try:
        assert other.stdout.readline() == b"up\n"
        with pytest.raises(PlatformError, match=rf"another supervisor \(pid {other.pid}\)"):
            lock(state)
    finally:
        other.kill()
        other.communicate()


async def test_log_says_who_came_before_and_why_it_stops(state, caplog):
    caplog.set_level("INFO")
    ended = begin(["true"])
    ended.wait()
    state.write_record("supervisor", ended.pid)
    async with supervised(state) as (supervisor, _):
        await eventually(lambda: len(order(state)) == 2)
        supervisor.request_stop("SIGTERM came")
    assert f"the supervisor before (pid {ended.pid}) ended without stopping" in caplog.text
    assert f"started (pid {os.getpid()}) for {state.root}" in caplog.text
    assert "SIGTERM came: stopping controller, engines and gateway" in caplog.text
    assert f"stopped (pid {os.getpid()})" in caplog.text
