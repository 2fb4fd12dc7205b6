"""How many processors the control groups leave."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch
from exo_engine.config import EngineConfig, ModelLimits, resolve
from exo_engine.core import host_memory
from exo_engine.core.host_memory import is_metered, usable_cores
from exo_engine.core.loading import threads_of_rank

V1, V2 = "9:name=systemd:/\n4:cpu,cpuacct:/docker/abc\n0::/\n", "0::/pod/engine\n"
V1_OWN, V2_OWN = "sys/fs/cgroup/cpu/docker/abc", "sys/fs/cgroup/pod/engine"


@pytest.mark.parametrize(
    ("cgroup", "files", "cores"),
    [
        pytest.param("", {}, 8, id="no groups"),
        pytest.param(
            V1,
            {f"{V1_OWN}/cpu.cfs_quota_us": "-1", f"{V1_OWN}/cpu.cfs_period_us": "100000"},
            8,
            id="v1, none",
        ),
        pytest.param(
            V1,
            {f"{V1_OWN}/cpu.cfs_quota_us": "250000", f"{V1_OWN}/cpu.cfs_period_us": "100000"},
            2,
            id="v1, two and a half",
        ),
        pytest.param(
            V1,
            {
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "150000",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "50000",
            },
            3,
            id="v1, own group seen as the uppermost",
        ),
        pytest.param(V2, {f"{V2_OWN}/cpu.max": "max 100000"}, 8, id="v2, none"),
        pytest.param(V2, {f"{V2_OWN}/cpu.max": "400000 100000"}, 4, id="v2"),
        pytest.param(V2, {f"{V2_OWN}/cpu.max": "50000 100000"}, 1, id="v2, half of one"),
        pytest.param(
            V2,
            {f"{V2_OWN}/cpu.max": "max 100000", "sys/fs/cgroup/pod/cpu.max": "600000 100000"},
            6,
            id="v2, of the group above",
        ),
        pytest.param(V2, {f"{V2_OWN}/cpu.max": "1600000 100000"}, 8, id="more than there are"),
        pytest.param(V2, {f"{V2_OWN}/cpu.max": ""}, 8, id="empty"),
    ],
)
def test_cores_are_those_that_the_control_groups_leave(
    cgroup, files, cores, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    for name, text in {"proc/self/cgroup": cgroup, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert usable_cores(tmp_path) == cores
    assert is_metered(tmp_path) == (cores < 8)


@pytest.mark.parametrize(
    ("asked", "ranks", "of_torch", "usable", "threads"),
    [
        (None, 1, 8, 3, 3),
        (None, 1, 2, 8, 2),
        (None, 2, 8, 5, 2),
        (None, 4, 8, 2, 1),
        (None, 1, 384, 300, 256),
        (6, 2, 8, 2, 6),
    ],
    ids=["of the group", "of torch", "shared", "one at least", "of the kernels", "as asked for"],
)
def test_a_rank_has_as_many_threads_as_cores_are_left(
    asked, ranks, of_torch, usable, threads, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: of_torch)
    monkeypatch.setattr(host_memory, "usable_cores", lambda: usable)
    limits = ModelLimits(max_position_embeddings=128, checkpoint_dtype="float32")
    settings = resolve(EngineConfig(model_dir=tmp_path, device="cpu"), limits, has_cuda=False)
    settings = replace(settings, num_threads=asked, tensor_parallel_size=ranks)
    assert threads_of_rank(settings) == threads
