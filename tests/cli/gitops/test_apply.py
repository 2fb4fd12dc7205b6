from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest

from exo_inference.planner import cpu_as_gpu
from exo_inference.platforms.base import DesiredDeployment, InstanceTypeInfo, ObservedDeployment
from exo_inference.platforms.replica_memory import HostRoom
from exo_inference.sdk import Client

from .conftest import COMMIT, Exo, InstantPlatform, RunningController

HEAD = "apiVersion: inference.exo.dev/v1alpha1\n"


def model(source: str = "org/m", **spec: str) -> str:
    lines = "".join(f"  {key}: {value}\n" for key, value in spec.items())
    name = re.sub("[^a-z0-9]+", "-", source)
    return f"{HEAD}kind: InferenceModel\nmetadata: {{name: {name}}}\nspec:\n  source: {source}\n{lines}"


def deployment(name: str = "chat", **spec: object) -> str:
    fields = {"model": "org/m", "gpuType": "cpu", **spec}
    lines = "".join(f"  {key}: {value}\n" for key, value in fields.items())
    return f"{HEAD}kind: InferenceDeployment\nmetadata: {{name: {name}}}\nspec:\n{lines}"


def write(*documents: str, to: str = "all.yaml") -> str:
    path = Path(to)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("---\n".join(documents))
    return to


def test_objects_are_created_models_first_and_then_unchanged(exo: Exo, zone: Client):
    file = write(deployment(replicas=2, engineParameters='["--max-model-len=64"]'), model())
    first = exo("apply", "-f", file)
    assert (first.code, first.err) == (0, "")
    assert first.lines == ["inferencemodel/org/m created", "inferencedeployment/chat created"]
    made = zone.deployments.get(zone.deployments.find("chat").id)
    assert (made.replicas, made.gpu_count) == (2, 1)
    assert made.inference_engine_parameters == ["--max-model-len=64"]
    again = exo("apply", "-f", file)
    assert again.lines == ["inferencemodel/org/m unchanged", "inferencedeployment/chat unchanged"]


def test_a_secret_of_a_cluster_is_refused_with_what_to_use_instead(exo: Exo, zone: Client):
    ran = exo("apply", "-f", write(model(tokenSecret="{name: hub, key: token}")))
    assert ran.code == 2
    assert "all.yaml:1: spec.tokenSecret names a Secret of a cluster" in ran.err
    assert "--huggingface-token-file or HF_TOKEN" in ran.err
    assert zone.models.list() == []


def test_changes_are_made_in_place_and_unnamed_fields_are_left(exo: Exo, zone: Client):
    exo("apply", "-f", write(model(), deployment(replicas=2, engineParameters='["--seed=1"]')))
    before = zone.deployments.find("chat")
    ran = exo("apply", "-f", write(model(), deployment(engineParameters='["--seed=2"]')))
    assert ran.lines[1] == "inferencedeployment/chat configured"
    after = zone.deployments.get(before.id)
    assert after.inference_engine_parameters == ["--seed=2"]
    assert after.replicas == 2
    exo("apply", "-f", write(model(), deployment(replicas=3, engineParameters="[]")))
    after = zone.deployments.get(before.id)
    assert after.inference_engine_parameters == []
    assert after.replicas == 3


async def two_cores(platform: InstantPlatform) -> list[InstanceTypeInfo]:
    room = HostRoom(64 * 2**30, 60 * 2**30, {}, num_cores=2)
    gpu = cpu_as_gpu(64 * 2**30)
    return [InstanceTypeInfo("cpu", 2, 2, gpu=gpu, largest_node=1, room=room)]


@pytest.mark.parametrize("more", [(), ("--dry-run",), ("-O", "json")], ids=["real", "dry", "json"])
@pytest.mark.parametrize(
    ("before", "after", "flags", "warned"),
    [
        (1, 3, "[]", 3),
        (3, 4, '["--seed=2"]', 4),
        (3, 2, '["--seed=2"]', None),
        (3, 3, '["--seed=2"]', 3),
    ],
    ids=["scale alone", "update and scale", "down to the cores", "update alone"],
)
def test_the_warning_counts_the_replicas_that_result(
    exo: Exo,
    zone: Client,
    monkeypatch: pytest.MonkeyPatch,
    before: int,
    after: int,
    flags: str,
    warned: int | None,
    more: tuple[str, ...],
):
    monkeypatch.setattr(InstantPlatform, "instance_types", two_cores)
    exo("apply", "-f", write(model(), deployment(replicas=before)))
    wanted = deployment(replicas=after, engineParameters=flags)
    ran = exo("apply", "-f", write(model(), wanted), *more)
    assert ran.code == 0, ran.err
    counts = re.findall(r"warning: inferencedeployment/chat: (\d+) replicas on the CPU", ran.err)
    assert counts == ([] if warned is None else [str(warned)]), ran.err


