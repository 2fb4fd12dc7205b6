"""Deployments that cannot work are refused before they exist, through the vendor's own client."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from exoscale.api.exceptions import ExoscaleAPIClientException

from exo_inference.controller.admission.field_checks import check_version
from exo_inference.controller.admission.fit import describe_plan
from exo_inference.controller.admission.problems import Issue
from exo_inference.state_dir import StateDir
from exo_inference.wire import DeploymentPlan
from tests.controller.conftest import Controller
from tests.controller.fakes import GPU_FAMILIES, FakePlatform

MINISTRAL = "mistralai/Ministral-3-8B-Instruct-2512"
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    state = StateDir(tmp_path_factory.mktemp("admission") / "state")
    made = Controller(state, platform=FakePlatform(families=GPU_FAMILIES))
    with made.running():
        for name in (MINISTRAL, LLAMA, "org/unheard-of"):
            made.create_model(name)
        yield made


def body(**changes: Any) -> dict[str, Any]:
    whole = {
        "name": "m",
        "gpu_type": "gpua5000",
        "gpu_count": 1,
        "replicas": 1,
        "model": {"name": MINISTRAL},
    }
    flags = {"inference_engine_parameters": list(changes.pop("flags", ()))}
    return {**whole, **changes, **(flags if flags["inference_engine_parameters"] else {})}


def refusal(controller: Controller, **changes: Any) -> tuple[int, dict[str, Any]]:
    """Create a deployment with the vendor's client; it must be refused."""
    before = controller.client().list_deployments()["deployments"]
    with pytest.raises(ExoscaleAPIClientException) as caught:
        controller.client().create_deployment(**body(**changes))
    assert controller.client().list_deployments()["deployments"] == before
    response = caught.value.response
    return response.status_code, response.json()


def create(controller: Controller, query: str = "", **changes: Any) -> dict[str, Any]:
    """Create a deployment, return the answer and delete it again."""
    wire = {key.replace("_", "-"): value for key, value in body(**changes).items()}
    answer = controller.call("POST", f"/v2/ai/deployment{query}", json=wire)
    assert answer.status_code == 200, answer.text
    operation: dict[str, Any] = answer.json()
    if "reference" in operation:
        uid = operation["reference"]["id"]
        operation["events"] = controller.call("GET", f"/v2/ai/deployment/{uid}/events").json()
        controller.client().delete_deployment(id=uid)
        controller.wait_for(lambda: not controller.client().list_deployments()["deployments"])
    return operation


def planned(operation: dict[str, Any]) -> dict[str, Any]:
    (event,) = [each for each in operation["events"]["events"] if each["reason"] == "Planned"]
    return dict(event)


@pytest.mark.parametrize(("gpu_type", "where"), [("cpu", ": "), ("gpua5000", " per GPU: ")])
def test_what_a_plan_gives_is_per_gpu_where_there_is_one(gpu_type: str, where: str) -> None:
    document = {"verdict": "fits", "model": "m", "gpu": "g", "gpu-type": gpu_type, "gpu-count": 1}
    engine = {"engine": "exo", "engine-version": "1", "total-bytes-per-gpu": 1}
    plan = DeploymentPlan.model_validate({**document, **engine})
    assert f"MiB of KV cache{where}" in describe_plan(plan)


def test_memory_that_is_not_there_is_refused_with_the_three_known_ways_out(
    controller: Controller,
) -> None:
    status, problem = refusal(controller)
    assert (status, problem["title"]) == (412, "Deployment not created")
    assert problem["detail"].startswith(
        f"{MINISTRAL} does not fit 1 x gpua5000: one request of 262144 tokens needs 34.00 GiB"
    )
    assert problem["detail"].endswith("Any one of these makes it fit:")
    lines = [entry["detail"] for entry in problem["errors"]]
    assert not [entry for entry in problem["errors"] if "location" in entry]
    assert any(line.startswith("--gpu-count=4: ") for line in lines)
    assert any(line.startswith("--inference-engine-params='--max-model-len=") for line in lines)
    assert any("--kv-cache-dtype=fp8" in line and "--max-model-len=1" in line for line in lines)
    assert problem["plan"]["verdict"] == "refused"
    assert len(problem["plan"]["advice"]) >= len(lines)
    assert all(line in problem["message"] for line in lines)


