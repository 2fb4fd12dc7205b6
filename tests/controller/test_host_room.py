"""Replicas share the memory of one machine: what cannot fit is refused with what can."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from exo_inference.controller.admission.host_room import Reservations, need_of
from exo_inference.controller.admission.problems import Refused
from exo_inference.controller.stores.base import Recording
from exo_inference.controller.stores.sqlite import SqliteStore
from exo_inference.engines.flags import reader
from exo_inference.engines.flags.catalogue import Flag, ReleaseFlags
from exo_inference.engines.flags.values import read_value
from exo_inference.planner import cpu_as_gpu
from exo_inference.platforms.base import InstanceTypeInfo
from exo_inference.platforms.replica_memory import (
    PROCESS_BYTES,
    HostRoom,
    ReplicaNeed,
    read_need,
    tokenizer_bytes,
)
from exo_inference.resources import MEMORY_ANNOTATION, InferenceDeployment, Resource
from exo_inference.resources.settled_spec import note_memory
from exo_inference.state_dir import StateDir
from tests.controller.builders import deployment
from tests.controller.conftest import Controller
from tests.controller.fakes import GPU_FAMILIES, FakePlatform

GIB = 2**30
MODEL = "Qwen/Qwen3-0.6B"


def machine(free: int, cores: int = 4, **held: int) -> tuple[InstanceTypeInfo, ...]:
    """A machine of 64 GiB with a CPU and simulated GPUs."""
    room = HostRoom(64 * GIB, free, held, num_cores=cores)
    cpu = InstanceTypeInfo("cpu", cores, cores, gpu=cpu_as_gpu(64 * GIB), largest_node=1)
    return tuple(replace(each, room=room) for each in (GPU_FAMILIES[0], cpu))


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    controller = Controller(StateDir(tmp_path), FakePlatform(families=machine(60 * GIB)))
    with controller.running():
        assert controller.call("POST", "/v2/ai/model", json={"name": MODEL}).ok
        yield controller


def create(
    controller: Controller, name: str, replicas: int, query: str = "", **more: Any
) -> tuple[int, dict[str, Any]]:
    sent = {"name": name, "model": {"name": MODEL}, "gpu-type": "cpu", "gpu-count": 1}
    sent |= {"replicas": replicas, **more}
    answer = controller.call("POST", f"/v2/ai/deployment{query}", json=sent)
    return answer.status_code, answer.json()


def find(controller: Controller, name: str) -> dict[str, Any]:
    listed = controller.call("GET", "/v2/ai/deployment").json()["deployments"]
    return next(each for each in listed if each["name"] == name)


def largest(answer: dict[str, Any]) -> int:
    found = re.search(r"at most (\d+) fit", answer["message"])
    assert found is not None, answer
    return int(found[1])


@pytest.mark.parametrize("asked", [50, 100])
def test_more_replicas_than_fit_are_refused_with_the_largest_number_that_fits(
    controller: Controller, asked: int
) -> None:
    status, answer = create(controller, "x", asked)
    assert status == 412
    most = largest(answer)
    assert 5 <= most < 50
    assert create(controller, "y", most + 1)[0] == 412
    assert create(controller, "z", most, "?dry-run=dry-run")[0] == 200
    assert create(controller, "z", most)[0] == 200
    status, answer = create(controller, "one-more", 1)
    assert status == 412
    assert "not one fits" in answer["message"] or "does not fit" in answer["message"]


def test_a_flag_is_read_once_on_its_way_to_a_plan(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the draft model, the verdict, and again with the KV cache that the platform gives."""
    read: list[str] = []

    def counting(text: str, flag: Flag, release: ReleaseFlags) -> Any:
        read.append(text)
        return read_value(text, flag, release)

    monkeypatch.setattr(reader, "read_value", counting)
    flags = ["--max-model-len=1117"]
    more = {"inference-engine-parameters": flags}
    answer = create(controller, "read-once", 1, **more)
    assert answer[0] == 200, answer
    assert answer[1]["plan"]["max-model-len"] == 1117
    assert read == ["1117"]


