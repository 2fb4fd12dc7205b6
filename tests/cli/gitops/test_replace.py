"""What is left of a deployment whose replacement is refused, and of APIs that cannot replace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from exo_inference.cli.main import main
from exo_inference.sdk import Client
from tests.cli.fake_api import FakeApi, running_fake_api

from .conftest import COMMIT, UNKNOWN_COMMIT, Exo
from .test_apply import deployment, model, write


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        pytest.param({"gpuCount": 9}, "asks for 9 of cpu, found 8", id="too many GPUs"),
        pytest.param(
            {"gpuType": "gpua500"}, "gpu-type is 'gpua500', expected one of", id="mistyped GPU"
        ),
        pytest.param(
            {"gpuType": "gpua5000", "engineParameters": '["--no-such-flag"]'},
            "no-such-flag",
            id="flag",
        ),
    ],
)
@pytest.mark.parametrize("mode", ["--replace", "--replace=delete-first"])
def test_a_replacement_that_cannot_work_is_refused_before_anything_is_deleted(
    exo: Exo, zone: Client, mode: str, spec: dict[str, object], problem: str
):
    exo("apply", "-f", write(model(), deployment()), "--wait")
    before = zone.deployments.get(zone.deployments.find("chat").id)
    key = zone.deployments.reveal_api_key(before.id)
    file = write(model(), deployment(**spec))
    for more in (["--dry-run"], []):
        ran = exo("apply", "-f", file, mode, "--yes", *more)
        assert ran.code == 1
        assert problem in ran.err
        assert "replaced" not in ran.out
        assert zone.deployments.get(before.id) == before
        assert zone.deployments.reveal_api_key(before.id) == key


def test_dry_run_of_a_replacement_that_works_changes_nothing(exo: Exo, zone: Client):
    exo("apply", "-f", write(model(), deployment()), "--wait")
    before = zone.deployments.get(zone.deployments.find("chat").id)
    ran = exo("apply", "-f", write(deployment(gpuType="gpua5000")), "--replace", "--dry-run")
    assert ran.lines == ["inferencedeployment/chat replaced (server dry run)"]
    assert zone.deployments.get(before.id) == before


def test_what_the_file_does_not_say_stays_when_a_deployment_is_replaced(exo: Exo, zone: Client):
    spec = {"replicas": 3, "engineParameters": '["--max-model-len=64"]'}
    exo("apply", "-f", write(model(), deployment(**spec)))
    exo("apply", "-f", write(deployment(gpuCount=2)), "--replace")
    after = zone.deployments.get(zone.deployments.find("chat").id)
    assert (after.replicas, after.gpu_count) == (3, 2)
    assert after.inference_engine_parameters == ["--max-model-len=64"]


def test_a_stopped_deployment_is_replaced_and_stays_stopped(exo: Exo, zone: Client):
    exo("apply", "-f", write(model(), deployment(replicas=0)))
    file = write(deployment(replicas=0, gpuCount=2))
    assert exo("apply", "-f", file, "--replace").code == 0
    after = zone.deployments.find("chat")
    assert (after.replicas, after.gpu_count) == (0, 2)


def test_delete_first_says_what_is_gone_and_makes_another(exo: Exo, zone: Client):
    exo("apply", "-f", write(model(), deployment()))
    before = zone.deployments.find("chat")
    ran = exo("apply", "-f", write(deployment(gpuCount=2)), "--replace=delete-first", "--yes")
    assert ran.lines == ["inferencedeployment/chat replaced"]
    after = zone.deployments.find("chat")
    assert after.id != before.id
    assert f"its id {before.id}, URL and key end with it" in ran.err


def test_nothing_is_pruned_when_something_failed(exo: Exo, zone: Client):
    """A rename in the files: the new one is refused, so the old one has to stay."""
    exo("apply", "-f", write(model(), deployment("old")))
    file = write(model(), deployment("new", gpuType="h900"))
    for more in (["--dry-run"], []):
        ran = exo("apply", "-f", file, "--prune", "--yes", *more)
        assert ran.code == 1
        assert "inferencedeployment/old was not pruned: inferencedeployment/new failed" in ran.err
        assert [d.name for d in zone.deployments.list()] == ["old"]


def test_a_model_is_not_deleted_for_a_revision_that_is_not_to_be_had(exo: Exo, zone: Client):
    exo("apply", "-f", write(model()), "--wait")
    before = zone.models.find("org/m")
    other = write(model(revision=f'"{COMMIT[::-1]}"'))
    refused = write(model(revision=UNKNOWN_COMMIT), to="refused.yaml")
    for more in (["--dry-run"], []):
        ran = exo("apply", "-f", refused, "--replace", "--yes", *more)
        assert ran.code == 1
        assert "no such revision" in ran.err
        assert zone.models.find("org/m").id == before.id
    assert exo("apply", "-f", other, "--replace", "--yes", "--dry-run").code == 0
    assert zone.models.find("org/m").id == before.id
    assert exo("apply", "-f", other, "--replace", "--yes").code == 0
    assert zone.models.find("org/m").id != before.id


@pytest.fixture
def vendor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeApi]:
    """A fake of an API that has only what the vendor's document has."""
    monkeypatch.chdir(tmp_path)
    with running_fake_api() as api:
        api.answers["GET /v2/ai/status"] = (404, {"message": "no such path"})
        monkeypatch.setenv("EXOSCALE_API_KEY", "EXOk")
        monkeypatch.setenv("EXOSCALE_API_SECRET", "s")
        monkeypatch.setenv("EXOSCALE_API_ENDPOINT", api.endpoint)
        monkeypatch.setenv("EXOSCALE_ZONE", "at-vie-2")
        yield api


