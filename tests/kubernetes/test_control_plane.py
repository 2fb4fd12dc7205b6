"""The control plane installed by its chart on a whole cluster: real pods, driven by the command line.

Controllers, gateways, downloads and engines run from the project's images. A stream of requests goes
through the gateways' Service in the background, as users' requests would.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby

import httpx
import pytest
import yaml

from scripts.kubernetes.control import Control
from tests.kubernetes.real_plane import (
    CHART,
    EXAMPLES,
    FAIL_OVER_SECONDS,
    MISSING_TEMPLATE,
    VALUES,
    Plane,
    ask,
    chat,
    clear,
    create_chat,
    has_restarted,
    installed,
    kill,
    leader_of,
    pod_of,
    restart,
    wait_for,
)
from tests.kubernetes.stand import Stand
from tests.kubernetes_api import cluster_namespace


@pytest.fixture(scope="module")
def stand(
    kubernetes_control: Control, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stand[Plane]]:
    """The control plane, installed as the README says, on a volume that this machine lends."""

    @contextmanager
    def put_up(number: int) -> Iterator[Plane]:
        directory = tmp_path_factory.mktemp("plane")
        (directory / "values.yaml").write_text(yaml.safe_dump(VALUES))
        files = [EXAMPLES / "values" / "kind.yaml", directory / "values.yaml"]
        with cluster_namespace(kubernetes_control, directory) as cluster:
            plane = Plane(cluster, directory)
            with installed(plane, CHART, files):
                yield plane

    stand = Stand(put_up)
    yield stand
    stand.close()


@pytest.fixture
def plane(stand: Stand[Plane], request: pytest.FixtureRequest) -> Iterator[Plane]:
    """The module's control plane, which nobody else uses meanwhile and in which nothing is left."""
    num_failed = request.session.testsfailed
    with stand.lend() as plane:
        yield plane
        if request.session.testsfailed > num_failed:  # it may have broken what the next would meet
            stand.close()
            return
        plane.cluster.control.mend()
        plane.cluster.control.wait_ready(plane.cluster.client)
        clear(plane)


def test_a_deployment_lives_from_creation_to_deletion_without_losing_a_request(
    plane: Plane,
) -> None:
    create_chat(plane)
    assert plane.ready("engine") == 2
    assert chat(plane.openai()).strip()
    assert plane.exo("chat", "chat", "Hello", "--max-tokens", "8").stdout.strip()
    with plane.streaming() as stream:
        plane.exo("deployment", "scale", "chat", "3", "--wait")
        assert plane.ready("engine") == 3
        with plane.counting() as counts:
            update = ["deployment", "update", "chat", "--wait"]
            plane.exo(*update, "--inference-engine-params=--max-model-len=512")
            assert plane.show()["state"] == "ready"
            # Admission cannot know which files an image has.
            bad = f"--inference-engine-params={MISSING_TEMPLATE}"
            failed = plane.exo(*update, bad, check=False)
            assert failed.returncode != 0
            assert "cannot read the chat template" in failed.stdout + failed.stderr
            wait_for(lambda: len(plane.pods("engine")) == plane.ready("engine") == 3)
            shown = plane.show()
            assert shown["state"] == "error"
            assert "the update was rolled back" in shown["state_details"]
            assert "cannot read the chat template" in shown["state_details"]
            plane.exo(*update, "--inference-engine-params=--max-model-len=512")
            assert plane.show()["state"] == "ready"
        assert len(counts) > 20
        assert min(counts) >= 3
        plane.exo("deployment", "scale", "chat", "1", "--wait")
        wait_for(lambda: len(plane.pods("engine")) == 1)
    assert stream.failures == []
    assert stream.outcomes["answered"] > 20
    plane.exo("deployment", "scale", "chat", "0", "--wait")
    wait_for(lambda: not plane.pods("engine"))
    refused = httpx.get(
        f"{plane.address('exo-gateway')}/chat/v1/models",
        headers={"Authorization": f"Bearer {plane.key}"},
    )
    assert refused.status_code == 503
    assert "scaled to 0" in refused.text
    plane.exo("deployment", "scale", "chat", "1", "--wait")
    assert chat(plane.openai()).strip()
    plane.exo("deployment", "delete", "chat", "--force", "--wait")
    wait_for(
        lambda: not plane.get("deployments.apps", "app.kubernetes.io/name=inference-deployment")
    )
    plane.exo("model", "delete", "exo/tiny-chat", "--force", "--wait")
    wait_for(lambda: not plane.get("jobs"))