def test_creates_at_once_never_take_the_last_room_twice(controller: Controller) -> None:
    most = largest(create(controller, "x", 100)[1])
    with ThreadPoolExecutor(16) as pool:
        results = list(
            pool.map(lambda number: create(controller, f"d{number}", 2)[0], range(most // 2 + 12))
        )
    assert results.count(200) == most // 2
    assert results.count(412) == 12


@pytest.mark.parametrize("verb", ["scale", "update", "replace"])
def test_changes_at_once_never_take_the_last_room_twice(controller: Controller, verb: str) -> None:
    """Each alone fits, and two together do not."""
    small = ["--kv-cache-memory-bytes=268435456", "--max-model-len=1024"]
    more = {"inference-engine-parameters": small}
    large = ["--kv-cache-memory-bytes=17179869184", "--max-model-len=1024"]
    most = largest(create(controller, "x", 100, **more)[1])
    names = [f"d{number}" for number in range(8)]
    for name in names:
        assert create(controller, name, 1, **more)[0] == 200
    paths = [f"/v2/ai/deployment/{find(controller, name)['id']}" for name in names]

    def change(path: str) -> int:
        if verb == "scale":
            body: dict[str, Any] = {"replicas": (most - len(names)) // 2 + 2}
            return controller.call("POST", f"{path}/scale", json=body).status_code
        body = {"inference-engine-parameters": large}
        if verb == "update":
            return controller.call("PATCH", path, json=body).status_code
        body |= {"model": {"name": MODEL}, "gpu-type": "cpu", "gpu-count": 1}
        return controller.call("PUT", path, json=body).status_code

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(change, paths))
    taken = results.count(200)
    assert 1 <= taken <= 2, results
    assert results.count(412) == len(names) - taken
    assert create(controller, "y", most)[0] == 412


def test_scaling_up_is_judged_and_scaling_down_never(controller: Controller) -> None:
    most = largest(create(controller, "x", 100)[1])
    assert create(controller, "x", most)[0] == 200
    uid = find(controller, "x")["id"]
    path = f"/v2/ai/deployment/{uid}/scale"
    answer = controller.call("POST", path, json={"replicas": most + 1})
    assert answer.status_code == 412
    assert largest(answer.json()) == most
    assert controller.call("POST", f"{path}?force=force", json={"replicas": most + 5}).ok
    assert controller.call("POST", path, json={"replicas": most + 3}).ok, (
        "it takes less than before"
    )
    assert controller.call("POST", path, json={"replicas": 1}).ok
    assert create(controller, "y", most - 1)[0] == 200


def test_an_update_that_takes_more_is_refused(controller: Controller) -> None:
    flags = ["--kv-cache-memory-bytes=1073741824", "--max-model-len=2048"]
    more = {"inference-engine-parameters": flags}
    most = largest(create(controller, "x", 100, **more)[1])
    assert create(controller, "x", most, **more)[0] == 200
    path = f"/v2/ai/deployment/{find(controller, 'x')['id']}"
    larger = {"inference-engine-parameters": ["--kv-cache-memory-bytes=8589934592", flags[1]]}
    answer = controller.call("PATCH", path, json=larger)
    assert answer.status_code == 412
    assert 0 < largest(answer.json()) < most
    smaller = {"inference-engine-parameters": ["--kv-cache-memory-bytes=536870912", flags[1]]}
    assert controller.call("PATCH", path, json=smaller).ok
    assert controller.call("PATCH", f"{path}?force=force", json=larger).ok


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--max-num-seqs=4", "--batch-invariant", "--quantization=fp8"], "leave --quantization out"),
        (["--dtype=float32", "--attention-backend=cpu"], "set --dtype=bfloat16, or leave"),
    ],
)  # fmt: skip
def test_what_the_engine_refuses_on_a_cpu_is_refused_at_its_flag(
    controller: Controller, flags: list[str], told: str
) -> None:
    status, answer = create(controller, "x", 1, **{"inference-engine-parameters": flags})
    assert status == 400
    assert (
        "on a CPU: exo-engine's compiled kernels" in answer["message"]
        or "is not there" in (answer["message"])
    )
    assert told in answer["message"]
    assert "$['inference-engine-parameters'][1]" in str(answer)


