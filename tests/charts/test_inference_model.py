"""The chart of one model: the claim, the download, and what is done with a token and a checksum."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.charts.rendering import Object, Refused, kinds, notes, only, render, template

CHART = "inference-model"
MINIMAL = ("--set", "model.source=Qwen/Qwen3-0.6B,model.sizeBytes=1503300328")


def job(*arguments: str, scenario: str | None = None) -> Object:
    given = arguments if scenario else (*MINIMAL, *arguments)
    return only(render(CHART, *given, scenario=scenario), "Job")


def pod(*arguments: str, scenario: str | None = None) -> dict[str, Any]:
    spec: dict[str, Any] = job(*arguments, scenario=scenario)["spec"]["template"]["spec"]
    return spec


def claim(*arguments: str, scenario: str | None = None) -> Object:
    given = arguments if scenario else (*MINIMAL, *arguments)
    return only(render(CHART, *given, scenario=scenario), "PersistentVolumeClaim")


@pytest.mark.parametrize("size_bytes", [1, 1_503_300_328, 16_060_522_496, 1_400_000_000_000])
def test_claim_has_room_for_the_model_and_a_tenth_more(size_bytes: int) -> None:
    found = claim("--set", f"model.sizeBytes={size_bytes}")["spec"]["resources"]["requests"]
    wanted = size_bytes + size_bytes // 10 + 1024**3
    assert found["storage"] == f"{math.ceil(wanted / 1024**3)}Gi"


def test_size_that_is_given_wins() -> None:
    found = claim("--set", "storage.size=77Gi")["spec"]["resources"]["requests"]
    assert found["storage"] == "77Gi"


def test_storage_class_is_the_clusters_or_the_named_one_or_none() -> None:
    assert "storageClassName" not in claim()["spec"]
    assert claim(scenario="gated")["spec"]["storageClassName"] == "nfs"
    assert claim(scenario="static-volume")["spec"]["storageClassName"] == ""


def test_claim_goes_with_the_release_unless_it_is_to_be_kept() -> None:
    assert "annotations" not in claim()["metadata"]
    kept = claim("--set", "storage.keep=true")["metadata"]["annotations"]
    assert kept == {"helm.sh/resource-policy": "keep"}


@pytest.mark.parametrize("scenario", ["existing-claim", "download-to-existing-claim"])
def test_existing_claim_is_neither_made_nor_deleted(scenario: str) -> None:
    assert "PersistentVolumeClaim" not in kinds(render(CHART, scenario=scenario))


def test_download_goes_to_a_directory_of_an_existing_claim() -> None:
    spec = pod(scenario="download-to-existing-claim")
    volume = spec["volumes"][0]
    assert volume == {"name": "model", "persistentVolumeClaim": {"claimName": "models"}}
    mount = spec["containers"][0]["volumeMounts"][0]
    assert mount == {"name": "model", "mountPath": "/model", "subPath": "tiny-chat"}
    assert "Job" not in kinds(render(CHART, scenario="existing-claim"))


def test_token_comes_from_a_secret_as_a_file() -> None:
    """Not as an argument, which every process list shows, nor as a variable, which children inherit."""
    spec = pod(scenario="gated")
    (volume,) = [v for v in spec["volumes"] if v["name"] == "token"]
    assert volume["secret"]["secretName"] == "hub-token"
    assert volume["secret"]["items"] == [{"key": "hf", "path": "token"}]
    (container,) = spec["containers"]
    assert "--token-file=/etc/exo/hub/token" in container["args"]
    assert not [e for e in container["env"] if "valueFrom" in e]
    assert not [a for a in pod()["containers"][0]["args"] if "token" in a]


def test_revision_and_checksum_reach_the_download() -> None:
    arguments = pod(scenario="gated")["containers"][0]["args"]
    assert "--revision=0e9e39f249a16976918f6564b8830bc894c89659" in arguments
    assert [a for a in arguments if a.startswith("--checksum=sha256:9f86d0")]
    assert arguments[-2:] == ["--", "meta-llama/Llama-3.1-8B-Instruct"]


def test_progress_is_printed_and_the_end_reported() -> None:
    arguments = pod("--set", "download.progressSeconds=9")["containers"][0]["args"]
    assert "--progress-seconds=9" in arguments
    assert "--report=/dev/termination-log" in arguments


def test_changed_values_make_a_new_job_as_jobs_cannot_change() -> None:
    names = {
        job(*values)["metadata"]["name"]
        for values in (
            (),
            ("--set", "model.revision=main"),
            ("--set", "download.image.tag=v9"),
            ("--set", "download.backoffLimit=1"),
        )
    }
    assert len(names) == 4
    assert job()["metadata"]["name"] == job()["metadata"]["name"]


def test_what_trying_again_does_not_help_ends_the_job() -> None:
    rules = job()["spec"]["podFailurePolicy"]["rules"]
    assert rules[0]["action"] == "FailJob"
    assert rules[0]["onExitCodes"]["values"] == [78]
    assert pod()["restartPolicy"] == "Never"  # which the policy needs


def test_claim_is_the_one_that_a_deployment_names() -> None:
    assert claim()["metadata"]["name"] == "chat"
    assert pod()["volumes"][0]["persistentVolumeClaim"] == {"claimName": "chat"}


def test_notes_end_with_the_next_command() -> None:
    last = notes(CHART, *MINIMAL).splitlines()[-1].strip()
    assert last.startswith("kubectl --namespace inference logs --follow job/chat-")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("model.source=", "model.source is empty"),
        ("model.source=file:///models/a", "a directory of one machine"),
        ("model.sizeBytes=0", "the claim has no size"),
        ("storage.subPath=a", "storage.subPath is for storage.existingClaim only"),
        ("download.enabled=false", "the files would come from nowhere"),
        ("download.image.tag=latest", 'download.image.tag is "latest"'),
    ],
)
def test_wrong_values_are_refused_with_a_reason(values: str, message: str) -> None:
    with pytest.raises(Refused, match=message):
        template(CHART, *MINIMAL, "--set", values)


REFUSED = {
    "model.source=--help": "- model.source: ",
    "model.checksum=abc": "- model.checksum: ",
    "download.image.repository=foo:latest": "- download.image.repository: ",
    "model.revision=--force": "- model.revision: ",
    "storage.accessModes={ReadWrite}": "- storage.accessModes.0: ",
    "storage.size=many": "- storage.size: ",
    "download.token.value=hf_x": "Additional property value is not allowed",
    "storge.size=1Gi": "Additional property storge is not allowed",
}


def test_schema_refuses_wrong_values_and_names_them_all() -> None:
    wrong = [item for values in REFUSED for item in ("--set", values)]
    with pytest.raises(Refused) as refused:
        template(CHART, *MINIMAL, *wrong)
    said = str(refused.value)
    assert [message for message in REFUSED.values() if message not in said] == []