def writes(api: FakeApi) -> list[str]:
    return [line for line in api.lines if not line.startswith("GET ")]


def test_an_api_that_cannot_replace_is_left_alone_without_delete_first(
    vendor: FakeApi, capsys: pytest.CaptureFixture[str]
):
    vendor.add_model("org/m1")
    vendor.add_deployment("chat")
    file = write(deployment(model="org/m1", gpuType="gpurtx6000pro", gpuCount=2))
    assert main(["ai", "apply", "-f", file, "--replace", "--yes"]) == 1
    told = capsys.readouterr().err
    assert "cannot be changed by this API; nothing was changed" in told
    assert "--replace=delete-first" in told
    assert "another id, URL and key" in told
    assert writes(vendor) == []


def test_a_mistyped_gpu_is_seen_before_an_api_without_replace_is_asked_to_delete(
    vendor: FakeApi, capsys: pytest.CaptureFixture[str]
):
    vendor.add_model("org/m1")
    vendor.add_deployment("chat")
    file = write(deployment(model="org/m1", gpuType="gpua500", gpuCount=2))
    assert main(["ai", "apply", "-f", file, "--replace=delete-first", "--yes"]) == 1
    assert "there is no GPU type 'gpua500' for the new one" in capsys.readouterr().err
    assert writes(vendor) == []


def test_what_was_deleted_is_created_again_when_its_successor_is_refused(
    vendor: FakeApi, capsys: pytest.CaptureFixture[str]
):
    vendor.add_model("org/m1")
    old = vendor.add_deployment("chat")
    vendor.answers[f"DELETE /v2/ai/deployment/{old['id']}"] = lambda _: delete(vendor)
    bodies: list[dict[str, object]] = []

    def create(body: dict[str, object]) -> tuple[int, object] | None:
        bodies.append(body)
        refused = body["gpu-type"] == "gpurtx6000pro"
        return (412, {"title": "Out of stock", "detail": "none is left"}) if refused else None

    vendor.answers["POST /v2/ai/deployment"] = create
    file = write(deployment(model="org/m1", gpuType="gpurtx6000pro", gpuCount=2))
    assert main(["ai", "apply", "-f", file, "--replace=delete-first", "--yes"]) == 1
    told = capsys.readouterr().err
    assert f"its id {old['id']}, its URL and its key are gone" in told
    assert "none is left" in told
    (again,) = vendor.deployments["/v2"]
    assert f"was created again, with the id {again['id']}" in told
    assert [body["gpu-type"] for body in bodies] == ["gpurtx6000pro", "gpua5000"]


def delete(api: FakeApi) -> tuple[int, object]:
    api.deployments["/v2"].clear()
    return 200, {"id": "00000000-0000-4000-8000-000000000000", "state": "success"}