def test_after_a_roll_back_what_served_comes_back_whatever_a_hand_deletes(plane: Plane) -> None:
    create_chat(plane, replicas=1)
    update = ["deployment", "update", "chat", "--wait"]
    failed = plane.exo(*update, f"--inference-engine-params={MISSING_TEMPLATE}", check=False)
    assert "the update was rolled back" in failed.stdout + failed.stderr

    def serves_without(before: list[str]) -> bool:
        now = plane.pods("engine")
        return len(now) == plane.ready("engine") == 1 and not set(now) & set(before)

    wait_for(lambda: serves_without([]))
    served = plane.pods("engine")
    plane.exo("deployment", "restart", "chat")
    wait_for(lambda: serves_without(served))
    restarted, uid = plane.pods("engine"), plane.show()["id"]
    plane.cluster.kubectl("delete", "deployment", f"exo-d-{uid}")
    wait_for(lambda: serves_without(restarted))
    assert chat(plane.openai()).strip()
    shown = plane.show()
    assert (shown["state"], shown["ready_replicas"]) == ("error", 1)
    assert "the update was rolled back" in shown["state_details"]
    assert "cannot read the chat template" in shown["state_details"]

    plane.cluster.kubectl("delete", "secret", f"exo-{uid}-api-key")
    told = plane.exo("deployment", "reveal-api-key", "chat", check=False)
    assert "nothing else has it" in told.stderr
    restart(plane, "controller")  # another leader makes no other key, either
    plane.exo("deployment", "scale", "chat", "2", "--wait")
    assert chat(plane.openai()).strip()


def test_kubectl_does_the_same(plane: Plane) -> None:
    plane.cluster.kubectl("apply", "-f", str(EXAMPLES / "manifests"))
    wait = ["wait", "inferencedeployment/chat", "--for=condition=Ready", "--timeout=120s"]
    plane.cluster.kubectl(*wait, timeout=130)
    assert plane.ready("engine") == 2
    assert chat(plane.openai()).strip()
    plane.cluster.kubectl("scale", "inferencedeployment/chat", "--replicas=1")
    wait_for(lambda: len(plane.pods("engine")) == 1)
    good = yaml.safe_load((EXAMPLES / "manifests" / "chat.yaml").read_text())
    wrong = {**good, "spec": {**good["spec"], "engineParameters": ["--no-such-flag"]}}
    plane.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(wrong))
    plane.cluster.kubectl(
        "wait", "inferencedeployment/chat", "--for=condition=Admitted=False", "--timeout=30s"
    )
    assert chat(plane.openai()).strip()
    plane.cluster.kubectl("delete", "inferencedeployment", "chat", "--timeout=90s", timeout=100)
    assert plane.pods("engine") == []
    plane.cluster.kubectl("delete", "inferencemodel", "tiny-chat", "--timeout=60s", timeout=70)


