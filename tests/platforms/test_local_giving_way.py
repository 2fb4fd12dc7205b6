"""Engines give way to the control plane: the kernel takes them first, and they run after it."""

from __future__ import annotations

import ctypes
import json
import os
import re
from pathlib import Path

import pytest

from exo_inference.platforms.base import ReplicaPhase
from exo_inference.platforms.local.shim import KillCount, count_oom_kills
from tests.platforms.conftest import LONG_BACK_OFF, Rig


async def test_engine_is_the_first_that_the_kernel_takes_and_the_last_that_it_runs(
    rig: Rig,
) -> None:
    observed = await rig.until_ready(rig.desired(1, "--child"))
    pid = observed.replicas[0].pid
    assert pid is not None
    process = json.loads((rig.directory(observed.replicas[0].name) / "process.json").read_text())
    shim = process["shim_pid"]
    assert Path(f"/proc/{pid}/oom_score_adj").read_text() == "1000\n"
    own_nice = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, pid) == min(own_nice + 10, 19)
    assert os.getpriority(os.PRIO_PROCESS, shim) == own_nice
    own = Path("/proc/self/oom_score_adj").read_text()
    assert Path(f"/proc/{shim}/oom_score_adj").read_text() == own
    get = {"x86_64": 252, "aarch64": 31}.get(os.uname().machine)
    if get is not None:
        priority = ctypes.CDLL(None).syscall(get, 1, pid)
        assert priority in (2 << 13 | 7, 0), "the lowest of best effort; 0 where nobody schedules"
    children = [p for p in rig.processes() if p != pid]
    scores = {Path(f"/proc/{child}/oom_score_adj").read_text() for child in children}
    assert "1000\n" in scores, "what the engine starts gives way, too"


GROUPS = [
    pytest.param(
        "4:memory:/own\n0::/\n",
        {"sys/fs/cgroup/memory/own/memory.oom_control": "under_oom 0\noom_kill 3\n"},
        id="v1",
    ),
    pytest.param(
        "0::/own\n",
        {"sys/fs/cgroup/own/memory.events": "oom 9\noom_kill 3\noom_group_kill 0\n"},
        id="v2",
    ),
    pytest.param("0::/\n", {"proc/vmstat": "oom_kill_x 1\noom_kill 3\n"}, id="the machine's"),
]


@pytest.mark.parametrize(("cgroup", "files"), GROUPS)
def test_out_of_memory_kills_are_counted(
    cgroup: str, files: dict[str, str], tmp_path: Path
) -> None:
    for name, text in {"proc/self/cgroup": cgroup, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert count_oom_kills(tmp_path) == 3


def test_kills_of_long_ago_are_not_laid_to_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    now, count = 0.0, 4
    monkeypatch.setattr("time.monotonic", lambda: now)
    kills = KillCount(lambda: count)
    count = 5
    kills.look()
    assert kills.recent() == 1
    now = 5.0
    kills.look()
    now = 10.0
    kills.look()
    assert kills.recent() == 0
    count = 6
    assert kills.recent() == 1


async def test_out_of_memory_is_said_and_waited_for(rig: Rig) -> None:
    rig.new_platform(**LONG_BACK_OFF)
    observed = await rig.until_ready(rig.desired())
    replica = observed.replicas[0]
    assert replica.pid is not None
    rig.kill(replica.pid)
    down = await rig.until(rig.desired(), lambda o: o.replicas[0].phase is ReplicaPhase.BACKOFF)
    assert "killed (SIGKILL)" in down.replicas[0].details
    exit_file = rig.directory(replica.name) / "exit.json"
    rig.edit(exit_file, oom_kills=1)  # as the kernel would have counted it
    down = await rig.platform.apply(rig.desired())
    details = down.replicas[0].details
    assert down.replicas[0].phase is ReplicaPhase.BACKOFF
    assert "ran out of memory and the kernel killed the engine" in details
    (seconds,) = re.findall(r"is started again in (\d+) s", details)
    assert int(seconds) <= 38, "its own wait: 30 s and a jitter of a quarter"