def test_room_of_what_may_come_back_is_kept_until_the_smaller_one_has_served() -> None:
    small, large = ReplicaNeed(GIB), ReplicaNeed(8 * GIB)
    stored = deployment(replicas=2)
    metadata = stored.metadata.model_copy(update={"annotations": {MEMORY_ANNOTATION: large.text}})
    before = stored.model_copy(update={"metadata": metadata})
    annotations = {**note_memory(before), MEMORY_ANNOTATION: small.text}
    after = before.model_copy(
        update={
            "spec": before.spec.model_copy(update={"engine_parameters": ("--seed=1",)}),
            "metadata": before.metadata.model_copy(update={"annotations": annotations}),
        }
    )
    room = HostRoom(64 * GIB, 60 * GIB)
    uid = before.metadata.uid
    for settled, planned in ((before, 16 * GIB), (after, 2 * GIB)):
        status = after.status.model_copy(update={"settled_spec": settled.spec.model_dump_json()})
        found = Reservations(room).with_deployments(
            [after.model_copy(update={"status": status})], {}
        )
        assert found.planned(uid) == planned


@pytest.mark.parametrize("verb", ["PATCH", "PUT"])
def test_what_is_scaled_to_0_can_be_changed_on_a_full_machine(
    controller: Controller, verb: str
) -> None:
    assert create(controller, "x", 1)[0] == 200
    path = f"/v2/ai/deployment/{find(controller, 'x')['id']}"
    assert controller.call("POST", f"{path}/scale", json={"replicas": 0}).ok
    assert create(controller, "y", largest(create(controller, "y", 100)[1]))[0] == 200
    body: dict[str, Any] = {"inference-engine-parameters": ["--kv-cache-memory-bytes=4294967296"]}
    if verb == "PUT":
        body |= {"model": {"name": MODEL}, "gpu-type": "cpu", "gpu-count": 1}
    answer = controller.call(verb, path, json=body)
    assert answer.ok, answer.text
    assert controller.call("POST", f"{path}/scale", json={"replicas": 1}).status_code == 412


def test_force_admits_and_says_that_some_will_wait(controller: Controller) -> None:
    status, answer = create(controller, "x", 50, "?force=force")
    assert status == 200
    problems = {each["code"]: each for each in answer["plan"]["problems"]}
    assert "those that do not fit wait" in problems["room"]["detail"]
    assert problems["room"]["refuses"] is False
    assert "50 replicas on the CPU share 4 cores" in problems["cores"]["detail"]
    uid = answer["reference"]["id"]
    events = controller.call("GET", f"/v2/ai/deployment/{uid}/events").json()["events"]
    assert any(e["reason"] == "Planned" and "by force" in e["message"] for e in events)


def test_a_scale_warns_of_the_replicas_that_result(controller: Controller) -> None:
    assert create(controller, "x", 1)[0] == 200
    path = f"/v2/ai/deployment/{find(controller, 'x')['id']}/scale"

    def scale(replicas: int, query: str = "") -> dict[str, dict[str, Any]]:
        answer = controller.call("POST", path + query, json={"replicas": replicas})
        assert answer.ok, answer.text
        return {each["code"]: each for each in answer.json().get("warnings", [])}

    few = scale(6, "?dry-run=dry-run")
    assert list(few) == ["cores"]
    assert few["cores"]["detail"].startswith("6 replicas on the CPU share 4 cores")
    assert few["cores"]["refuses"] is False
    assert scale(4) == {}
    many = scale(50, "?force=force")
    assert "50 replicas on the CPU share 4 cores" in many["cores"]["detail"]
    assert "those that do not fit wait" in many["room"]["detail"]
    events = controller.call("GET", path.replace("/scale", "/events")).json()["events"]
    assert any(e["reason"] == "Planned" and "by force" in e["message"] for e in events)
    assert scale(0) == {}


