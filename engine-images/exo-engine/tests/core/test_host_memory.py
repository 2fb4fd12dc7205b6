"""The memory that the engine may take is that of its control group, of either version."""

from __future__ import annotations

from pathlib import Path

import pytest
from exo_engine.core.host_memory import free_host_bytes, num_oom_kills, total_host_bytes

GIB = 2**30
V1 = "9:name=systemd:/\n4:cpu,memory:/docker/abc\n0::/\n"
V1_OWN = "sys/fs/cgroup/memory/docker/abc"
V2 = "0::/exo.service\n"
V2_OWN = "sys/fs/cgroup/exo.service"


@pytest.mark.parametrize(
    ("cgroup", "files", "total", "free"),
    [
        pytest.param("", {}, 16, 12, id="no groups"),
        pytest.param(
            V1, {f"{V1_OWN}/memory.limit_in_bytes": "9223372036854771712"}, 16, 12, id="v1, none"
        ),
        pytest.param(
            V1,
            {
                f"{V1_OWN}/memory.limit_in_bytes": f"{4 * GIB}",
                f"{V1_OWN}/memory.usage_in_bytes": f"{3 * GIB}",
                f"{V1_OWN}/memory.stat": f"total_inactive_file {GIB}",
            },
            4,
            2,
            id="v1",
        ),
        pytest.param(
            V1,
            {
                "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{4 * GIB}",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{3 * GIB}",
            },
            4,
            1,
            id="v1, own group seen as the uppermost",
        ),
        pytest.param(V2, {f"{V2_OWN}/memory.max": "max"}, 16, 12, id="v2, none"),
        pytest.param(
            V2,
            {
                f"{V2_OWN}/memory.max": f"{4 * GIB}",
                f"{V2_OWN}/memory.current": f"{3 * GIB}",
                f"{V2_OWN}/memory.stat": f"inactive_file {GIB}",
            },
            4,
            2,
            id="v2",
        ),
        pytest.param(
            V2,
            {
                "sys/fs/cgroup/memory.max": f"{2 * GIB}",
                "sys/fs/cgroup/memory.current": f"{3 * GIB}",
            },
            2,
            0,
            id="v2, the container's limit",
        ),
    ],
)
def test_memory_is_that_of_the_control_group(
    cgroup: str, files: dict[str, str], total: int, free: int, tmp_path: Path
) -> None:
    meminfo = f"MemTotal: {16 * 2**20} kB\nMemAvailable: {12 * 2**20} kB\n"
    for name, text in {"proc/meminfo": meminfo, "proc/self/cgroup": cgroup, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert total_host_bytes(tmp_path) == total * GIB
    assert free_host_bytes(tmp_path) == free * GIB


@pytest.mark.parametrize(
    ("cgroup", "files", "count"),
    [
        pytest.param("", {}, None, id="no groups"),
        pytest.param(V1, {}, None, id="v1, not told"),
        pytest.param(
            V1,
            {f"{V1_OWN}/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"},
            3,
            id="v1",
        ),
        pytest.param(V2, {f"{V2_OWN}/memory.events": "max 9\noom 2\noom_kill 1\n"}, 1, id="v2"),
        pytest.param(V2, {"sys/fs/cgroup/memory.events": "oom_kill 4\n"}, 4, id="v2, above"),
    ],
)
def test_processes_killed_for_want_of_memory_are_counted(tmp_path, cgroup, files, count):
    for name, text in {"proc/self/cgroup": cgroup, **files}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert num_oom_kills(tmp_path) == count
