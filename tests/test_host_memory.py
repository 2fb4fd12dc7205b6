"""The machine's memory is read within the limits of control groups of both versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from exo_inference.host_memory import (
    HostMemory,
    Pressure,
    read_host_memory,
    read_pressure,
    sum_private_bytes,
    usable_cores,
)

GIB = 2**30


def machine(root: Path, cgroup: str, files: dict[str, str]) -> Path:
    """Lay out what a machine of 16 GiB, 12 GiB of them free, shows of itself."""
    meminfo = f"MemTotal: {16 * 2**20} kB\nMemFree: {2**20} kB\nMemAvailable: {12 * 2**20} kB\n"
    for name, text in {"proc/meminfo": meminfo, "proc/self/cgroup": cgroup, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


V1 = "9:name=systemd:/\n4:cpu,memory:/docker/abc\n0::/\n"
V1_OWN = "sys/fs/cgroup/memory/docker/abc"
V2 = "0::/user.slice/exo.service\n"
V2_OWN = "sys/fs/cgroup/user.slice/exo.service"


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        pytest.param("", {}, (16, 12), id="no groups"),
        pytest.param(
            V1,
            {f"{V1_OWN}/memory.limit_in_bytes": "9223372036854771712\n"},
            (16, 12),
            id="v1, none",
        ),
        pytest.param(
            V1,
            {
                f"{V1_OWN}/memory.limit_in_bytes": f"{4 * GIB}\n",
                f"{V1_OWN}/memory.usage_in_bytes": f"{3 * GIB}\n",
                f"{V1_OWN}/memory.stat": f"cache 7\ntotal_inactive_file {GIB}\n",
            },
            (4, 2),
            id="v1, with cache that can be dropped",
        ),
        pytest.param(
            V1,
            {
                "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{4 * GIB}\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{3 * GIB}\n",
            },
            (4, 1),
            id="v1, own group seen as the uppermost",
        ),
        pytest.param(
            V1,
            {
                f"{V1_OWN}/memory.limit_in_bytes": f"{8 * GIB}\n",
                f"{V1_OWN}/memory.usage_in_bytes": f"{GIB}\n",
                "sys/fs/cgroup/memory/docker/memory.limit_in_bytes": f"{6 * GIB}\n",
                "sys/fs/cgroup/memory/docker/memory.usage_in_bytes": f"{5 * GIB}\n",
            },
            (6, 1),
            id="v1, the group above has less",
        ),
        pytest.param(V2, {f"{V2_OWN}/memory.max": "max\n"}, (16, 12), id="v2, none"),
        pytest.param(
            V2,
            {
                f"{V2_OWN}/memory.max": f"{2 * GIB}\n",
                f"{V2_OWN}/memory.current": f"{3 * GIB}\n",
            },
            (2, 0),
            id="v2, over its limit",
        ),
        pytest.param(
            V2,
            {
                f"{V2_OWN}/memory.max": "max\n",
                f"{V2_OWN}/memory.high": f"{5 * GIB}\n",
                f"{V2_OWN}/memory.current": f"{2 * GIB}\n",
                f"{V2_OWN}/memory.stat": f"anon 1\ninactive_file {GIB}\n",
            },
            (5, 4),
            id="v2, slowed down before its limit",
        ),
        pytest.param(
            V2,
            {
                f"{V2_OWN}/memory.max": "max\n",
                "sys/fs/cgroup/user.slice/memory.max": f"{3 * GIB}\n",
                "sys/fs/cgroup/user.slice/memory.current": f"{GIB}\n",
            },
            (3, 2),
            id="v2, the slice above has less",
        ),
        pytest.param(
            "0::/x\n",
            {
                "sys/fs/cgroup/unified/x/memory.max": f"{3 * GIB}\n",
                "sys/fs/cgroup/unified/x/memory.current": f"{GIB}\n",
            },
            (3, 2),
            id="v2 beside v1",
        ),
        pytest.param(
            "0::/../outside\n",
            {
                "sys/fs/cgroup/memory.max": f"{3 * GIB}\n",
                "sys/fs/cgroup/memory.current": f"{GIB}\n",
            },
            (3, 2),
            id="a group outside of what is seen",
        ),
    ],
)
def test_memory_is_that_of_the_tightest_group(
    cgroup: str, files: dict[str, str], expected: tuple[int, int], tmp_path: Path
) -> None:
    total, free = expected
    found = read_host_memory(machine(tmp_path, cgroup, files))
    assert found == HostMemory(total * GIB, free * GIB)


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        pytest.param("", {}, 8, id="no groups"),
        pytest.param(
            "4:cpu,cpuacct:/docker/abc\n",
            {
                "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us": "250000\n",
                "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us": "100000\n",
            },
            2,
            id="v1, a part of a core does not count",
        ),
        pytest.param(
            "4:cpu:/docker/abc\n",
            {
                "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us": "100000\n",
            },
            8,
            id="v1, none",
        ),
        pytest.param(
            V2,
            {
                f"{V2_OWN}/cpu.max": "max 100000\n",
                "sys/fs/cgroup/user.slice/cpu.max": "300000 100000",
            },
            3,
            id="v2, the slice above has less",
        ),
        pytest.param(V2, {f"{V2_OWN}/cpu.max": "50000 100000\n"}, 1, id="v2, half a core"),
        pytest.param(
            V2, {f"{V2_OWN}/cpu.max": "1600000 100000\n"}, 8, id="v2, more than there are"
        ),
        pytest.param(V2, {f"{V2_OWN}/cpu.max": "max\n"}, 8, id="v2, no period"),
    ],
)
def test_cores_are_those_of_the_tightest_group(
    cgroup: str,
    files: dict[str, str],
    expected: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    assert usable_cores(machine(tmp_path, cgroup, files)) == expected


def stall(some: float, full: float) -> str:
    return f"some avg10={some} avg60=0.00 avg300=0.00 total=1\nfull avg10={full} avg60=0 avg300=0 total=1\n"


def test_pressure_is_the_greatest_of_machine_and_groups(tmp_path: Path) -> None:
    files = {
        "proc/pressure/memory": stall(20.0, 3.0),
        f"{V2_OWN}/memory.pressure": stall(9.0, 7.5),
    }
    assert read_pressure(machine(tmp_path, V2, files)) == Pressure(9.0, 7.5)


@pytest.mark.parametrize("text", [None, "", "some\n", "some avg10=x\n"], ids=str)
def test_pressure_that_nobody_counts_is_none(text: str | None, tmp_path: Path) -> None:
    files = {} if text is None else {"proc/pressure/memory": text}
    assert read_pressure(machine(tmp_path, V2, files)) is None


def test_private_memory_is_summed_by_session(tmp_path: Path) -> None:
    for pid, session, statm in ((7, 7, "9 5 2 0"), (8, 7, "9 4 4 0"), (9, 3, "9 9 0 0")):
        process = tmp_path / "proc" / str(pid)
        process.mkdir(parents=True)
        (process / "stat").write_text(f"{pid} (a) b) S 1 {session} {session} 0 -1\n")
        (process / "statm").write_text(statm)
    (tmp_path / "proc/11").mkdir()  # it ends while it is read
    assert sum_private_bytes({7, 12}, tmp_path) == {7: 3 * 4096, 12: 0}
