"""Two controllers as processes on one real API server, with the real platform: real Helm, no nodes.

What nodes and the cluster's own controllers would do (run a download, run pods) is done by hand.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from exo_inference.controller.settings import read_settings
from exo_inference.errors import ConfigurationError
from exo_inference.resources import ADMITTED_ANNOTATION as ADMITTED
from exo_inference.resources import InferenceDeployment
from tests.controller.control_plane_processes import (
    CREDENTIALS,
    GROUP,
    LEASE,
    MERGE,
    ControlPlane,
    alone,
    environment,
    plane,
    wait_for,
)

__all__ = ["alone", "plane"]  # fixtures

FAIL_OVER_SECONDS = 20.0

# -- settings


def test_the_environment_of_the_chart_makes_the_settings(tmp_path: Path) -> None:
    settings = read_settings(
        ["--platform=kubernetes", "--namespace=models"], environment("pod-1", tmp_path)
    )
    assert settings.cluster is not None
    assert (settings.zone, settings.port) == ("at-vie-2", 8080)
    assert settings.cluster.pod.inference_namespace == "models"
    assert (settings.cluster.charts_dir / "inference-deployment" / "Chart.yaml").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"EXO_LEASE": ""}, "EXO_LEASE is not set"),
        ({"EXO_ZONE": "mars-1"}, "EXO_ZONE is 'mars-1'"),
        ({"EXO_LISTEN_PORT": "99999"}, "EXO_LISTEN_PORT is '99999'"),
        ({"EXO_GATEWAY_URL": " "}, "EXO_GATEWAY_URL is not set"),
    ],
)
def test_a_wrong_environment_is_named(
    changes: dict[str, str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read_settings(["--platform=kubernetes"], environment("pod-1", tmp_path, **changes))


def test_two_start_at_once_and_share_lease_keys_and_credentials(plane: ControlPlane) -> None:
    assert [process.is_leading for process in plane.processes].count(True) == 1
    for process in plane.processes:
        assert plane.call(process, "GET", "/ai/deployment") == {"deployments": []}
    assert len(plane.secret("exo-inference-secret-key")["secret.key"]) == 32
    lease = plane.api.request("GET", plane.path("leases", LEASE, "coordination.k8s.io/v1"))
    assert lease["spec"]["holderIdentity"].startswith(f"{plane.leader.name}_")


def test_what_one_accepts_the_leader_installs_and_both_show(plane: ControlPlane) -> None:
    plane.create_ready_model()
    uid = plane.create_deployment(plane.other)
    (installed,) = wait_for(plane.deployments, seconds=60)
    assert installed["metadata"]["labels"]["inference.exo.dev/deployment-uid"] == uid
    path = plane.path("inferencedeployments", "chat")
    status = wait_for(lambda: plane.api.request("GET", path).get("status"))
    key = plane.call(plane.leader, "GET", f"/ai/deployment/{uid}/api-key")["api-key"]
    assert plane.call(plane.other, "GET", f"/ai/deployment/{uid}/api-key")["api-key"] == key
    assert len(status["keySha256"]) == 64
    wait_for(lambda: plane.api.request("GET", path)["status"]["selector"])
    scale = plane.api.request("GET", f"{path}/scale")
    assert scale["status"]["selector"] == f"inference.exo.dev/deployment-uid={uid}"
    plane.call(plane.other, "DELETE", f"/ai/deployment/{uid}")
    wait_for(lambda: not plane.deployments(), seconds=60)
    wait_for(lambda: plane.call(plane.other, "GET", "/ai/deployment")["deployments"] == [])


def test_when_the_leader_is_killed_the_other_goes_on(plane: ControlPlane) -> None:
    plane.create_ready_model()
    leader, other = plane.leader, plane.other
    leader.popen.send_signal(signal.SIGKILL)
    killed = time.monotonic()
    uid = plane.create_deployment(other)  # the API is answered all the time
    wait_for(lambda: other.is_leading, seconds=FAIL_OVER_SECONDS)
    assert time.monotonic() - killed < FAIL_OVER_SECONDS
    (installed,) = wait_for(plane.deployments, seconds=60)
    assert installed["metadata"]["labels"]["inference.exo.dev/deployment-uid"] == uid


def test_a_leader_that_is_stopped_hands_over_at_once(plane: ControlPlane) -> None:
    leader, other = plane.leader, plane.other
    leader.popen.send_signal(signal.SIGTERM)
    assert leader.popen.wait(20) == 0
    wait_for(lambda: other.is_leading, seconds=9)  # before the Lease would have lapsed
    for line in leader.log.read_text().splitlines():
        assert {"time", "level", "message"} <= json.loads(line).keys()


def test_a_paused_leader_ends_its_term_and_answers_on(plane: ControlPlane) -> None:
    leader, other = plane.leader, plane.other
    leader.popen.send_signal(signal.SIGSTOP)
    wait_for(lambda: other.is_leading)
    leader.popen.send_signal(signal.SIGCONT)
    wait_for(lambda: not leader.is_leading and leader.probe("/readyz")[0] == 200)
    assert plane.call(leader, "GET", "/ai/deployment") == {"deployments": []}
    assert other.is_leading


@pytest.mark.parametrize(
    ("wrong", "mended", "message"),
    [
        (
            {"engineParameters": ["--max-model-lenn=512"]},
            {"engineParameters": ["--max-model-len=512"]},
            "max-model-len",
        ),
        ({"engine": {"name": "exo", "version": "9.9.9"}}, {"engine": {"name": "exo"}}, "9.9.9"),
    ],
    ids=["flag", "version"],
)
def test_what_kubectl_applied_wrongly_is_refused_until_it_is_mended(
    plane: ControlPlane, wrong: dict[str, Any], mended: dict[str, Any], message: str
) -> None:
    plane.create_ready_model()
    plane.apply("chat", **wrong)
    admitted = wait_for(lambda: plane.conditions("chat").get("Admitted"))
    assert (admitted["status"], admitted["reason"]) == ("False", "SpecRefused")
    assert message in admitted["message"]
    (shown,) = plane.call(plane.other, "GET", "/ai/deployment")["deployments"]
    assert shown["state"] == "error"
    assert plane.deployments() == []
    plane.apply("chat", **mended)
    wait_for(plane.deployments, seconds=60)
    assert plane.conditions("chat")["Admitted"]["status"] == "True"


def read_deployment(plane: ControlPlane, name: str) -> InferenceDeployment:
    """Return a deployment with its own specification, to compute what anybody can."""
    raw = plane.api.request("GET", plane.path("inferencedeployments", name))
    return InferenceDeployment.model_validate(
        {
            "metadata": {"name": name, "annotations": raw["metadata"]["annotations"]},
            "spec": raw["spec"],
            "status": raw.get("status") or {},
        }
    )


def test_force_of_the_api_holds_and_what_kubectl_writes_of_it_is_worth_nothing(
    plane: ControlPlane,
) -> None:
    plane.create_ready_model()
    plane.set_node_memory("16Mi")
    plane.create_deployment(plane.other, "forced", "?force=force")
    (installed,) = wait_for(plane.deployments, seconds=60)
    wait_for(lambda: read_deployment(plane, "forced").status.admitted_spec)
    forced = read_deployment(plane, "forced")
    assert forced.status.admitted_spec == forced.spec.full_digest
    texts = (forced.spec.digest, forced.spec.full_digest, forced.metadata.annotations[ADMITTED])
    spec = {"engine": {"name": forced.spec.engine.name}}
    for number, text in enumerate(texts):
        name = f"forged-{number}"
        plane.apply(name, {ADMITTED: text}, **spec)
        admitted = wait_for(lambda name=name: plane.conditions(name).get("Admitted"))
        assert read_deployment(plane, name).spec.full_digest == forced.spec.full_digest
        assert (admitted["status"], admitted["reason"]) == ("False", "SpecRefused"), text
        plane.api.kubectl("delete", "idep", name)
    assert [item["metadata"]["uid"] for item in plane.deployments()] == [
        installed["metadata"]["uid"]
    ]


def test_what_an_earlier_version_admitted_runs_on(plane: ControlPlane) -> None:
    plane.create_ready_model()
    plane.create_deployment(plane.other)
    wait_for(plane.deployments, seconds=60)
    wait_for(lambda: read_deployment(plane, "chat").status.admitted_spec)
    before = plane.deployments()[0]
    leader, other = plane.leader, plane.other
    leader.popen.send_signal(signal.SIGSTOP)  # nobody acts on what an earlier version wrote
    short = read_deployment(plane, "chat").spec.digest
    path = plane.path("inferencedeployments", "chat")
    client = plane.api.client
    client.request("PATCH", path, {"metadata": {"annotations": {ADMITTED: short}}}, MERGE)
    client.request("PATCH", f"{path}/status", {"status": {"admittedSpec": short}}, MERGE)
    plane.set_node_memory("16Mi")  # judged now it would be refused
    leader.popen.kill()
    wait_for(lambda: other.is_leading, seconds=FAIL_OVER_SECONDS)
    wait_for(lambda: len(read_deployment(plane, "chat").status.admitted_spec) == 64)
    assert plane.conditions("chat")["Admitted"]["status"] == "True"
    (after,) = plane.deployments()
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["spec"] == before["spec"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [({"gpuType": "gpuh1000"}, "gpuh1000"), ({"gpuCount": 64}, "64")],
    ids=["unknown GPU", "too many"],
)
def test_what_no_node_has_is_refused(
    plane: ControlPlane, spec: dict[str, Any], message: str
) -> None:
    plane.create_ready_model()
    plane.apply("chat", **spec)
    admitted = wait_for(lambda: plane.conditions("chat").get("Admitted"))
    assert admitted["status"] == "False"
    assert message in admitted["message"]
    assert plane.deployments() == []


def test_a_model_of_one_machine_is_refused_on_a_cluster(plane: ControlPlane) -> None:
    body = {
        "apiVersion": GROUP,
        "kind": "InferenceModel",
        "metadata": {"name": "mine"},
        "spec": {"source": "file:///srv/model"},
    }
    plane.api.kubectl("apply", "-f", "-", stdin=json.dumps(body))

    def failed() -> Any:
        found = plane.api.request("GET", plane.path("inferencemodels", "mine"))
        return [
            item["message"]
            for item in found.get("status", {}).get("conditions", ())
            if item["type"] == "Failed" and item["status"] == "True"
        ]

    assert "directory of one machine" in wait_for(failed)[0]


def test_figures_are_refused_with_the_names_that_prometheus_has(plane: ControlPlane) -> None:
    for process in plane.processes:
        for path in ("/ai/usage", "/ai/metrics"):
            found = plane.send(process, "GET", path)
            assert found.status_code == 412
            assert "exo_gateway_requests_total" in found.text
            assert "exo_gateway_tokens_total" in found.text


def test_an_administrators_own_credentials_are_used(alone: ControlPlane) -> None:
    data = {"api-key": "EXOmine", "api-secret": "secret"}
    body = {"metadata": {"name": CREDENTIALS}, "stringData": data}
    alone.api.request("POST", alone.path("secrets", group=""), body)
    process = alone.start("controller-1")
    wait_for(lambda: process.probe("/readyz")[0] == 200, seconds=40)
    assert alone.call(process, "GET", "/ai/deployment") == {"deployments": []}
    assert alone.secret(CREDENTIALS) == data


def test_credentials_without_a_key_end_the_process_with_the_reason(alone: ControlPlane) -> None:
    body = {"metadata": {"name": CREDENTIALS}, "stringData": {"api-key": "EXOmine"}}
    alone.api.request("POST", alone.path("secrets", group=""), body)
    process = alone.start("controller-1")
    assert process.popen.wait(40) == os.EX_CONFIG
    assert "has no api-key and api-secret" in process.log.read_text().splitlines()[-1]


def test_a_lost_key_of_the_secrets_ends_the_process_and_nothing_is_written(
    plane: ControlPlane,
) -> None:
    for process in plane.processes:
        process.popen.kill()
        process.popen.wait(10)
    path = plane.path("secrets", "exo-inference-secret-key", "")
    plane.api.request("DELETE", path)
    process = plane.start("controller-3")
    assert process.popen.wait(40) == os.EX_CONFIG
    assert "is missing" in process.log.read_text().splitlines()[-1]
    assert plane.api.kubectl("get", "secret", path.rpartition("/")[2], check=False).returncode != 0


def test_wrong_platform_values_end_the_process_with_the_reason(alone: ControlPlane) -> None:
    (alone.directory / "platform.json").write_text('{"gpus": {}}')
    process = alone.start("controller-1")
    assert process.popen.wait(40) == os.EX_CONFIG
    assert "unknown 'gpus'" in process.log.read_text().splitlines()[-1]
