"""GPU families from the driver, and which replica gets which GPU. `nvidia-smi` is a fake here."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from exo_inference.platforms.base import ObservedDeployment, ReplicaPhase
from exo_inference.platforms.gpu_families import family_of
from exo_inference.platforms.local.gpu_inventory import GpuDevice, parse_query, query_gpus

if TYPE_CHECKING:
    from tests.platforms.conftest import Rig


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("Tesla V100-SXM2-16GB", "gpu2"),
        ("NVIDIA A40", "gpu3"),
        ("NVIDIA GeForce RTX 3080 Ti", "gpu3080ti"),
        ("NVIDIA A30", "gpua30"),
        ("NVIDIA RTX A5000", "gpua5000"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "gpurtx6000pro"),
        ("NVIDIA B300 SXM6 AC", "gpub300"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA GeForce RTX 3080", "rtx-3080"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("Tesla T4", "t4"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA GB300", "gb300"),
        ("NVIDIA", "gpu"),
    ],
)
def test_driver_names_map_to_families(name: str, family: str) -> None:
    assert family_of(name) == family


def test_lines_that_make_no_sense_are_left_out() -> None:
    text = "GPU-1, NVIDIA A40, 46068\n\nNo devices were found\nGPU-2, NVIDIA H200, [N/A]\n"
    assert parse_query(text) == [GpuDevice("GPU-1", "NVIDIA A40", 46068)]


def install_fake_smi(rig: Rig, body: str) -> None:
    """Put a fake `nvidia-smi` on the PATH of the platform."""
    folder = rig.state_dir.root / "fake-bin"
    folder.mkdir(exist_ok=True)
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    rig.environment["PATH"] = f"{folder}:/usr/bin:/bin"
    rig.new_platform()


def list_gpus(*names: str) -> str:
    lines = (f"echo 'GPU-{index}, {name}, 46068'" for index, name in enumerate(names))
    return "\n".join(lines)


def gpus_of(rig: Rig, observed: ObservedDeployment) -> list[str]:
    launches = (rig.directory(replica.name) / "launch.json" for replica in observed.replicas)
    environments = (json.loads(path.read_text())["environment"] for path in launches)
    return [environment["CUDA_VISIBLE_DEVICES"] for environment in environments]


async def test_machine_without_a_driver_offers_the_cpu(rig: Rig) -> None:
    rig.environment["PATH"] = "/nowhere"
    (cpu,) = await rig.new_platform().instance_types()
    assert cpu.family == "cpu"
    assert cpu.total_gpus >= 1


async def test_families_are_counted_with_what_is_free(rig: Rig) -> None:
    install_fake_smi(rig, list_gpus("NVIDIA A40", "NVIDIA A40", "NVIDIA H200"))
    await rig.until_ready(rig.desired(1, gpu_type="gpu3"))
    types = {t.family: t for t in await rig.platform.instance_types()}
    assert (types["gpu3"].total_gpus, types["gpu3"].free_gpus) == (2, 1)
    assert (types["h200"].total_gpus, types["h200"].free_gpus) == (1, 1)
    assert "cpu" in types
    assert types["gpu3"].description == "NVIDIA A40, 46068 MiB"


@pytest.mark.parametrize("body", ["exit 9", "sleep 60"], ids=["fails", "hangs"])
async def test_driver_that_does_not_answer_is_not_waited_for(
    rig: Rig, body: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("exo_inference.platforms.local.gpu_inventory._QUERY_SECONDS", 0.3)
    install_fake_smi(rig, f"exec {body}" if "sleep" in body else body)
    assert await query_gpus(rig.environment) is None
    assert [t.family for t in await rig.platform.instance_types()] == ["cpu"]


async def test_every_replica_gets_gpus_of_its_own(rig: Rig) -> None:
    install_fake_smi(rig, list_gpus("NVIDIA A40", "NVIDIA A40", "NVIDIA A40", "NVIDIA A40"))
    observed = await rig.until_ready(rig.desired(2, gpu_type="gpu3", gpu_count=2))
    given = gpus_of(rig, observed)
    assert sorted(",".join(given).split(",")) == ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]
    assert all(len(gpus.split(",")) == 2 for gpus in given)


async def test_replica_waits_for_a_gpu_and_takes_the_next_free_one(rig: Rig) -> None:
    install_fake_smi(rig, list_gpus("NVIDIA A40"))
    first = rig.desired(1, gpu_type="gpu3")
    await rig.until_ready(first)
    second = rig.desired(1, gpu_type="gpu3", uid="2", name="other")
    waiting = await rig.until(second, lambda now: bool(now.replicas))
    assert waiting.replicas[0].phase is ReplicaPhase.PENDING
    assert waiting.replicas[0].details == "waiting for a free GPU: 1 gpu3 needed, 0 of 1 free"
    while not await rig.platform.delete(first.uid):
        await rig.platform.apply(second)
    observed = await rig.until_ready(second)
    assert gpus_of(rig, observed) == ["GPU-0"]


@pytest.mark.parametrize(
    ("gpu_type", "gpu_count", "words"),
    [
        ("gpua5000", 1, "this machine has no gpua5000; it has: gpu3, cpu"),
        ("gpu3", 3, "a replica needs 3 gpu3, and this machine has 1"),
        ("cpu", 2, "a replica on the CPU has a gpu-count of 1, not 2"),
    ],
)
async def test_what_the_machine_cannot_hold_fails_with_the_reason(
    rig: Rig, gpu_type: str, gpu_count: int, words: str
) -> None:
    install_fake_smi(rig, list_gpus("NVIDIA A40"))
    desired = rig.desired(1, gpu_type=gpu_type, gpu_count=gpu_count)
    observed = await rig.until(desired, lambda now: bool(now.replicas))
    assert observed.replicas[0].phase is ReplicaPhase.FAILED
    assert words in observed.replicas[0].details


async def test_update_without_a_spare_gpu_replaces_one_by_one(rig: Rig) -> None:
    install_fake_smi(rig, list_gpus("NVIDIA A40", "NVIDIA A40"))
    await rig.until_ready(rig.desired(2, "--label", "a", gpu_type="gpu3"))
    least = 2

    def note(now: ObservedDeployment) -> None:
        nonlocal least
        least = min(least, sum(r.phase is ReplicaPhase.READY for r in now.replicas))

    after = await rig.until_ready(rig.desired(2, "--label", "b", gpu_type="gpu3"), each=note)
    assert least == 1
    assert sorted(gpus_of(rig, after)) == ["GPU-0", "GPU-1"]


async def test_cores_are_shared_among_replicas_on_the_cpu(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("exo_inference.platforms.local.lifecycle.usable_cores", lambda: 8)
    observed = await rig.until_ready(rig.desired(2))
    path = Path(rig.directory(observed.replicas[0].name) / "launch.json")
    assert json.loads(path.read_text())["environment"]["OMP_NUM_THREADS"] == "4"