def test_every_way_out_is_admitted_when_it_is_pasted(controller: Controller) -> None:
    _, problem = refusal(controller)
    for entry in problem["errors"]:
        words = shlex.split(entry["detail"].partition(": ")[0])
        options = dict(word.removeprefix("--").split("=", 1) for word in words)
        if "model-name" in options:
            continue  # a checkpoint that is not here
        operation = create(
            controller,
            gpu_count=int(options.get("gpu-count", 1)),
            gpu_type=options.get("gpu-type", "gpua5000"),
            flags=shlex.split(options.get("inference-engine-params", "")),
        )
        assert operation["plan"]["verdict"] == "fits", entry
        assert planned(operation)["type"] == "Normal"


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"gpu_count": 4}, id="4 GPUs"),
        pytest.param({"flags": ["--max-model-len=60000"]}, id="60000 tokens"),
        pytest.param({"flags": ["--kv-cache-dtype=fp8", "--max-model-len=131072"]}, id="FP8"),
    ],
)
def test_the_ways_out_of_the_guide_are_admitted(
    controller: Controller, changes: dict[str, Any]
) -> None:
    operation = create(controller, **changes)
    assert operation["plan"]["verdict"] == "fits"
    assert operation["plan"]["engine"] == "vllm"
    assert planned(operation)["message"].startswith("fits: ")


def test_ways_out_name_only_what_the_machine_has(controller: Controller) -> None:
    _, problem = refusal(controller)
    types = {advice["plan"]["gpu-type"] for advice in problem["plan"]["advice"]}
    assert types <= {"gpua5000", "gpurtx6000pro", "gpu2"}
    counts = {advice["plan"]["gpu-count"] for advice in problem["plan"]["advice"]}
    assert max(counts) <= 8


def test_force_admits_what_memory_refuses_and_records_a_warning(controller: Controller) -> None:
    operation = create(controller, "?force=force")
    assert operation["plan"]["verdict"] == "refused"
    event = planned(operation)
    assert event["type"] == "Warning"
    assert event["message"].startswith("refused, and admitted by force: one request of 262144")


def test_force_never_admits_a_wrong_flag(controller: Controller) -> None:
    wire = {key.replace("_", "-"): value for key, value in body(flags=["--nope"]).items()}
    answer = controller.call("POST", "/v2/ai/deployment?force=force", json=wire)
    assert answer.status_code == 400
    answer = controller.call("POST", "/v2/ai/deployment?force=perhaps", json=wire)
    assert answer.json()["errors"][0]["location"] == "$['force']"


def test_a_dry_run_answers_the_plan_and_records_nothing(controller: Controller) -> None:
    operation = create(controller, "?dry-run=dry-run", flags=["--max-model-len=60000"])
    assert "reference" not in operation
    assert operation["plan"]["kv-capacity-tokens"] > 60000


def test_flags_memory_and_capacity_are_reported_together(controller: Controller) -> None:
    status, problem = refusal(
        controller, name="No!", gpu_count=9, model={"name": LLAMA}, flags=["--max-modle-len=9"]
    )
    assert status == 400
    assert problem["detail"] == f"{len(problem['errors'])} problems"
    found = [(entry.get("location"), entry["detail"][:26]) for entry in problem["errors"]]
    assert found == [
        ("$['name']", "'No!' is not a deployment "),
        ("$['inference-engine-parameters'][0]", "--max-modle-len is not a f"),
        ("$['gpu-count']", "tensor parallelism of 9 do"),
        ("$['gpu-count']", "asks for 9 of gpua5000, fo"),
    ]


@pytest.mark.parametrize(
    ("size", "end"),
    [
        ("900000000000", "set --kv-cache-memory-bytes=12939270026 or less"),
        ("900", "or leave it out"),
    ],
    ids=["too much", "too little"],
)
def test_a_flag_that_is_wrong_for_the_memory_is_the_way_out_and_not_another_model(
    controller: Controller, size: str, end: str
) -> None:
    flags = [f"--kv-cache-memory-bytes={size}"]
    status, problem = refusal(controller, flags=flags)
    assert (status, problem["detail"].endswith(end)) == (412, True), problem["detail"]


def test_memory_beside_other_problems_still_says_what_would_fit(controller: Controller) -> None:
    status, problem = refusal(controller, name="No!")
    assert status == 400
    assert problem["detail"] == "2 problems"
    lines = [entry["detail"] for entry in problem["errors"]]
    assert lines[1].startswith(f"{MINISTRAL} does not fit")
    assert lines[2].startswith("to make it fit: --")


