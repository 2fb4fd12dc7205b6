"""Start, readiness, crash, drain and removal of replicas, with real processes."""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from exo_inference.errors import PlatformError
from exo_inference.platforms.base import LogQuery, ObservedDeployment, ReplicaPhase
from exo_inference.platforms.local import stop_all
from exo_inference.platforms.local.restart_backoff import backoff_seconds
from exo_inference.state_dir import process_start_ticks
from tests.desired_deployments import altered
from tests.platforms.conftest import LONG_BACK_OFF

if TYPE_CHECKING:
    from tests.platforms.conftest import Rig


def phases(observed: ObservedDeployment) -> list[ReplicaPhase]:
    return [replica.phase for replica in observed.replicas]


async def test_start_reports_what_the_engine_says_and_then_ready(rig: Rig) -> None:
    desired = rig.desired(1, "--start-seconds", "3600")
    starting = await rig.until(
        desired, lambda now: [r.details for r in now.replicas] == ["loading weights 43 %"]
    )
    assert phases(starting) == [ReplicaPhase.STARTING]
    (rig.directory(starting.replicas[0].name) / "loaded").touch()
    (replica,) = (await rig.until_ready(desired)).replicas
    assert replica.address == f"unix:replicas/{replica.name}/engine.sock"
    assert replica.restarts == 0
    assert replica.pid is not None
    assert process_start_ticks(replica.pid) is not None
    assert replica.name.startswith("chat-")


async def test_engine_gets_no_secret_of_the_controller(rig: Rig) -> None:
    rig.environment |= {"HF_TOKEN": "hf_secret", "EXOSCALE_API_SECRET": "s", "AWS_SECRET": "s"}
    rig.new_platform()
    observed = await rig.until_ready(rig.desired())
    process = observed.replicas[0].pid
    environment = dict(
        entry.split("=", 1)
        for entry in Path(f"/proc/{process}/environ").read_text().split("\0")
        if entry
    )
    assert not {"HF_TOKEN", "EXOSCALE_API_SECRET", "AWS_SECRET"} & set(environment)
    assert environment["CUDA_VISIBLE_DEVICES"] == ""
    assert environment["HOME"] == str(rig.state_dir.cache_dir)
    launch = json.loads((rig.directory(observed.replicas[0].name) / "launch.json").read_text())
    assert "hf_secret" not in json.dumps(launch)


async def test_crashed_engine_is_started_again_after_a_back_off_that_says_why(rig: Rig) -> None:
    rig.new_platform(**LONG_BACK_OFF)
    desired = rig.desired()
    first = (await rig.until_ready(desired)).replicas[0]
    (rig.directory(first.name) / "crash").write_text("70")
    crashed = await rig.until(desired, lambda now: phases(now) == [ReplicaPhase.BACKOFF])
    assert "it crashed on request" in crashed.replicas[0].details
    assert "deployment logs chat --previous" in crashed.replicas[0].details
    assert crashed.replicas[0].address is None
    rig.new_platform()
    again = (await rig.until_ready(desired)).replicas[0]
    assert again.name == first.name
    assert again.restarts == 1
    assert again.pid != first.pid


async def test_a_back_off_that_is_nearly_over_is_looked_at_when_it_is(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = rig.new_platform(**LONG_BACK_OFF)._settings
    desired = rig.desired(1, "--exit-code", "70")
    crashed = await rig.until(desired, lambda now: phases(now) == [ReplicaPhase.BACKOFF])
    name = crashed.replicas[0].name
    ended_at = json.loads((rig.directory(name) / "exit.json").read_text())["finished_at"]
    over_at = ended_at + backoff_seconds(name, 1, 1, settings)
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: over_at - 0.3)
        assert (await rig.platform.apply(desired)).next_check_seconds == pytest.approx(0.3)


async def test_every_crash_waits_longer(rig: Rig) -> None:
    desired = rig.desired(1, "--exit-code", "70")
    launches: dict[int, float] = {}

    def note(now: ObservedDeployment) -> None:
        for replica in now.replicas:
            path = rig.directory(replica.name) / "launch.json"
            if path.exists():
                launch = json.loads(path.read_text())
                launches[launch["run"]] = launch["spawned_at"]

    observed = await rig.until(
        desired,
        lambda now: bool(now.replicas) and now.replicas[0].restarts >= 4,
        each=note,
    )
    name = observed.replicas[0].name
    for run, (earlier, later) in enumerate(itertools.pairwise(sorted(launches.values())), 1):
        assert later - earlier >= backoff_seconds(name, run, run, rig.settings)


