"""Real starts leave one record each, with what was planned and what was measured."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exo_inference.controller.stores import start_log
from exo_inference.controller.stores.start_log import FileStarts
from exo_inference.errors import StoreError
from exo_inference.planner import find_gpu, find_model, plan
from exo_inference.state_dir import StateDir
from exo_inference.wire import PlanStart, PlanStartList, StartMeasurements
from tests.controller.conftest import Controller
from tests.controller.fakes import GPU_FAMILIES, FakePlatform
from tests.planner.flags import settings_of

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
FLAGS = ["--max-model-len=32000", "--gpu-memory-utilization=0.95"]
REAL = tuple(replace(family, simulated=False) for family in GPU_FAMILIES)
MEASURED: dict[str, Any] = {
    "simulated": False, "device": "cuda", "device_name": "NVIDIA RTX A5000", "dtype": "bfloat16",
    "max_model_len": 32000, "max_num_seqs": 256, "weights_bytes": 16_060_522_496,
    "activation_peak_bytes": None, "available_kv_bytes": 5_000_000_000, "kv_bytes_per_token": 131072,
    "kv_block_size": 16, "num_kv_blocks": 2384, "kv_capacity_tokens": 38144,
    "start_up_seconds": {"loading weights": 31.5}, "of a newer engine": [1],
}  # fmt: skip


@pytest.fixture
def stopped(tmp_path: Path) -> Controller:
    platform = FakePlatform(families=REAL, measured=MEASURED)
    return Controller(StateDir(tmp_path / "state"), platform=platform)


@pytest.fixture
def controller(stopped: Controller) -> Iterator[Controller]:
    with stopped.running():
        stopped.create_model(LLAMA)
        yield stopped


def deploy(controller: Controller, name: str = "chat", **fields: Any) -> str:
    body = {"gpu_type": "gpua5000", "model": {"name": LLAMA}, "inference_engine_parameters": FLAGS}
    return controller.create_deployment(name, **{**body, **fields})


def starts(controller: Controller) -> list[PlanStart]:
    answer = controller.call("GET", "/v2/ai/plan/starts")
    assert answer.status_code == 200, answer.text
    return PlanStartList.model_validate(answer.json()).starts


def recorded(controller: Controller, count: int = 1) -> list[PlanStart]:
    """Wait for so many records; there must not be more when all replicas were asked."""
    controller.wait_for(lambda: len(starts(controller)) >= count)
    return starts(controller)


def passes(controller: Controller, uid: str, count: int = 5) -> None:
    """Wait for so many further looks of the reconciler."""
    looks = controller.platform.applied
    most = len(looks) + count
    controller.wait_for(lambda: len(looks) >= most)


def test_a_start_is_recorded_with_the_plan_of_the_same_inputs(controller: Controller) -> None:
    deploy(controller)
    (start,) = recorded(controller)
    wanted = plan(
        find_model(LLAMA),
        find_gpu("gpua5000"),
        1,
        settings_of(FLAGS, engine_version="0.28.0"),
    )
    assert (start.deployment, start.model, start.gpu_type) == ("chat", LLAMA, "gpua5000")
    assert (start.gpu, start.gpu_count, start.flags) == (wanted.gpu, 1, FLAGS)
    assert (start.engine, start.engine_version) == ("vllm", "0.28.0")
    assert start.predicted is not None
    assert start.predicted.kv_capacity_tokens == wanted.kv_capacity_tokens
    assert start.predicted.components["weights"] == wanted.weights_bytes_per_gpu
    assert start.measured.weights_bytes == MEASURED["weights_bytes"]
    assert start.measured.start_up_seconds == {"loading weights": 31.5}


def test_every_run_is_asked_once(controller: Controller) -> None:
    uid = deploy(controller, replicas=2)
    assert len(recorded(controller, 2)) == 2
    passes(controller, uid)
    controller.client().scale_deployment(id=uid, replicas=3)
    assert {start.replica for start in recorded(controller, 3)} == {"chat-1", "chat-2", "chat-3"}
    passes(controller, uid)
    assert sorted(controller.platform.measured_replicas) == ["chat-1", "chat-2", "chat-3"]


def test_a_restarted_controller_records_no_start_twice(stopped: Controller) -> None:
    with stopped.running() as controller:
        controller.create_model(LLAMA)
        uid = deploy(controller)
        recorded(controller)
    with stopped.running() as controller:
        passes(controller, uid)
        deploy(controller, "other")
        assert [start.deployment for start in recorded(controller, 2)] == ["chat", "other"]


def test_a_replica_that_is_ready_again_without_a_new_run_is_not_recorded_again(
    controller: Controller,
) -> None:
    uid = deploy(controller)
    recorded(controller)
    (replica,) = controller.platform.replicas[uid]
    replica.looks, replica.has_been_ready = -3, False  # as an engine that hangs for a while
    controller.wait_for(lambda: replica.has_been_ready)
    passes(controller, uid)
    deploy(controller, "next")
    assert [start.deployment for start in recorded(controller, 2)] == ["chat", "next"]
    assert controller.platform.measured_replicas == ["chat-1", "next-2"]


def test_a_replica_that_an_update_was_taken_back_for_is_not_recorded_again(
    controller: Controller,
) -> None:
    uid = deploy(controller)
    recorded(controller)
    client, looks = controller.client(), controller.platform.applied
    controller.platform.fails = "wings are missing"
    client.update_deployment(id=uid, inference_engine_parameters=["--max-model-len=16000"])
    controller.wait_for(lambda: "16000" in str(looks[-1].spec.engine_parameters))
    passes(controller, uid)
    client.update_deployment(id=uid, inference_engine_parameters=FLAGS)
    controller.wait_for(lambda: list(looks[-1].spec.engine_parameters) == FLAGS)
    passes(controller, uid)
    controller.platform.fails = None
    deploy(controller, "next")
    assert [start.deployment for start in recorded(controller, 2)] == ["chat", "next"]


@pytest.mark.parametrize(
    "said",
    [
        None,
        {},
        {**MEASURED, "simulated": True},
        {**MEASURED, "weights_bytes": "many"},
        {**MEASURED, "weights_bytes": -1},
        {**MEASURED, "num_kv_blocks": 10**400},
        {**MEASURED, "start_up_seconds": {"loading weights": float("nan")}},
        {**MEASURED, "start_up_seconds": [1]},
    ],
    ids=["silent", "empty", "simulated", "text", "negative", "huge", "nan", "list"],
)
def test_what_was_not_measured_is_not_recorded_and_fails_nothing(
    controller: Controller, said: dict[str, Any] | None
) -> None:
    controller.platform.measured = said
    uid = deploy(controller)
    controller.wait_for(lambda: controller.platform.measured_replicas)
    passes(controller, uid)
    assert controller.client().get_deployment(id=uid)["state"] == "ready"
    controller.platform.measured = MEASURED
    deploy(controller, "next")  # whose start is recorded after that of the first would have been
    assert [start.deployment for start in recorded(controller)] == ["next"]


def test_a_file_that_cannot_be_written_fails_nothing(controller: Controller) -> None:
    controller.state.plan_starts_file.mkdir()
    uid = deploy(controller)
    passes(controller, uid)
    assert controller.client().get_deployment(id=uid)["state"] == "ready"
    assert controller.call("GET", "/v2/ai/plan/starts").status_code == 500


def test_a_model_that_nobody_knows_is_recorded_without_a_prediction(
    controller: Controller,
) -> None:
    controller.create_model("org/m1")
    deploy(controller, model={"name": "org/m1"}, inference_engine_parameters=[])
    (start,) = recorded(controller)
    assert start.predicted is None


def test_starts_need_a_signature(controller: Controller) -> None:
    import requests

    answer = requests.get(f"http://127.0.0.1:{controller.port}/v2/ai/plan/starts", timeout=10)
    assert answer.status_code == 403
    assert controller.call("POST", "/v2/ai/plan/starts").status_code == 405


def make_start(number: int) -> PlanStart:
    return PlanStart(
        id=str(number), deployment="chat", replica=f"chat-{number}", started_at="2026-01-01T00:00:00Z",
        engine="exo", engine_version="0.1.0", model="exo/tiny-chat", gpu="CPU", gpu_type="cpu",
        gpu_count=1, measured=StartMeasurements(),
    )  # fmt: skip


async def test_the_log_keeps_the_last_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_log, "MAX_STARTS", 3)
    log = FileStarts(tmp_path / "plan-starts.jsonl")
    assert await log.read() == []
    for number in range(5):
        await log.append(make_start(number))
    assert [start.id for start in await log.read()] == ["2", "3", "4"]
    assert stat.S_IMODE((tmp_path / "plan-starts.jsonl").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "broken", [b'{"id": "7", "depl', b"\xff\xfe\x00", b"[]", b"null", b"{}", b"\n\n", b"\x85"]
)
async def test_a_broken_line_hides_no_other(tmp_path: Path, broken: bytes) -> None:
    path = tmp_path / "plan-starts.jsonl"
    log = FileStarts(path)
    await log.append(make_start(1))
    path.write_bytes(path.read_bytes() + broken)
    assert [start.id for start in await log.read()] == ["1"]
    await log.append(make_start(2))
    assert [start.id for start in await log.read()] == ["1", "2"]


async def test_a_start_of_a_newer_version_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "plan-starts.jsonl"
    path.write_text('{"form": "of tomorrow"}\n')
    await FileStarts(path).append(make_start(1))
    assert json.loads(path.read_text().splitlines()[0]) == {"form": "of tomorrow"}


async def test_a_full_disk_leaves_the_log_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = FileStarts(tmp_path / "plan-starts.jsonl")
    await log.append(make_start(1))

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(StoreError, match="No space left"):
        await log.append(make_start(2))
    assert [start.id for start in await log.read()] == ["1"]
    assert [path.name for path in tmp_path.iterdir()] == ["plan-starts.jsonl"]