def test_a_family_that_runs_vllm_takes_flags_of_its_release(controller: Controller) -> None:
    _, problem = refusal(
        controller, flags=["--swap-space=4"], inference_engine_version="0.28.0", gpu_count=4
    )
    (entry,) = problem["errors"]
    assert "0.28.0" in entry["detail"]
    assert problem["detail"] == "1 problem"
    _, problem = refusal(controller, inference_engine_version="0.1.0", flags=["--swap-space=4"])
    (entry,) = problem["errors"]
    assert entry["location"] == "$['inference-engine-version']"


def test_a_checkpoint_that_the_gpu_cannot_run_points_at_the_gpu_type(
    controller: Controller,
) -> None:
    _, problem = refusal(controller, gpu_type="gpu2", flags=["--max-model-len=1024"])
    assert {entry.get("location") for entry in problem["errors"]} >= {"$['gpu-type']"}


def test_what_exo_engine_cannot_run_is_refused(controller: Controller) -> None:
    status, problem = refusal(controller, gpu_type="cpu", model={"name": MINISTRAL})
    assert status == 412
    assert "exo-engine" in problem["message"]


def test_an_unknown_model_is_admitted_with_a_warning(controller: Controller) -> None:
    operation = create(controller, model={"name": "org/unheard-of"})
    assert operation["plan"]["verdict"] == "unknown"
    event = planned(operation)
    assert event["type"] == "Warning"
    assert "not in the bundled catalogue" in event["message"]


def test_an_update_is_judged_by_its_new_flags(controller: Controller) -> None:
    client = controller.client()
    operation = client.create_deployment(**body(name="up", flags=["--max-model-len=60000"]))
    uid = operation["reference"]["id"]
    path = f"/v2/ai/deployment/{uid}"
    longer = {"inference-engine-parameters": ["--max-model-len=262144"]}
    refused = controller.call("PATCH", path, json=longer)
    assert refused.status_code == 412
    ways = [entry["detail"] for entry in refused.json()["errors"]]
    assert ways
    assert all(way.startswith("--inference-engine-params=") for way in ways)
    assert "plan" in controller.call("PATCH", f"{path}?dry-run=dry-run", json={"name": "v"}).json()
    assert controller.call("PATCH", f"{path}?force=force", json=longer).status_code == 200
    # What was admitted before is not refused when something else changes, or when it is repeated.
    assert controller.call("PATCH", path, json={"name": "up2"}).status_code == 200
    assert controller.call("PATCH", path, json={}).status_code == 200
    assert controller.call("PATCH", path, json=longer).status_code == 200
    assert controller.call("POST", f"{path}/scale", json={"replicas": 2}).status_code == 200
    events = controller.call("GET", f"{path}/events").json()["events"]
    assert [each["type"] for each in events if each["reason"] == "Planned"] == ["Normal", "Warning"]
    client.delete_deployment(id=uid)
    controller.wait_for(lambda: not client.list_deployments()["deployments"])


def test_the_engine_of_a_deployment_is_that_of_its_family(controller: Controller) -> None:
    client = controller.client()
    uid = client.create_deployment(**body(name="e", gpu_count=4))["reference"]["id"]
    shown = client.get_deployment(id=uid)
    assert shown["inference-engine"] == f"vllm {shown['inference-engine-version']}"
    wire = {key.replace("_", "-"): value for key, value in body(gpu_count=4).items()}
    answer = controller.call("POST", "/v2/ai/deployment", json={**wire, "inference-engine": "tgi"})
    assert answer.json()["errors"][0]["detail"].endswith('enumeration ["exo","vllm"]')
    client.delete_deployment(id=uid)
    controller.wait_for(lambda: not client.list_deployments()["deployments"])


@pytest.mark.parametrize("version", ["0.33.0", "0.29.0"])
def test_releases_after_the_enumeration_are_admitted_if_they_can_be_judged(version: str) -> None:
    issues: list[Issue] = []
    assert check_version(version, "vllm", issues) == version
    assert bool(issues) == (version == "0.29.0")
    assert all('"0.28.0","0.33.0"]' in issue.detail.replace(" ", "") for issue in issues)