def test_scale_warns_of_more_replicas_than_cores(
    exo: Exo, zone: Client, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(InstantPlatform, "instance_types", two_cores)
    exo("apply", "-f", write(model(), deployment()))
    told = "warning: 3 replicas on the CPU share 2 cores"
    assert told in exo("deployment", "scale", "chat", "3", "--dry-run").err
    ran = exo("deployment", "scale", "chat", "3", "-O", "json")
    assert told in ran.err
    assert "warning" not in exo("deployment", "scale", "chat", "2").err


def test_directories_and_several_files_are_one_set(exo: Exo, zone: Client):
    write(model(), to="base/models/m.yml")
    write(deployment("a"), to="base/a.yaml")
    other = write(deployment("b"), to="b.yaml")
    ran = exo("apply", "-f", "base", "-f", other)
    assert [line.split()[0] for line in ran.lines] == [
        "inferencemodel/org/m",
        "inferencedeployment/a",
        "inferencedeployment/b",
    ]


def test_standard_input_is_read(exo: Exo, zone: Client, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(model()))
    assert exo("apply", "-f", "-").lines == ["inferencemodel/org/m created"]


def test_wrong_files_change_nothing_and_name_every_line(exo: Exo, zone: Client):
    file = write(model(), deployment(gpuTyp="cpu"), deployment("b", replicas="many"))
    ran = exo("apply", "-f", file)
    assert ran.code == 2
    assert "2 problems in the manifests; nothing was changed" in ran.err
    assert f"{file}:13: spec.gpuTyp is unknown; did you mean gpuType?" in ran.err
    assert f"{file}:21: spec.replicas must be a whole number" in ran.err
    assert zone.models.list() == []


def test_deployment_of_a_model_that_is_nowhere_is_refused_beforehand(exo: Exo, zone: Client):
    ran = exo("apply", "-f", write(model("org/other"), deployment()))
    assert ran.code == 2
    assert "spec.model org/m is neither in the files nor in the zone" in ran.err
    assert zone.models.list() == []


def test_model_of_the_zone_need_not_be_in_the_files(exo: Exo, zone: Client):
    exo("apply", "-f", write(model()))
    assert exo("apply", "-f", write(deployment())).lines == ["inferencedeployment/chat created"]


def test_refusal_of_the_server_is_told_and_the_others_go_on(exo: Exo, zone: Client):
    file = write(
        model(), deployment("bad", engineParameters='["--no-such-flag"]'), deployment("good")
    )
    ran = exo("apply", "-f", file)
    assert ran.code == 1
    assert ran.lines == ["inferencemodel/org/m created", "inferencedeployment/good created"]
    assert "no-such-flag" in ran.err
    assert [d.name for d in zone.deployments.list()] == ["good"]


def test_several_failures_are_all_printed_and_counted(exo: Exo, zone: Client):
    file = write(model(), deployment("a", gpuType="h900"), deployment("b", gpuCount=99))
    ran = exo("apply", "-f", file)
    assert ran.code == 1
    assert 'creating deployment "a"' in ran.err
    assert 'creating deployment "b"' in ran.err
    assert "2 of 3 objects could not be applied" in ran.err


def test_deployment_of_a_model_that_failed_is_not_tried(exo: Exo, zone: Client):
    ran = exo("apply", "-f", write(model("no-slash"), deployment(model="no-slash")))
    assert ran.code == 1
    assert "inferencedeployment/chat was not tried: its model no-slash failed" in ran.err
    assert zone.deployments.list() == []


def test_dry_run_of_the_server_changes_nothing_and_asks_for_admission(exo: Exo, zone: Client):
    exo("apply", "-f", write(model()))
    ran = exo("apply", "-f", write(model(), deployment()), "--dry-run")
    assert ran.lines == [
        "inferencemodel/org/m unchanged (server dry run)",
        "inferencedeployment/chat created (server dry run)",
    ]
    refused = exo("apply", "-f", write(model(), deployment(gpuType="h900")), "--dry-run")
    assert refused.code == 1
    assert "gpu-type" in refused.err
    assert zone.deployments.list() == []


def test_dry_run_passes_over_what_cannot_be_asked_yet(exo: Exo, zone: Client):
    ran = exo("apply", "-f", write(model(), deployment()), "--dry-run")
    assert ran.code == 0
    assert len(ran.lines) == 2
    assert zone.models.list() == []


def test_dry_run_of_the_client_asks_nobody(exo: Exo, zone: Client):
    ran = exo("apply", "-f", write(model(), deployment(gpuType="h900")), "--dry-run=client")
    assert ran.code == 0
    assert ran.lines[1] == "inferencedeployment/chat created (client dry run)"
    assert zone.models.list() == []


@pytest.mark.parametrize(
    ("field", "value"), [("gpuType", "gpua5000"), ("gpuCount", 2), ("model", "org/n")]
)
def test_what_cannot_change_in_place_needs_replace(exo: Exo, zone: Client, field: str, value):
    exo("apply", "-f", write(model(), model("org/n"), deployment(gpuCount=1)))
    before = zone.deployments.find("chat").id
    file = write(
        model(), model("org/n"), deployment(**{"gpuCount": 1, field: value, "replicas": 2})
    )
    refused = exo("apply", "-f", file, "--yes")
    assert refused.code == 1
    assert "these fields need --replace; nothing was changed" in refused.err
    assert f"inferencedeployment/chat: {field}: " in refused.err
    assert "--replace" in refused.err
    assert zone.deployments.find("chat").id == before
    key = zone.deployments.reveal_api_key(before)
    ran = exo("apply", "-f", file, "--replace")
    assert ran.lines[-1] == "inferencedeployment/chat replaced"
    after = zone.deployments.get(before)
    assert {"gpuType": after.gpu_type, "gpuCount": after.gpu_count, "model": after.model.name}[
        field
    ] == value
    assert after.replicas == 2
    assert zone.deployments.reveal_api_key(before) == key
    assert exo("apply", "-f", file).lines[-1] == "inferencedeployment/chat unchanged"


def test_prune_deletes_only_kinds_of_the_files_and_deployments_first(exo: Exo, zone: Client):
    everything = [model(), model("org/n"), deployment(), deployment("old", model="org/n")]
    exo("apply", "-f", write(*everything), "--wait")
    only_deployments = exo("apply", "-f", write(deployment()), "--prune", "--yes", "--wait")
    assert only_deployments.lines == [
        "inferencedeployment/chat unchanged",
        "inferencedeployment/old deleted (pruned)",
    ]
    assert len(zone.models.list()) == 2
    exo("apply", "-f", write(*everything))
    both = exo("apply", "-f", write(model(), deployment()), "--prune", "--yes", "--wait")
    assert both.code == 0
    assert both.lines[-2:] == [
        "inferencedeployment/old deleted (pruned)",
        "inferencemodel/org/n deleted (pruned)",
    ]
    assert [m.name for m in zone.models.list()] == ["org/m"]


def test_nothing_is_pruned_without_the_flag(exo: Exo, zone: Client):
    exo("apply", "-f", write(model(), deployment()))
    exo("apply", "-f", write(model("org/n")))
    assert len(zone.models.list()) == 2


def test_model_that_is_needed_is_not_pruned(exo: Exo, zone: Client):
    exo("apply", "-f", write(model()))
    ran = exo("apply", "-f", write(model("org/n"), deployment()), "--prune", "--yes")
    assert ran.code == 2
    assert "spec.model org/m would be pruned: it is in none of the files" in ran.err


@pytest.mark.parametrize(("answer", "left"), [("y\n", 1), ("n\n", 2), ("\n", 2)])
def test_prune_asks_first(exo: Exo, zone: Client, monkeypatch, answer: str, left: int):
    exo("apply", "-f", write(model(), deployment(), deployment("old")))
    monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
    ran = exo("apply", "-f", write(deployment()), "--prune", "--wait")
    assert "delete inferencedeployment/old?" in ran.out
    assert len(zone.deployments.list()) == left


def test_prune_with_files_from_stdin_needs_yes(exo: Exo, zone: Client, monkeypatch):
    exo("apply", "-f", write(model(), deployment(), deployment("old")))
    monkeypatch.setattr(sys, "stdin", io.StringIO(deployment()))
    ran = exo("apply", "-f", "-", "--prune")
    assert ran.code == 2
    assert "--yes" in ran.err
    assert len(zone.deployments.list()) == 2


def test_wait_returns_when_everything_is_ready(exo: Exo, zone: Client):
    ran = exo("apply", "-f", write(model(), deployment()), "--wait", "--timeout", "20s")
    assert ran.code == 0
    assert zone.deployments.find("chat").state == "ready"


def test_wait_that_runs_out_has_an_exit_code_of_its_own(exo: Exo, zone: Client):
    ran = exo("apply", "-f", write(model(), deployment("never")), "--wait", "--timeout", "500ms")
    assert ran.code == 8
    assert '"never" is not ready after' in ran.err


def test_wait_fails_early_when_a_model_is_not_to_be_had(exo: Exo, zone: Client):
    ran = exo("apply", "-f", write(model("org/missing")), "--wait", "--timeout", "60s")
    assert ran.code in (1, 8)
    assert "org/missing" in ran.err


def test_stopped_deployment_is_created_and_stays_stopped(
    exo: Exo, zone: Client, controller: RunningController, monkeypatch: pytest.MonkeyPatch
):
    file = write(model(), deployment(replicas=0))
    asked: list[int] = []
    apply = controller.platform.apply

    async def note(desired: DesiredDeployment) -> ObservedDeployment:
        asked.append(desired.spec.replicas)
        return await apply(desired)

    monkeypatch.setattr(controller.platform, "apply", note)
    exo("apply", "-f", file)
    found = zone.deployments.find("chat")
    zone.deployments.wait_until_scaled(found.id, timeout=60)
    assert set(asked) == {0}
    assert [each.reason for each in zone.deployments.events(found.id)].count("Scaled") == 0
    assert zone.deployments.find("chat").replicas == 0
    assert exo("apply", "-f", file).lines[1] == "inferencedeployment/chat unchanged"


def test_branch_of_a_model_is_pinned_and_then_left(exo: Exo, zone: Client):
    exo("apply", "-f", write(model(revision="main")), "--wait")
    assert exo("apply", "-f", write(model(revision="main"))).lines == [
        "inferencemodel/org/m unchanged"
    ]
    same = exo("apply", "-f", write(model(revision=f'"{COMMIT}"')))
    assert same.lines == ["inferencemodel/org/m unchanged"]
    other = exo("apply", "-f", write(model(revision=f'"{COMMIT[::-1]}"')))
    assert other.code == 1
    assert "revision" in other.err


def test_json_lists_every_object_with_its_changes(exo: Exo, zone: Client):
    exo("apply", "-f", write(model(), deployment(replicas=1)))
    zone.deployments.wait_until_ready(zone.deployments.find("chat").id, timeout=60)  # it has a URL
    ran = exo("apply", "-f", write(model(), deployment(replicas=2)), "-O", "json")
    entries = ran.json
    assert isinstance(entries, list)
    standing = [[entry.pop(key) for key in ("id", "state", "deployment_url")] for entry in entries]
    (model_id, *_), (deployment_id, _, url) = standing
    assert (model_id, deployment_id) == (
        zone.models.find("org/m").id,
        zone.deployments.find("chat").id,
    )
    assert url.endswith(f"/{deployment_id}/v1")
    assert entries == [
        {
            "kind": "InferenceModel",
            "name": "org/m",
            "action": "unchanged",
            "changes": [],
            "dry_run": None,
            "error": None,
            "verdict": None,
        },
        {
            "kind": "InferenceDeployment",
            "name": "chat",
            "action": "update",
            "changes": [{"field": "replicas", "before": 1, "after": 2}],
            "dry_run": None,
            "error": None,
            "verdict": None,
        },
    ]


def test_unreachable_control_plane_ends_at_once(exo: Exo, zone: Client, monkeypatch):
    monkeypatch.setenv("EXOSCALE_API_KEY", "EXOk")
    monkeypatch.setenv("EXOSCALE_API_SECRET", "s")
    monkeypatch.setenv("EXOSCALE_API_ENDPOINT", "http://127.0.0.1:9/v2")
    ran = exo("apply", "-f", write(model()))
    assert ran.code == 1
    assert "cannot connect to 127.0.0.1:9" in ran.err
