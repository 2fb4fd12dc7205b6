"""What create, update and apply say of a plan in passing: of the one that comes with the answer, or that is made here."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exo_inference.cli.plan.notices import tell
from exo_inference.cli.plan.words import size, summary
from exo_inference.planner import cpu_as_gpu, find_gpu, find_model
from exo_inference.preflight import Subject, judge, to_wire
from exo_inference.wire import DeploymentPlan, PlanProblem, PlanVerdict
from tests.cli.conftest import Exo
from tests.cli.fake_api import FakeApi

MINISTRAL = "mistralai/Ministral-3-8B-Instruct-2512"
CREATE = (
    "ai", "deployment", "create", "chat", "--model-name", "org/m1", "--gpu-type", "gpua5000",
    "--gpu-count", "1",
)  # fmt: skip
UPDATE = ("ai", "deployment", "update", "chat")


def plan(*flags: str, gpu_count: int = 1) -> dict[str, Any]:
    """Return a plan as the API sends it."""
    model, gpu = find_model(MINISTRAL), find_gpu("gpua5000")
    return to_wire(judge(Subject(model, gpu, gpu_count, flags))).to_wire()


def tight_plan() -> dict[str, Any]:
    return plan(f"--max-model-len={plan()['largest-max-model-len']}")


def refusal(**more: Any) -> tuple[int, dict[str, Any]]:
    problem = plan()["problems"][0]
    where = {"detail": problem["detail"], "location": "$['inference-engine-parameters']"}
    way_out = {"detail": "--gpu-count=4: 4 GPUs per replica instead of 1"}
    return 412, {
        "title": "Does not fit",
        "status": 412,
        "detail": "1 problem",
        "message": problem["detail"],
        "errors": [where, way_out],
        "plan": plan(),
        **more,
    }


def answers_with(api: FakeApi, found: dict[str, Any]) -> None:
    api.operation = {"state": "success", "plan": found}


def test_a_refusal_has_a_picture_of_the_memory_where_that_is_what_lacks(
    exo: Exo, api: FakeApi
) -> None:
    model = find_model("Qwen/Qwen3-0.6B")
    cpu = cpu_as_gpu(16 * 2**30, kernels="")
    for gpu, flags in ((cpu, ("--batch-invariant",)), (replace(cpu, refusal="no amx here"), ())):
        found = to_wire(judge(Subject(model, gpu, 1, flags, engine="exo"))).to_wire()
        where = {"detail": found["problems"][0]["detail"], "location": "$['gpu-type']"}
        api.answers["POST /v2/ai/deployment"] = refusal(errors=[where], plan=found)
        told = exo(*CREATE).err
        assert where["detail"].split(":")[0] in told
        assert "Memory of the" not in told
    api.answers["POST /v2/ai/deployment"] = refusal()
    assert "Memory of the GPU" in exo(*CREATE).err


@pytest.mark.parametrize("argv", [CREATE, (*UPDATE, "--inference-engine-params", "--x")])
def test_what_fits_is_a_line_on_stderr(exo: Exo, api: FakeApi, argv: tuple[str, ...]) -> None:
    api.add_deployment("chat")
    answers_with(api, plan("--max-model-len=32768"))
    result = exo(*argv)
    assert (result.code, result.out.split()[1]) == (0, argv[2] + "d.")
    assert len(result.out.splitlines()) == 1
    last = result.err.splitlines()[-1]
    assert last.startswith(
        "Fits: 11.3 GiB per GPU for the KV cache, 87,472 tokens, 2.7 requests of"
    )
    assert exo(*argv, "-Q").err == ""


def test_tight_is_a_warning(exo: Exo, api: FakeApi) -> None:
    answers_with(api, tight_plan())
    result = exo(*CREATE)
    assert (result.code, result.out) == (0, "Deployment created.\n")
    assert result.err.splitlines()[-1].startswith("warning: Tight: ")


def test_plan_of_an_operation_that_takes_time_is_kept(exo: Exo, api: FakeApi) -> None:
    api.operation = {"state": "pending", "plan": tight_plan()}
    assert "warning: Tight: " in exo(*CREATE).err


def test_dry_run_prints_the_plan_with_what_could_be_pasted(exo: Exo, api: FakeApi) -> None:
    answers_with(api, tight_plan())
    result = exo(*CREATE, "--dry-run")
    assert result.code == 0
    assert result.out.startswith(f"Tight: {MINISTRAL} on 1 × ")
    assert "exo ai deployment create chat --model-name" in result.out
    assert result.err.endswith("Deployment would be created (dry run).\n")
    assert "warning: Tight" in result.err
    assert api.requests[-1].query == {"dry-run": ["dry-run"]}


@pytest.mark.parametrize("argv", [CREATE, (*UPDATE, "--inference-engine-params", "--x")])
def test_dry_run_prints_json_alone_on_stdout(exo: Exo, api: FakeApi, argv: tuple[str, ...]) -> None:
    api.add_deployment("chat")
    answers_with(api, plan("--max-model-len=8192"))
    result = exo(*argv, "--dry-run", "-O", "json")
    assert json.loads(result.out)["verdict"] == "fits"
    assert exo(*argv, "--dry-run", "--output-template", "{{.MaxModelLen}}").out == "8192"


def test_refusal_of_create_shows_memory_and_what_to_paste(exo: Exo, api: FakeApi) -> None:
    api.answers["POST /v2/ai/deployment"] = refusal()
    result = exo(*CREATE)
    assert (result.code, result.out) == (1, "")
    assert "error: creating deployment" in result.err
    assert "needs 34.00 GiB of KV cache" in result.err
    assert "█ weights" in result.err
    assert "create chat --model-name " in result.err
    assert "--gpu-type gpua5000 --gpu-count 4\n" in result.err
    # The server's own list of ways out is the same, with less to paste.
    assert "--gpu-count=4: 4 GPUs" not in result.err


def test_refusal_of_update_says_what_needs_another_deployment(exo: Exo, api: FakeApi) -> None:
    found = api.add_deployment("chat")
    api.answers[f"PATCH /v2/ai/deployment/{found['id']}"] = refusal()
    result = exo(*UPDATE, "--inference-engine-params", "--enforce-eager")
    assert result.code == 1
    assert "needs another deployment, with --gpu-count=4" in result.err
    assert "exo ai deployment update chat --inference-engine-params '--enforce-eager --max-" in (
        result.err
    )


def test_refusal_without_a_plan_is_as_it_was(exo: Exo, api: FakeApi) -> None:
    status, body = refusal()
    del body["plan"]
    api.answers["POST /v2/ai/deployment"] = (status, body)
    result = exo(*CREATE)
    assert "--gpu-count=4: 4 GPUs" in result.err
    assert "█" not in result.err


def test_force_is_sent(exo: Exo, api: FakeApi) -> None:
    assert exo(*CREATE, "--force").code == 0
    assert api.requests[-1].query == {"force": ["force"]}
    assert exo(*UPDATE, "--inference-engine-params", "--x", "--force").code == 0
    assert api.requests[-1].query == {"force": ["force"]}


def with_model(name: str) -> tuple[str, ...]:
    return tuple(name if word == "org/m1" else word for word in CREATE)


def test_control_plane_that_does_not_plan_gets_a_plan_made_here(exo: Exo, api: FakeApi) -> None:
    result = exo(*with_model(MINISTRAL))
    assert (result.code, result.out) == (0, "Deployment created.\n")
    assert result.err.splitlines()[-1].startswith("warning: Does not fit: one request of 262144")
    flags = ("--inference-engine-params", "--max-model-len=60000")
    assert exo(*with_model(MINISTRAL), *flags).err.splitlines()[-1].startswith("Fits: ")


@pytest.mark.parametrize(
    "argv",
    [
        pytest.param(CREATE, id="model"),
        pytest.param((*with_model(MINISTRAL), "--gpu-type", "gpux"), id="GPU"),
        pytest.param((*with_model(MINISTRAL), "--gpu-type", "cpu"), id="CPU"),
        pytest.param((*with_model(MINISTRAL), "--inference-engine-version", "9.9.9"), id="release"),
    ],
)
def test_nothing_is_said_of_what_is_not_known(
    exo: Exo, api: FakeApi, argv: tuple[str, ...]
) -> None:
    assert exo(*argv).err == 'Creating deployment "chat"...\n'


def test_update_is_planned_here_only_where_the_flags_are_known(exo: Exo, api: FakeApi) -> None:
    model = {"id": "39791b86-f80d-41ed-9cab-854099d4ed37", "name": MINISTRAL}
    api.add_deployment("chat", model=model)
    assert "Fits" not in exo(*UPDATE, "--name", "other").err
    result = exo(*UPDATE, "--inference-engine-params", "--max-model-len=60000")
    assert result.err.splitlines()[-1].startswith("Fits: ")


def manifest(tmp_path: Path, model: str) -> str:
    file = tmp_path / "chat.yaml"
    file.write_text(
        "apiVersion: inference.exo.dev/v1alpha1\n"
        "kind: InferenceDeployment\n"
        "metadata: {name: chat}\n"
        f"spec: {{model: {model}, gpuType: gpua5000, gpuCount: 1}}\n",
        "utf-8",
    )
    return str(file)


def test_apply_tells_the_verdict_of_every_deployment(
    exo: Exo, api: FakeApi, tmp_path: Path
) -> None:
    api.add_model("org/m1")
    answers_with(api, tight_plan())
    argv = ("ai", "apply", "-f", manifest(tmp_path, "org/m1"))
    asked = exo(*argv, "--dry-run=server")
    assert asked.out == "inferencedeployment/chat created (server dry run)\n"
    assert asked.err.startswith("warning: inferencedeployment/chat: Tight: ")
    api.deployments.clear()  # the fake makes it all the same
    (entry,) = json.loads(exo(*argv, "-O", "json").out)
    assert entry["verdict"] == "tight"


def test_apply_plans_here_where_the_control_plane_does_not(
    exo: Exo, api: FakeApi, tmp_path: Path
) -> None:
    api.add_model(MINISTRAL)
    result = exo("ai", "apply", "-f", manifest(tmp_path, MINISTRAL))
    assert (result.code, result.out) == (0, "inferencedeployment/chat created\n")
    assert result.err.startswith("warning: inferencedeployment/chat: Does not fit: ")


def test_apply_has_the_verdict_of_what_is_refused(exo: Exo, api: FakeApi, tmp_path: Path) -> None:
    api.add_model("org/m1")
    api.answers["POST /v2/ai/deployment"] = refusal()
    result = exo("ai", "apply", "-f", manifest(tmp_path, "org/m1"), "-O", "json")
    assert result.code == 1
    (entry,) = json.loads(result.out)
    assert entry["verdict"] == "refused"
    assert "needs 34.00 GiB of KV cache" in entry["error"]


@pytest.mark.parametrize("argv", [CREATE, (*UPDATE, "--inference-engine-params", "--x")])
def test_refused_dry_run_prints_the_plan_for_programs(
    exo: Exo, api: FakeApi, argv: tuple[str, ...]
) -> None:
    uid = api.add_deployment("chat")["id"]
    api.answers["POST /v2/ai/deployment"] = refusal()
    api.answers[f"PATCH /v2/ai/deployment/{uid}"] = refusal()
    result = exo(*argv, "--dry-run", "-O", "json")
    assert result.code == 1
    found = json.loads(result.out)
    assert (found["verdict"], found["problems"][0]["code"]) == ("refused", "memory")
    assert found["advice"]
    error = json.loads(result.err.splitlines()[-1])["error"]
    assert (error["type"], error["plan"]["verdict"]) == ("PreconditionFailed", "refused")
    assert "exo ai deployment" not in result.err  # the plan has the ways out


class FakeSession:
    """Keeps the remarks."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def remark(self, line: str) -> None:
        self.lines.append(line)


