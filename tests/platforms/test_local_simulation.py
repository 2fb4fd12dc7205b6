"""Simulated GPUs: what is offered, who gets which, and what a replica is told to be."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from exo_engine.simulation import Simulation as EngineSimulation
from exo_engine.simulation import parse_simulation

from exo_inference.engines import get_engine
from exo_inference.hub.base import ModelUnusable
from exo_inference.planner import (
    Architecture,
    find_gpu,
    find_model,
    load_models,
    plan,
    read_architecture,
)
from exo_inference.platforms.base import ReplicaPhase
from exo_inference.platforms.local import LocalPlatform, Simulation
from exo_inference.platforms.local.simulation import (
    ReadModel,
    find_by_name,
    simulation_document,
)
from exo_inference.simulated_gpus import MODEL_MARKER, parse_simulated_gpus
from tests.desired_deployments import desired_deployment
from tests.planner.flags import settings_of
from tests.platforms.conftest import FakeEngine
from tests.platforms.test_local_gpu_inventory import gpus_of, install_fake_smi, list_gpus

if TYPE_CHECKING:
    from tests.platforms.conftest import Rig

MINISTRAL = "mistralai/Ministral-3-8B-Instruct-2512"
GIB = 2**30


def simulate(rig: Rig, gpus: str, **changes: Any) -> None:
    """Give the rig a platform that offers these families."""
    simulation = Simulation(parse_simulated_gpus(gpus), stand_in=Path("/stand-in"), **changes)
    rig.platform = LocalPlatform(
        rig.state_dir,
        settings=rig.settings,
        engine=FakeEngine(),  # type: ignore[arg-type]
        environment=rig.environment,
        simulation=simulation,
    )


@pytest.fixture
def ministral(tmp_path: Path) -> Path:
    """A model whose weights were not downloaded."""
    directory = tmp_path / "ministral"
    directory.mkdir()
    (directory / MODEL_MARKER).write_text("{}")
    return directory


def described(
    directory: Path,
    *flags: str,
    gpus: str = "gpua5000=8",
    speedup: int = 1,
    read_model: ReadModel = find_by_name,
    **changes: Any,
) -> dict[str, Any]:
    """Return what a replica of Ministral would be told."""
    (kind,) = parse_simulated_gpus(gpus)
    fields: dict[str, Any] = {"gpu_count": 1, "engine": "vllm", "engine_version": "0.28.0"}
    fields |= {"model": MINISTRAL, **changes}
    desired = desired_deployment(
        uid="1",
        name="chat",
        model_path=str(directory),
        gpu_type=kind.family,
        replicas=1,
        engine_parameters=flags,
        **fields,
    )
    simulation = Simulation((kind,), speedup, read_model=read_model)
    return simulation_document(desired, kind, simulation)


def log_of(document: dict[str, Any]) -> str:
    lines = [line for phase in document["phases"] for line in phase["log"]]
    return "\n".join([*lines, *document.get("fail", {}).get("log", [])])


async def test_simulated_families_are_offered_beside_real_ones_and_the_cpu(rig: Rig) -> None:
    install_fake_smi(rig, list_gpus("NVIDIA A40"))
    simulate(rig, "gpua5000=4,H100=8")
    types = {t.family: t for t in await rig.platform.instance_types()}
    assert list(types) == ["gpu3", "gpua5000", "h100", "cpu"]
    assert (types["gpua5000"].total_gpus, types["gpua5000"].free_gpus) == (4, 4)
    assert types["gpua5000"].description.endswith("(simulated)")
    assert types["gpua5000"].gpu == find_gpu("gpua5000")
    assert {name: (t.simulated, t.engine) for name, t in types.items()} == {
        "gpu3": (False, "exo"),
        "gpua5000": (True, "vllm"),
        "h100": (True, "vllm"),
        "cpu": (False, "exo"),
    }


async def test_a_simulated_family_hides_the_real_gpus_of_the_same_family(rig: Rig) -> None:
    install_fake_smi(rig, list_gpus("NVIDIA RTX A5000", "NVIDIA A40"))
    simulate(rig, "gpua5000=2")
    types = {t.family: t for t in await rig.platform.instance_types()}
    assert types["gpua5000"].total_gpus == 2
    assert types["gpu3"].total_gpus == 1


async def test_simulated_gpus_are_handed_out_like_real_ones(rig: Rig, ministral: Path) -> None:
    simulate(rig, "gpua5000=4")
    desired = rig.desired(2, gpu_type="gpua5000", gpu_count=2, model_path=str(ministral))
    observed = await rig.until_ready(desired)
    records = [rig.directory(replica.name) / "record.json" for replica in observed.replicas]
    held = [uuid for path in records for uuid in json.loads(path.read_text())["gpus"]]
    assert sorted(held) == [f"SIM-gpua5000-{number}" for number in range(4)]
    assert gpus_of(rig, observed) == ["", ""], "no engine sees a GPU"
    assert [replica.details for replica in observed.replicas] == ["runs on simulated GPUs"] * 2
    (types, _) = await rig.platform.instance_types()
    assert types.free_gpus == 0


async def test_a_replica_waits_for_a_free_simulated_gpu(rig: Rig, ministral: Path) -> None:
    simulate(rig, "gpua5000=1")
    first = rig.desired(1, gpu_type="gpua5000", model_path=str(ministral))
    await rig.until_ready(first)
    second = rig.desired(
        1,
        gpu_type="gpua5000",
        model_path=str(ministral),
        uid="22222222-2222-4222-8222-222222222222",
    )
    observed = await rig.platform.apply(second)
    assert "waiting for a free GPU" in observed.replicas[0].details


async def test_the_file_is_written_before_the_engine_starts(rig: Rig, ministral: Path) -> None:
    simulate(rig, "gpua5000=1")
    observed = await rig.until_ready(
        rig.desired(1, gpu_type="gpua5000", model_path=str(ministral), model=MINISTRAL)
    )
    directory = rig.directory(observed.replicas[0].name)
    document = json.loads((directory / "simulation.json").read_text())
    assert document["model"] == MINISTRAL


@pytest.mark.parametrize("family", ["cpu", "gpu3"])
async def test_a_simulated_model_does_not_run_on_what_is_real(
    rig: Rig, ministral: Path, family: str
) -> None:
    install_fake_smi(rig, list_gpus("NVIDIA A40"))
    desired = rig.desired(1, gpu_type=family, model_path=str(ministral))
    (replica,) = (await rig.platform.apply(desired)).replicas
    assert replica.phase is ReplicaPhase.FAILED
    assert "weights were not downloaded" in replica.details
    assert rig.processes() == []


async def test_vllm_does_not_run_on_what_is_real(rig: Rig) -> None:
    (replica,) = (await rig.platform.apply(rig.desired(1, engine="vllm"))).replicas
    assert replica.phase is ReplicaPhase.FAILED
    assert "simulated GPUs only" in replica.details


async def test_a_replica_whose_gpus_are_no_longer_simulated_says_so(
    rig: Rig, ministral: Path
) -> None:
    simulate(rig, "gpua5000=1")
    desired = rig.desired(1, gpu_type="gpua5000", model_path=str(ministral))
    observed = await rig.until_ready(desired)
    rig.new_platform()
    pid = observed.replicas[0].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    failed = await rig.until(desired, lambda o: o.replicas[0].phase is ReplicaPhase.FAILED)
    assert "--simulate-gpus gpua5000=N" in failed.replicas[0].details


@pytest.mark.parametrize(
    ("count", "flags"),
    [
        (4, ()),
        (1, ("--max-model-len=60000",)),
        (1, ("--max-model-len=131072", "--kv-cache-dtype=fp8")),
    ],
    ids=["4 GPUs", "shorter context", "FP8 cache"],
)
def test_what_fits_has_the_planners_cache_limits_and_speed(
    ministral: Path, count: int, flags: tuple[str, ...]
) -> None:
    wanted = plan(
        find_model(MINISTRAL),
        find_gpu("gpua5000"),
        count,
        settings_of(flags, engine_version="0.28.0"),
    )
    assert wanted.speed is not None
    document = described(ministral, *flags, gpu_count=count)
    simulation = parse_simulation(document)
    assert simulation.fail is None
    assert simulation.kv_capacity_tokens == wanted.kv_capacity_tokens
    assert simulation.max_model_len == wanted.max_model_len
    assert simulation.max_num_seqs == wanted.max_num_seqs
    assert simulation.step_seconds[0].seconds == wanted.speed.batches[0].inter_token_seconds
    assert simulation.prompt_seconds[0].seconds == wanted.speed.prompts[0].ttft_seconds
    log = log_of(document)
    assert f"available KV cache memory: {wanted.available_kv_bytes_per_gpu / GIB:.2f} GiB" in log
    assert f"KV cache size: {wanted.kv_capacity_tokens:,} tokens" in log
    assert f"{wanted.max_concurrency:.2f}x" in log


def test_what_embeds_starts_though_it_has_no_steps(ministral: Path) -> None:
    document = described(ministral, "--runner=pooling", gpu_count=4)
    simulation = parse_simulation(document)
    assert simulation.fail is None
    assert simulation.prompt_seconds


def test_what_does_not_fit_fails_after_profiling_with_figures_and_a_next_step(
    ministral: Path,
) -> None:
    parameters = settings_of([], engine_version="0.28.0")
    wanted = plan(find_model(MINISTRAL), find_gpu("gpua5000"), 1, parameters)
    document = described(ministral)
    failure = parse_simulation(document).fail
    assert failure is not None
    assert (failure.phase, failure.exit_code) == ("profiling memory", 78)
    assert failure.error.startswith("out of GPU memory: one request of 262144 tokens needs 34.00")
    assert f"--max-model-len={wanted.safe_max_model_len} or less" in failure.error
    available = f"{wanted.available_kv_bytes_per_gpu / GIB:.2f} GiB"
    assert f"available KV cache memory: {available}" in log_of(document)
    assert [phase["name"] for phase in document["phases"]][-1] == "profiling memory"


def test_weights_that_do_not_fit_fail_while_they_are_loaded(ministral: Path) -> None:
    document = described(ministral, gpus="T4=1", model="Qwen/Qwen3-32B")
    failure = parse_simulation(document).fail
    assert failure is not None
    assert failure.phase == "loading weights"
    assert "nothing is left for the KV cache" in failure.error
    assert "more or larger GPUs" in failure.error


def test_rules_other_than_memory_fail_with_their_own_words(ministral: Path) -> None:
    failure = parse_simulation(described(ministral, gpu_count=3)).fail
    assert failure is not None
    assert "heads" in failure.error
    assert "deployment plan" in failure.error


def test_a_model_that_cannot_be_read_fails_and_says_so(tmp_path: Path) -> None:
    def read_model(directory: Path, name: str) -> Architecture:
        raise ModelUnusable(f"{directory} holds no config.json")

    failure = parse_simulation(described(tmp_path, read_model=read_model)).fail
    assert failure is not None
    assert failure.exit_code == 78
    assert "holds no config.json" in failure.error


def test_a_model_that_cannot_be_sized_fails_and_says_so(tmp_path: Path) -> None:
    unknown = read_architecture({"model_type": "frobnicator"}, name="org/frob")
    failure = parse_simulation(described(tmp_path, read_model=lambda *_: unknown)).fail
    assert failure is not None
    assert "cannot size org/frob" in failure.error


def test_flags_that_the_planner_cannot_read_fail_and_say_so(ministral: Path) -> None:
    failure = parse_simulation(described(ministral, "--max-model-len=many")).fail
    assert failure is not None
    assert "--max-model-len" in failure.error
    assert "\n" not in failure.error


def test_a_model_with_files_is_planned_from_them(tmp_path: Path) -> None:
    small = find_model("Qwen/Qwen3-0.6B")
    document = described(tmp_path, "--max-model-len=4096", read_model=lambda *_: small)
    assert document["model"] == MINISTRAL
    parameters = settings_of(["--max-model-len=4096"], engine_version="0.28.0")
    wanted = plan(small, find_gpu("gpua5000"), 1, parameters)
    assert f"weights: {wanted.weights_bytes_per_gpu / GIB:.2f} GiB" in log_of(document)


def test_a_cache_beyond_all_use_is_cut_to_what_can_be_used(tmp_path: Path) -> None:
    small = find_model("Qwen/Qwen3-0.6B")
    flags = ("--max-model-len=1000", "--max-num-seqs=4")
    document = described(tmp_path, *flags, gpus="B300=1", read_model=lambda *_: small)
    assert document["kv_capacity_tokens"] == 4 * 1008


def test_speedup_divides_every_duration(ministral: Path) -> None:
    plain = parse_simulation(described(ministral, "--max-model-len=60000"))
    fast = parse_simulation(described(ministral, "--max-model-len=60000", speedup=100))
    for one, other in ((plain.phases, fast.phases), (plain.step_seconds, fast.step_seconds)):
        assert [each.seconds for each in other] == pytest.approx(
            [each.seconds / 100 for each in one]  # type: ignore[attr-defined]
        )
    assert fast.prompt_seconds[0].seconds == pytest.approx(plain.prompt_seconds[0].seconds / 100)


def test_eager_mode_neither_compiles_nor_captures_graphs(ministral: Path) -> None:
    flags = ("--max-model-len=60000", "--enforce-eager")
    names = [phase["name"] for phase in described(ministral, *flags)["phases"]]
    assert "compiling" not in names
    assert "capturing CUDA graphs" not in names


def test_the_engine_exo_is_planned_by_its_own_rules(ministral: Path) -> None:
    llama = {"model": "meta-llama/Llama-3.1-8B-Instruct"}
    vllm = parse_simulation(described(ministral, "--max-model-len=4096", **llama))
    exo = parse_simulation(described(ministral, "--max-model-len=4096", engine="exo", **llama))
    assert exo.fail is None
    assert (exo.engine, exo.engine_version) == ("exo", get_engine("exo").version)
    assert "compiling" not in [phase.name for phase in exo.phases]
    assert (
        exo.max_num_seqs != vllm.max_num_seqs or exo.kv_capacity_tokens != vllm.kv_capacity_tokens
    )


@pytest.mark.parametrize("gpus", ["gpua5000=8", "B300=8", "H100=8"])
@pytest.mark.parametrize("count", [1, 8])
def test_every_model_of_the_catalogue_gives_a_file_that_the_engine_accepts(
    tmp_path: Path, gpus: str, count: int
) -> None:
    (kind,) = parse_simulated_gpus(gpus)
    simulation = Simulation((kind,))
    fitting = 0
    for name in load_models():
        desired = desired_deployment(
            uid="1", name="x", model=name, model_path=str(tmp_path), gpu_type=kind.family,
            gpu_count=count, replicas=1, engine="vllm",
        )  # fmt: skip
        read: EngineSimulation = parse_simulation(simulation_document(desired, kind, simulation))
        fitting += read.fail is None
    assert fitting > 0