def test_what_is_deleted_makes_room(controller: Controller) -> None:
    most = largest(create(controller, "x", 100)[1])
    assert create(controller, "x", most)[0] == 200
    assert controller.call("DELETE", f"/v2/ai/deployment/{find(controller, 'x')['id']}").ok
    assert create(controller, "y", most)[0] == 200


def test_simulated_gpus_take_memory_for_their_processes(controller: Controller) -> None:
    controller.platform.families = machine(3 * GIB)
    more = {"gpu-type": "gpua5000", "model": {"name": "Qwen/Qwen3-0.6B"}}
    status, answer = create(controller, "x", 100, **more)
    assert status == 412
    assert 1 <= largest(answer) <= 8


def test_the_cache_of_the_plan_is_what_is_left_divided_by_what_is_planned(
    controller: Controller,
) -> None:
    flags = {"inference-engine-parameters": ["--max-model-len=4096"]}
    sizes = []
    for replicas in (1, 4, 8):
        status, answer = create(controller, "x", replicas, "?dry-run=dry-run", **flags)
        assert status == 200, answer
        sizes.append(answer["plan"]["available-kv-bytes-per-gpu"])
        assert answer["plan"]["parameters"] == flags["inference-engine-parameters"]
    assert sizes[0] > sizes[1] > sizes[2] > 0
    assert sizes[0] <= 30 * GIB


def test_a_plan_sees_what_others_have_left(controller: Controller) -> None:
    def plan() -> dict[str, Any]:
        sent = {"model": {"name": MODEL}, "gpu-type": "cpu", "inference-engine": "exo"}
        return dict(controller.call("POST", "/v2/ai/plan", json=sent).json())

    before = plan()
    assert before["total-bytes-per-gpu"] < 60 * GIB
    assert "speed" not in before
    assert any("bfloat16 alone, not in float32" in note for note in before["notes"])
    assert create(controller, "x", 4)[0] == 200
    assert plan()["total-bytes-per-gpu"] < before["total-bytes-per-gpu"] - 10 * GIB


def test_a_machine_on_which_the_engine_does_not_start_is_refused_in_its_words(
    tmp_path: Path,
) -> None:
    said = "EXO_ENGINE_CPU_KERNELS is 'best', but this machine has only auto, off"
    gpu_family, cpu = machine(60 * GIB)
    cpu = replace(cpu, gpu=replace(cpu_as_gpu(64 * GIB), refusal=said))
    controller = Controller(StateDir(tmp_path), FakePlatform(families=(gpu_family, cpu)))
    with controller.running():
        assert controller.call("POST", "/v2/ai/model", json={"name": MODEL}).ok
        status, answer = create(controller, "x", 1)
        assert (status, said in answer["message"]) == (412, True), answer
        sent = {"model": {"name": MODEL}, "gpu-type": "cpu", "inference-engine": "exo"}
        (problem,) = controller.call("POST", "/v2/ai/plan", json=sent).json()["problems"]
        assert (problem["detail"], problem["location"]) == (said, "$['gpu-type']")


def test_a_replica_on_the_cpu_has_one_gpu(controller: Controller) -> None:
    types = controller.call("GET", "/v2/ai/instance-type").json()["instance-types"]
    cpu = next(each for each in types if each["family"] == "cpu")
    assert cpu["max-gpu-count"] == 1
    status, answer = create(controller, "x", 1, **{"gpu-count": 2})
    assert status in (400, 412)
    assert "ask for 1" in answer["message"]