@pytest.mark.parametrize(("code", "is_told"), [("cores", True), ("room", True), ("other", False)])
def test_what_the_machine_lacks_for_all_replicas_is_a_warning(code: str, is_told: bool) -> None:
    problem = PlanProblem(code=code, detail="50 replicas share 2 cores", refuses=False)
    plan = DeploymentPlan(
        verdict=PlanVerdict.FITS,
        model="m",
        gpu="CPU",
        gpu_type="cpu",
        gpu_count=1,
        engine="exo",
        engine_version="1",
        problems=[problem],
    )
    said = FakeSession()
    tell(said, plan)  # type: ignore[arg-type]
    assert ("warning: 50 replicas share 2 cores" in said.lines) == is_told


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (10.19 * 2**30, "10.19 GiB"),
        (0.4 * 2**30, "0.40 GiB"),
        (12 * 2**20, "12.0 MiB"),
        (3 * 2**10, "3.0 KiB"),
        (0, "0 GiB"),
    ],
)
def test_little_memory_is_not_said_to_be_none(num_bytes: float, text: str) -> None:
    assert size(num_bytes) == text


def plan_on_a_cpu(verdict: PlanVerdict, **sizes: float) -> DeploymentPlan:
    return DeploymentPlan(
        verdict=verdict, model="m", gpu="CPU", gpu_type="cpu", gpu_count=1,
        engine="exo", engine_version="1", **sizes,
    )  # fmt: skip


def test_the_cache_of_a_small_model_is_told_in_mib() -> None:
    plan = plan_on_a_cpu(PlanVerdict.FITS, available_kv_bytes_per_gpu=12 * 2**20)
    assert summary(plan).startswith("Fits: 12.0 MiB for the KV cache")
    plan = plan.model_copy(update={"gpu": "NVIDIA L40S", "gpu_type": "l40s"})
    assert summary(plan).startswith("Fits: 12.0 MiB per GPU for the KV cache")


def test_a_tight_plan_on_a_cpu_speaks_of_no_gpu() -> None:
    plan = plan_on_a_cpu(
        PlanVerdict.TIGHT, available_kv_bytes_low=2**20, needed_kv_bytes_per_gpu=2**21
    )
    assert "GPU" not in summary(plan)