async def test_wrong_configuration_fails_once_and_is_not_tried_again(rig: Rig) -> None:
    desired = rig.desired(1, "--exit-code", "78", "--error", "no such flag --wings")
    observed = await rig.until(desired, lambda now: phases(now) == [ReplicaPhase.FAILED])
    assert "no such flag --wings" in observed.replicas[0].details
    assert "deployment update chat" in observed.replicas[0].details
    for _ in range(5):
        observed = await rig.platform.apply(desired)
        await asyncio.sleep(0.1)
    assert phases(observed) == [ReplicaPhase.FAILED]
    assert observed.replicas[0].restarts == 0


async def test_renamed_deployment_is_called_by_its_new_name(rig: Rig) -> None:
    desired = rig.desired(1, "--exit-code", "78")
    failed = await rig.until(desired, lambda now: phases(now) == [ReplicaPhase.FAILED])
    [renamed] = (await rig.platform.apply(altered(desired, name="talk"))).replicas
    assert "deployment logs talk --previous" in renamed.details
    assert "deployment update talk" in renamed.details
    record = json.loads((rig.directory(failed.replicas[0].name) / "record.json").read_text())
    assert record["deployment"] == "talk", "what `status` shows"


async def test_failed_replica_is_started_again_when_asked_to(rig: Rig) -> None:
    desired = rig.desired(1, "--exit-code", "78")
    failed = (await rig.until(desired, lambda now: phases(now) == [ReplicaPhase.FAILED])).replicas
    (rig.directory(failed[0].name) / "mended").touch()
    still = await rig.platform.apply(desired)
    assert phases(still) == [ReplicaPhase.FAILED]
    ready = await rig.until_ready(altered(desired, restarted_at=datetime.now(UTC)))
    assert ready.replicas[0].name == failed[0].name


async def test_asking_to_try_again_helps_once(rig: Rig) -> None:
    desired = rig.desired(1, "--exit-code", "78")
    failed = await rig.until(desired, lambda now: phases(now) == [ReplicaPhase.FAILED])
    launch = rig.directory(failed.replicas[0].name) / "launch.json"
    asked = altered(desired, restarted_at=datetime.now(UTC))
    await rig.until(asked, lambda _now: json.loads(launch.read_text())["run"] == 2)
    await rig.until(asked, lambda now: phases(now) == [ReplicaPhase.FAILED])
    for _ in range(5):
        assert phases(await rig.platform.apply(asked)) == [ReplicaPhase.FAILED]
    assert json.loads(launch.read_text())["run"] == 2


async def test_asking_to_try_again_leaves_what_runs_alone(rig: Rig) -> None:
    desired = rig.desired()
    before = await rig.until_ready(desired)
    after = await rig.platform.apply(altered(desired, restarted_at=datetime.now(UTC)))
    assert after.replicas[0].pid == before.replicas[0].pid
    assert phases(after) == [ReplicaPhase.READY]


async def test_changing_the_parameters_replaces_a_failed_replica(rig: Rig) -> None:
    broken = rig.desired(1, "--exit-code", "78")
    observed = await rig.until(broken, lambda now: phases(now) == [ReplicaPhase.FAILED])
    fixed = await rig.until_ready(rig.desired(1, "--label", "good"))
    assert fixed.replicas[0].name != observed.replicas[0].name


async def test_missing_program_fails_with_its_name(rig: Rig) -> None:
    platform = rig.new_platform()
    fake = type(
        "Missing", (), {"command": lambda *_: ("/nowhere/exo-engine",), "diagnose": _diagnose}
    )
    platform._engine = platform._lifecycle._engine = fake()
    observed = await rig.until(rig.desired(), lambda now: phases(now) == [ReplicaPhase.FAILED])
    assert "/nowhere/exo-engine: No such file or directory" in observed.replicas[0].details


def _diagnose(_self: object, exit_code: int, tail: list[str]) -> object:
    from exo_inference.engines import Failure

    return Failure(f"{exit_code} {tail[-1]}", retry=False)