def test_objects_from_before_are_counted_by_a_guess(controller: Controller) -> None:
    """A deployment that was recorded without its need still takes memory."""
    stored = deployment(replicas=100)
    assert MEMORY_ANNOTATION not in stored.metadata.annotations
    before = largest(create(controller, "x", 100)[1])

    async def write() -> None:
        store = await SqliteStore.open(controller.state.database_file)
        await store.create(stored)
        await store.close()

    asyncio.run(write())
    status, answer = create(controller, "x", 100)
    assert status == 412
    assert "not one fits" in answer["message"] or largest(answer) < before


def stored_annotations(controller: Controller, name: str) -> dict[str, str]:
    async def read() -> dict[str, str]:
        store = await SqliteStore.open(controller.state.database_file)
        found = await store.list(InferenceDeployment)
        await store.close()
        return next(dict(e.metadata.annotations) for e in found if e.metadata.name == name)

    return asyncio.run(read())


def test_a_guess_is_not_recorded(controller: Controller) -> None:
    """A model whose size nobody knew yet does not count as an empty one for ever."""
    assert need_of(deployment(), 20 * GIB).least_bytes > 20 * GIB
    assert create(controller, "known", 1)[0] == 200
    assert MEMORY_ANNOTATION in stored_annotations(controller, "known")
    unheard = {"name": "org/unheard-of"}
    assert controller.call("POST", "/v2/ai/model", json=unheard).ok
    assert create(controller, "x", 1, model=unheard)[0] == 200
    assert MEMORY_ANNOTATION not in stored_annotations(controller, "x")


def test_the_tokenizers_of_a_large_vocabulary_are_counted(controller: Controller) -> None:
    """Of 151,936 tokens: 313 MiB in two processes, beside weights in float32 (2.2 GiB) and processes."""
    assert create(controller, "known", 1)[0] == 200
    need = read_need(stored_annotations(controller, "known")[MEMORY_ANNOTATION])
    assert need is not None
    weights = 4 * 596_000_000
    assert need.fixed_bytes > weights + PROCESS_BYTES + tokenizer_bytes(151_936)


def test_an_update_that_nobody_can_plan_drops_what_was_recorded(controller: Controller) -> None:
    unheard = {"name": "org/unheard-of"}
    assert controller.call("POST", "/v2/ai/model", json=unheard).ok
    stored = deployment()
    stored = stored.model_copy(
        update={
            "metadata": stored.metadata.model_copy(
                update={"uid": str(uuid4()), "annotations": {MEMORY_ANNOTATION: "1/2/3"}}
            ),
            "spec": stored.spec.model_copy(update={"model": "org/unheard-of"}),
        }
    )

    async def write() -> None:
        store = await SqliteStore.open(controller.state.database_file)
        await store.create(stored)
        await store.close()

    asyncio.run(write())
    path = f"/v2/ai/deployment/{stored.metadata.uid}"
    flags = {"inference-engine-parameters": ["--max-model-len=2048"]}
    answer = controller.call("PATCH", path, json=flags)
    assert answer.ok, answer.text
    assert MEMORY_ANNOTATION not in stored_annotations(controller, stored.metadata.name)


async def test_a_guard_undoes_the_whole_write(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "db")

    def only_two(stored: list[Resource]) -> None:
        if len(stored) >= 2:
            raise Refused(412, "Full", "there are two")

    async def create_one(number: int) -> bool:
        new = deployment()
        new.metadata.__dict__.update(uid=f"u{number}", name=f"d{number}")
        try:
            await store.create(new, Recording(secrets={"k": b"v"}, guard=only_two))  # type: ignore[arg-type]
        except Refused:
            return False
        return True

    done = await asyncio.gather(*(create_one(number) for number in range(20)))
    assert done.count(True) == 2
    kept = {each.metadata.uid for each in await store.list(InferenceDeployment)}
    assert len(kept) == 2
    for number in range(20):
        has_secret = await store.get_secret(f"u{number}", "k") is not None
        assert has_secret == (f"u{number}" in kept)
    await store.close()