def test_requests_go_on_when_pods_are_deleted_and_processes_killed(plane: Plane) -> None:
    create_chat(plane)
    with plane.streaming() as stream:
        plane.cluster.kubectl("delete", "pod", plane.pods("engine")[0], "--wait=false")
        wait_for(lambda: plane.ready("engine") == 2 and len(plane.pods("engine")) == 2)
        leader = leader_of(plane)
        killed = time.monotonic()
        kill(plane, pod_of(leader), "controller")
        wait_for(lambda: leader_of(plane) not in ("", leader), 40)
        assert time.monotonic() - killed < FAIL_OVER_SECONDS + 5
        plane.exo("deployment", "scale", "chat", "3", "--wait")
        plane.cluster.kubectl("delete", "pod", plane.pods("gateway")[0], "--wait=false")
        wait_for(lambda: plane.ready("gateway") == 2 and len(plane.pods("gateway")) == 2)
        plane.helm("upgrade", "exo", str(CHART), "--reuse-values", "--set=gateway.drainSeconds=25")
        rollout = ("rollout", "status", "deployment/exo-gateway", "--timeout=120s")
        plane.cluster.kubectl(*rollout, timeout=130)
    assert stream.failures == []
    first, second = plane.pods("gateway")
    kills = []
    with plane.streaming() as stream:
        for pod, container in ((first, "gateway"), (first, "gateway-1"), (second, "gateway")):
            answered = stream.outcomes["answered"]
            kills.append(kill(plane, pod, container))
            wait_for(lambda answered=answered: stream.outcomes["answered"] > answered + 5)
            wait_for(lambda pod=pod, container=container: has_restarted(plane, pod, container))
    # None but those in flight at the time, of which each client has at most one.
    for failed, said in zip(stream.failed, stream.failures, strict=True):
        assert any(failed[0] < gone and began < failed[1] for began, gone in kills), said


def test_requests_go_on_when_controllers_gateways_and_replicas_are_restarted(plane: Plane) -> None:
    create_chat(plane)
    with plane.streaming() as stream:
        before = set(plane.pods("engine"))
        plane.exo("deployment", "restart", "chat", "--wait")
        assert plane.show()["state"] == "ready"
        assert before.isdisjoint(plane.pods("engine"))
        restart(plane, "controller")
        restart(plane, "gateway")
        plane.exo("deployment", "scale", "chat", "3", "--wait")
    assert stream.failures == []
    assert stream.outcomes["answered"] > 20


def test_requests_go_on_when_the_model_of_a_deployment_is_replaced(plane: Plane) -> None:
    create_chat(plane)
    plane.exo("model", "create", "exo/tiny-draft", "--wait")
    before = plane.show()
    manifest = plane.directory / "chat.yaml"
    manifest.write_text(plane.exo("deployment", "show", "chat", "-O", "yaml").stdout)
    wanted = yaml.safe_load(manifest.read_text())
    wanted["spec"]["model"] = "exo/tiny-draft"
    manifest.write_text(yaml.safe_dump(wanted))
    with (
        plane.streaming() as stream,
        plane.asking("exo/tiny-chat") as old,
        plane.asking("exo/tiny-draft") as new,
    ):
        plane.exo("apply", "-f", str(manifest), "--replace", "--wait")
        after = plane.show()
        wait_for(lambda: old[-1] == "model_not_found")
    assert stream.failures == []
    # Each model is found as long as one replica has it, and by everybody: no answer follows a refusal of the
    # old one, no refusal an answer of the new one.
    assert [outcome for outcome, _ in groupby(old)] == ["answered", "model_not_found"]
    assert [outcome for outcome, _ in groupby(new)] == ["model_not_found", "answered"]
    assert old.index("model_not_found") > 20
    assert after["state"] == "ready"
    for field_name in ("id", "deployment_url"):
        assert after[field_name] == before[field_name]
    assert ask(plane.openai(), "exo/tiny-draft").strip()


def test_requests_go_on_while_the_api_server_hangs_and_after(plane: Plane) -> None:
    """A Service without ready pods refuses connections, so the gateways are asked without theirs."""
    create_chat(plane)
    found = plane.get("pods", "app.kubernetes.io/component=gateway")
    port = found[0]["spec"]["containers"][0]["ports"][0]["containerPort"]
    gateways = [f"http://{pod['status']['podIP']}:{port}" for pod in found]
    plane.openai()  # the key, while it can be asked for
    with plane.streaming(gateways) as stream:
        plane.cluster.control.pause("kube-apiserver")
        time.sleep(30)
        during = stream.outcomes["answered"]
        plane.cluster.control.resume("kube-apiserver")
        plane.cluster.control.wait_ready(plane.cluster.client)
        wait_for(lambda: plane.ready("engine") == 2 and plane.ready("gateway") == 2)
        wait_for(lambda: plane.ready("controller") == 2)
        plane.exo("deployment", "scale", "chat", "3", "--wait")
    assert stream.failures == []
    assert during > 20