async def test_draining_replica_is_stopped_only_when_no_longer_routed(rig: Rig) -> None:
    desired = rig.desired()
    first = (await rig.until_ready(desired)).replicas[0]
    none = rig.desired(0)
    for _ in range(4):
        observed = await rig.platform.apply(none)
        await asyncio.sleep(0.05)
    assert phases(observed) == [ReplicaPhase.DRAINING]
    assert observed.replicas[0].pid == first.pid
    await rig.until(none, lambda now: not now.replicas)
    assert rig.processes() == []
    assert list(rig.state_dir.replicas_dir.iterdir()) == []


async def test_drain_lets_a_running_request_finish(rig: Rig) -> None:
    replica = (await rig.until_ready(rig.desired())).replicas[0]
    request = asyncio.create_task(_ask(rig, replica.name, 0.6), name="request")
    while not (rig.directory(replica.name) / "working").exists():
        await asyncio.sleep(0.01)
    await rig.until(rig.desired(0), lambda now: not now.replicas)
    assert (await request).startswith(b"HTTP/1.1 200")


async def test_engine_that_ignores_the_drain_is_killed_after_the_grace(rig: Rig) -> None:
    rig.new_platform(drain_grace_seconds=0.3)
    await rig.until_ready(rig.desired(1, "--ignore-sigterm", "--child"))
    started = time.monotonic()
    await rig.until(rig.desired(0, "--ignore-sigterm", "--child"), lambda now: not now.replicas)
    assert time.monotonic() - started >= 0.3
    assert rig.processes() == []


EARLY_STOP = """
import os, signal, sys
from pathlib import Path
from exo_inference.platforms.local.shim import Shim

class Early(Shim):
    def _become_engine(self, *rest):
        os.kill(os.getpid(), signal.SIGTERM)  # what the shim forwards may come as early as this
        super()._become_engine(*rest)

argv = [sys.executable, "-I", "-S", "-c", "open('ran', 'w')"]
launch = {"run": 1, "argv": argv, "environment": {}, "grace_seconds": 60}
Early(Path.cwd(), {**launch, "log_max_bytes": 1000, "log_max_files": 1}).run()
"""


def test_engine_that_is_told_to_stop_while_it_starts_does_not_start(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", EARLY_STOP], cwd=tmp_path, check=True)
    assert json.loads((tmp_path / "exit.json").read_text())["exit_code"] == -signal.SIGTERM
    assert not (tmp_path / "ran").exists()


async def test_killed_shim_takes_the_engine_and_its_children_with_it(rig: Rig) -> None:
    desired = rig.desired(1, "--child")
    first = (await rig.until_ready(desired)).replicas[0]
    process = json.loads((rig.directory(first.name) / "process.json").read_text())
    os.kill(process["shim_pid"], signal.SIGKILL)
    again = await rig.until(
        desired, lambda now: now.replicas[0].restarts == 1 and now.replicas[0].details == ""
    )
    assert process_start_ticks(process["engine_pid"]) is None
    assert again.replicas[0].pid != first.pid
    assert len(rig.processes()) == 3  # shim, engine, its child: the old ones are gone


async def test_killed_engine_leaves_no_child_behind(rig: Rig) -> None:
    desired = rig.desired(1, "--child")
    first = (await rig.until_ready(desired)).replicas[0]
    assert first.pid is not None
    os.kill(first.pid, signal.SIGKILL)
    await rig.until(desired, lambda now: now.replicas[0].restarts == 1)
    await rig.until_ready(desired)
    assert len(rig.processes()) == 3


async def test_hanging_engine_is_killed_and_started_again(rig: Rig) -> None:
    desired = rig.desired()
    replica = (await rig.until_ready(desired)).replicas[0]
    said: list[str] = []
    hang = rig.directory(replica.name) / "hang"
    hang.touch()
    # Not before: on a busy machine an engine that is well may be silent for a second.
    rig.new_platform(health_timeout_seconds=0.1, unready_after_seconds=0.05, unresponsive_seconds=1)
    await rig.until(
        desired,
        lambda now: now.replicas[0].restarts == 1,
        each=lambda now: said.extend(r.details for r in now.replicas),
    )
    hang.unlink(missing_ok=True)
    rig.new_platform()
    await rig.until_ready(desired)
    assert any("has not answered its health check" in text for text in said)


async def test_engine_that_says_that_it_hangs_gets_no_requests_and_is_started_again(
    rig: Rig,
) -> None:
    rig.new_platform(stalled_seconds=0.5)
    desired = rig.desired()
    replica = (await rig.until_ready(desired)).replicas[0]
    stalled = rig.directory(replica.name) / "stalled"
    stalled.touch()
    first = (await rig.platform.apply(desired)).replicas[0]
    assert first.phase is ReplicaPhase.STARTING, "it leaves the routing table at once"
    assert first.details.startswith("the engine hangs: nothing was computed for 7 s")
    await rig.until(desired, lambda now: now.replicas[0].restarts == 1)
    stalled.unlink(missing_ok=True)
    await rig.until_ready(desired)
    killed = json.loads((rig.directory(replica.name) / "killed.json").read_text())
    assert killed["reason"].startswith("the engine computed nothing for")


async def test_engine_that_gets_on_in_time_is_left_alone(rig: Rig) -> None:
    rig.new_platform(stalled_seconds=3600)
    desired = rig.desired()
    before = (await rig.until_ready(desired)).replicas[0]
    stalled = rig.directory(before.name) / "stalled"
    stalled.touch()
    assert phases(await rig.platform.apply(desired)) == [ReplicaPhase.STARTING]
    stalled.unlink()
    after = (await rig.until_ready(desired)).replicas[0]
    assert (after.pid, after.restarts) == (before.pid, 0)


async def test_start_without_progress_is_called_stuck(rig: Rig) -> None:
    rig.new_platform(stuck_start_seconds=0.2)
    desired = rig.desired(1, "--start-seconds", "3600")
    observed = await rig.until(
        desired,
        lambda now: any(
            "stuck" in r.details and "loading weights 43 %" in r.details for r in now.replicas
        ),
    )
    assert "deployment logs chat" in observed.replicas[0].details


async def test_new_platform_finds_what_runs_and_starts_nothing_twice(rig: Rig) -> None:
    desired = rig.desired(2)
    before = await rig.until_ready(desired)
    rig.new_platform()
    after = await rig.platform.apply(desired)
    assert {r.pid for r in after.replicas} == {r.pid for r in before.replicas}
    assert phases(after) == [ReplicaPhase.READY] * 2
    assert await rig.platform.deployments() == {desired.uid}


async def test_delete_leaves_no_process_and_no_directory(rig: Rig) -> None:
    desired = rig.desired(2, "--child")
    await rig.until_ready(desired)
    while not await rig.platform.delete(desired.uid):
        await asyncio.sleep(0.02)
    assert await rig.platform.deployments() == set()
    assert rig.processes() == []
    assert list(rig.state_dir.replicas_dir.iterdir()) == []


async def test_stopped_control_plane_starts_its_engines_again_at_once(rig: Rig) -> None:
    desired = rig.desired(2)
    before = await rig.until_ready(desired)
    assert await stop_all(rig.state_dir, timeout_seconds=5) == []
    assert rig.processes() == []
    rig.new_platform(first_backoff_seconds=30.0)
    after = await rig.until_ready(desired)
    assert {r.name for r in after.replicas} == {r.name for r in before.replicas}
    assert [r.restarts for r in after.replicas] == [0, 0]


async def test_full_disk_is_a_platform_error_that_says_so(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("exo_inference.platforms.local.replica_dir.write_atomically", full)
        with pytest.raises(PlatformError, match="No space left on device") as caught:
            await rig.platform.apply(rig.desired())
    assert "free space" in (caught.value.hint or "")
    await rig.until_ready(rig.desired())


async def test_runs_in_a_directory_too_long_for_a_socket_path(rig: Rig) -> None:
    from exo_inference.state_dir import StateDir

    rig.state_dir = StateDir(rig.state_dir.root / ("d" * 120))
    rig.state_dir.create()
    rig.new_platform()
    observed = await rig.until_ready(rig.desired())
    lines = [line async for line in rig.platform.logs(rig.desired().uid, LogQuery(tail=None))]
    assert observed.replicas[0].phase is ReplicaPhase.READY
    assert "hello from the fake engine" in [line.message for line in lines]


async def _ask(rig: Rig, name: str, seconds: float) -> bytes:
    descriptor = os.open(rig.directory(name), os.O_PATH)
    try:
        reader, writer = await asyncio.open_unix_connection(
            f"/proc/self/fd/{descriptor}/engine.sock"
        )
    finally:
        os.close(descriptor)
    writer.write(f"GET /work/{seconds} HTTP/1.1\r\n\r\n".encode())
    data = await reader.read()
    writer.close()
    return data
