"""The chart of one deployment: what each value makes of the engine's pods and of what is around them."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from tests.charts.rendering import Object, Refused, kinds, notes, only, render, template

CHART = "inference-deployment"
MINIMAL = ("--set", "model.source=a/b,model.claimName=weights")


def deployment(*arguments: str, scenario: str | None = None) -> Object:
    given = arguments if scenario else (*MINIMAL, *arguments)
    return only(render(CHART, *given, scenario=scenario), "Deployment")


def pod(*arguments: str, scenario: str | None = None) -> dict[str, Any]:
    spec: dict[str, Any] = deployment(*arguments, scenario=scenario)["spec"]["template"]["spec"]
    return spec


def engine(*arguments: str, scenario: str | None = None) -> dict[str, Any]:
    (container,) = pod(*arguments, scenario=scenario)["containers"]
    assert container["name"] == "engine"
    found: dict[str, Any] = container
    return found


def variables(container: dict[str, Any]) -> dict[str, str | None]:
    return {item["name"]: item.get("value") for item in container["env"]}


@pytest.mark.parametrize(
    ("size_bytes", "rate"),
    [(0, 100_000_000), (1, 100_000_000), (16_060_522_496, 100_000_000), (1_400_000_000_000, 7)],
    ids=["unknown size", "one byte", "8B", "slow"],
)
def test_startup_probe_gives_the_time_to_read_the_model(size_bytes: int, rate: int) -> None:
    values = f"model.sizeBytes={size_bytes},startup.bytesPerSecond={rate}"
    container = engine("--set", values)
    seconds = 300 + math.ceil(size_bytes / rate)
    probe = container["startupProbe"]
    assert probe["failureThreshold"] == math.ceil(seconds / 5)
    assert probe["periodSeconds"] == 5
    progress = deployment("--set", values)["spec"]["progressDeadlineSeconds"]
    assert progress > probe["failureThreshold"] * probe["periodSeconds"]


def test_probes_ask_the_adapter_for_readiness_and_for_progress() -> None:
    container = engine()
    found = {
        kind: (container[kind]["httpGet"]["path"], container[kind]["httpGet"]["port"])
        for kind in ("startupProbe", "readinessProbe", "livenessProbe")
    }
    assert found == {
        "startupProbe": ("/health", "probes"),
        "readinessProbe": ("/health", "probes"),
        "livenessProbe": ("/live", "probes"),
    }
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": 8000, "probes": 8001}


def test_pod_lives_long_enough_to_leave_the_service_and_to_drain() -> None:
    spec = pod("--set", "drain.preStopSeconds=7,drain.timeoutSeconds=40")
    (container,) = spec["containers"]
    assert container["lifecycle"]["preStop"] == {"sleep": {"seconds": 7}}
    assert variables(container)["EXO_DRAIN_SECONDS"] == "40"
    assert spec["terminationGracePeriodSeconds"] == 7 + 40 + 30


@pytest.mark.parametrize(("gpus", "shm"), [(0, 1024), (1, 1024), (2, 2048), (8, 8192)])
def test_shared_memory_grows_with_tensor_parallelism(gpus: int, shm: int) -> None:
    spec = pod("--set", f"gpu.count={gpus}")
    (volume,) = [v for v in spec["volumes"] if v["name"] == "shm"]
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": f"{shm}Mi"}
    (container,) = spec["containers"]
    assert variables(container)["EXO_TENSOR_PARALLEL_SIZE"] == str(max(1, gpus))
    assert variables(container)["EXO_DEVICE"] == ("cuda" if gpus else "cpu")


@pytest.mark.parametrize(
    ("gpus", "size_bytes", "expected"),
    [
        (0, 100 * 1024**2, 2048 + 200 + 1024),
        (0, 1, 2048 + 1 + 1024),
        (1, 16_060_522_496, 2048 + 8192 + 1024),
        (4, 16_060_522_496, 2048 + 4 * 8192 + 4 * 1024),
    ],
    ids=["cpu", "cpu rounds up", "one gpu", "four gpus"],
)
def test_memory_limit_is_derived_and_reserved(gpus: int, size_bytes: int, expected: int) -> None:
    resources = engine("--set", f"gpu.count={gpus},model.sizeBytes={size_bytes}")["resources"]
    assert resources["limits"]["memory"] == f"{expected}Mi"
    assert resources["requests"]["memory"] == f"{expected}Mi"


def test_resources_that_are_given_win() -> None:
    resources = engine(scenario="tensor-parallel")["resources"]
    assert resources == {
        "limits": {"memory": "64Gi", "nvidia.com/gpu": 4},
        "requests": {"memory": "48Gi", "cpu": "8"},
    }


def test_gpus_are_asked_for_by_the_resource_of_the_device_plugin() -> None:
    values = "gpu.count=2,gpu.resourceName=amd.com/gpu"
    assert engine("--set", values)["resources"]["limits"]["amd.com/gpu"] == 2
    assert set(engine()["resources"]["limits"]) == {"memory"}


def test_placement_reaches_the_pods() -> None:
    spec = pod(scenario="tensor-parallel")
    assert spec["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-RTX-A5000"}
    assert spec["tolerations"][0]["key"] == "nvidia.com/gpu"
    assert "nodeAffinity" in spec["affinity"]
    assert spec["runtimeClassName"] == "nvidia"
    assert spec["priorityClassName"] == "inference"
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    (spread,) = spec["topologySpreadConstraints"]
    assert spread["whenUnsatisfiable"] == "DoNotSchedule"


def test_digest_wins_over_tag() -> None:
    digest = "sha256:" + "a" * 64
    image = engine("--set", f"engine.image.tag=v1,engine.image.digest={digest}")["image"]
    assert image == f"ghcr.io/exo-inference/exo-engine@{digest}"
    assert engine("--set", "engine.version=9.8.7")["image"].endswith(":9.8.7")
    assert engine("--set", "engine.version=9.8.7,engine.image.tag=x")["image"].endswith(":x")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ("engine.version=0.1.0", "ghcr.io/exo-inference/exo-engine:0.1.0"),
        ("engine.name=vllm,engine.version=0.33.0", "ghcr.io/exo-inference/exo-vllm:0.33.0"),
        ("engine.image.registry=localhost:5000/x", "localhost:5000/x/exo-engine:0.1.0"),
        (
            "engine.name=tgi,engine.image.repository=r.example/tgi,engine.version=v3",
            "r.example/tgi:v3",
        ),
    ],
)
def test_image_is_named_after_the_engine_unless_given(values: str, expected: str) -> None:
    assert engine("--set", values)["image"] == expected


def test_parameters_travel_with_the_pod_that_they_are_for() -> None:
    """A ConfigMap would change under the old replicas of a rollout that fails."""
    vector = ["--a=<b>&c", '--json={"k": "v w"}', "ünï", "$(HOME)", ""]
    found = deployment("--set-json", f"engine.parameters={json.dumps(vector)}")
    template_ = found["spec"]["template"]
    key = "inference.exo.dev/engine-parameters"
    assert json.loads(template_["metadata"]["annotations"][key]) == vector
    (volume,) = [v for v in template_["spec"]["volumes"] if v["name"] == "parameters"]
    (item,) = volume["downwardAPI"]["items"]
    assert item == {
        "path": "parameters.json",
        "fieldRef": {"fieldPath": f"metadata.annotations['{key}']"},
    }
    (container,) = template_["spec"]["containers"]
    mounts = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
    assert mounts["parameters"] == "/etc/exo"
    assert "args" not in container
    assert "command" not in container


def test_model_is_mounted_read_only_from_its_claim() -> None:
    spec = pod("--set", "model.subPath=models/b")
    (container,) = spec["containers"]
    (mount,) = [m for m in container["volumeMounts"] if m["name"] == "model"]
    assert mount == {
        "name": "model",
        "mountPath": "/model",
        "readOnly": True,
        "subPath": "models/b",
    }
    claim = {"claimName": "weights", "readOnly": True}
    assert {"name": "model", "persistentVolumeClaim": claim} in spec["volumes"]
    assert variables(container)["EXO_SERVED_MODEL_NAME"] == "a/b"


def test_model_may_be_an_oci_image() -> None:
    (volume,) = [v for v in pod(scenario="oci-image")["volumes"] if v["name"] == "model"]
    assert volume["image"] == {
        "reference": "registry.example.com/models/qwen3-0.6b:2026-11-01",
        "pullPolicy": "IfNotPresent",
    }


def test_scaling_changes_the_number_and_restarts_nothing() -> None:
    before = deployment("--set", "replicas=1,deployment.specHash=aaa")
    after = deployment("--set", "replicas=5,deployment.specHash=bbb")
    assert (before["spec"]["replicas"], after["spec"]["replicas"]) == (1, 5)
    assert before["spec"]["template"] == after["spec"]["template"]
    assert after["metadata"]["labels"]["inference.exo.dev/spec-hash"] == "bbb"


def test_a_new_chart_version_alone_restarts_nothing() -> None:
    labels = deployment()["spec"]["template"]["metadata"]["labels"]
    assert "helm.sh/chart" not in labels


def test_replicas_may_be_none() -> None:
    assert deployment("--set", "replicas=0")["spec"]["replicas"] == 0


def test_model_that_spans_nodes_is_a_leader_worker_set() -> None:
    objects = render(CHART, scenario="multi-node")
    assert "Deployment" not in kinds(objects)
    spec = only(objects, "LeaderWorkerSet")["spec"]
    assert spec["replicas"] == 2
    group = spec["leaderWorkerTemplate"]
    assert group["size"] == 2
    assert group["restartPolicy"] == "RecreateGroupOnPodRestart"
    for role in ("leader", "worker"):
        (container,) = group[f"{role}Template"]["spec"]["containers"]
        found = variables(container)
        assert found["EXO_TENSOR_PARALLEL_SIZE"] == "8"
        assert found["EXO_PIPELINE_PARALLEL_SIZE"] == "2"
        assert found["EXO_NODE_COUNT"] == "2"
        assert found["EXO_LEADER_ADDRESS"] == "$(LWS_LEADER_ADDRESS)"
        assert "EXO_NODE_RANK" in found
        assert ("http" in [p["name"] for p in container["ports"]]) is (role == "leader")


def test_only_leaders_take_requests() -> None:
    service = only(render(CHART, scenario="multi-node"), "Service")
    assert service["spec"]["selector"]["leaderworkerset.sigs.k8s.io/worker-index"] == "0"
    service = only(render(CHART, *MINIMAL), "Service")
    assert set(service["spec"]["selector"]) == {
        "app.kubernetes.io/name",
        "app.kubernetes.io/instance",
    }


def test_leader_worker_set_leaves_replicas_to_the_autoscaler() -> None:
    objects = render(CHART, scenario="keda-multi-node")
    assert "replicas" not in only(objects, "LeaderWorkerSet")["spec"]
    scaled = only(objects, "ScaledObject")["spec"]
    assert scaled["scaleTargetRef"]["kind"] == "LeaderWorkerSet"
    assert scaled["triggers"][0]["metadata"]["query"].startswith("sum(vllm:num_requests_waiting")


def test_only_the_gateway_reaches_the_engine_and_the_controller_its_probes() -> None:
    policy = only(render(CHART, *MINIMAL, "--namespace", "tenants"), "NetworkPolicy")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert policy["egress"] == []
    (rule, probes) = policy["ingress"]
    (peer,) = rule["from"]
    assert peer == {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "tenants"}},
        "podSelector": {
            "matchLabels": {
                "app.kubernetes.io/name": "exo-inference",
                "app.kubernetes.io/component": "gateway",
            }
        },
    }
    assert [port["port"] for port in rule["ports"]] == ["http"]
    (controller,) = probes["from"]
    labels = {
        "app.kubernetes.io/name": "exo-inference",
        "app.kubernetes.io/component": "controller",
    }
    assert controller == {**peer, "podSelector": {"matchLabels": labels}}
    assert [port["port"] for port in probes["ports"]] == ["probes"]


def test_pods_of_one_replica_reach_each_other() -> None:
    policy = only(render(CHART, scenario="multi-node"), "NetworkPolicy")["spec"]
    own = {"podSelector": policy["podSelector"]}
    assert [rule["from"] for rule in policy["ingress"]][2:] == [[own]]
    assert policy["egress"][0] == {"to": [own]}


def test_further_peers_reach_the_metrics_and_not_the_engine() -> None:
    """Prometheus has no key of any deployment, and the engine asks nobody for one."""
    objects = render(CHART, scenario="tensor-parallel")
    policy = only(objects, "NetworkPolicy")["spec"]
    reached = {
        rule["ports"][0]["port"]: [
            peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]
            for peer in rule["from"]
        ]
        for rule in policy["ingress"]
    }
    assert reached == {"http": ["exo-system"], "probes": ["exo-system", "monitoring"]}
    monitors = render("exo-inference", scenario="monitoring")
    asked = only(monitors, "ServiceMonitor", "chat-engines")["spec"]["endpoints"]
    assert [(each["port"], each["path"]) for each in asked] == [("probes", "/metrics")]
    ports = only(objects, "Service")["spec"]["ports"]
    assert {port["name"]: port["targetPort"] for port in ports}["probes"] == "probes"
    assert policy["egress"][0]["to"] == [{"ipBlock": {"cidr": "10.0.0.0/8"}}]


def test_drains_of_nodes_take_one_replica_at_a_time() -> None:
    budget = only(render(CHART, *MINIMAL), "PodDisruptionBudget")["spec"]
    assert budget["maxUnavailable"] == 1
    assert budget["selector"]["matchLabels"] == deployment()["spec"]["selector"]["matchLabels"]
    assert "PodDisruptionBudget" not in kinds(render(CHART, scenario="oci-image"))


def test_a_rollout_never_goes_below_the_wanted_number_unless_told_to() -> None:
    def strategy(found: Object) -> Any:
        return found["spec"]["strategy"]["rollingUpdate"]

    assert strategy(deployment()) == {"maxSurge": 1, "maxUnavailable": 0}
    assert strategy(deployment(scenario="tensor-parallel")) == {"maxSurge": 0, "maxUnavailable": 1}


def test_devices_may_be_claimed_dynamically() -> None:
    objects = render(CHART, scenario="resource-claims")
    claims = only(objects, "ResourceClaimTemplate")
    (request,) = claims["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"]["count"] == 2
    spec = only(objects, "Deployment")["spec"]["template"]["spec"]
    assert spec["resourceClaims"] == [
        {"name": "gpus", "resourceClaimTemplateName": claims["metadata"]["name"]}
    ]
    resources = spec["containers"][0]["resources"]
    assert resources["claims"] == [{"name": "gpus"}]
    assert "nvidia.com/gpu" not in resources["limits"]


def test_changed_claims_get_a_new_template_as_the_old_one_cannot_change() -> None:
    def claim_name(count: int) -> str:
        values = f"gpu.count={count},resourceClaims.enabled=true"
        objects = render(CHART, *MINIMAL, "--set", values)
        found: str = only(objects, "ResourceClaimTemplate")["metadata"]["name"]
        return found

    assert claim_name(1) != claim_name(2)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("model.source=", "model.source is empty"),
        ("model.claimName=", "the model's files are nowhere"),
        ("model.image.reference=r/m:1", "model.claimName and model.image.reference are both set"),
        ("engine.image.tag=latest", 'engine.image.tag is "latest"'),
        ("engine.version=latest", 'engine.image.tag is "latest"'),
        ("multiNode.size=2,gpu.count=1", "cannot span nodes"),
        ("multiNode.size=2,engine.name=vllm", "only models on GPUs span nodes"),
        ("resourceClaims.enabled=true", "resourceClaims.enabled needs gpu.count"),
        ("rollout.maxSurge=0", "no replica could ever be replaced"),
        ("gpu.count=two", "gpu.count: Invalid type"),
    ],
)
def test_wrong_values_are_refused_with_a_reason(values: str, message: str) -> None:
    with pytest.raises(Refused, match=message.replace("[", r"\[")):
        template(CHART, *MINIMAL, "--set", values)


@pytest.mark.parametrize("reference", ["r.example.com:5000/m", "r/m:latest", "r/m"])
def test_model_image_without_a_version_is_refused(reference: str) -> None:
    values = f"model.source=a/b,model.image.reference={reference}"
    with pytest.raises(Refused, match="names no version"):
        template(CHART, "--set", values)


def test_notes_end_with_the_next_command() -> None:
    said = notes(CHART, *MINIMAL)
    assert said.splitlines()[-1].strip().startswith("kubectl --namespace inference get pods")
    assert "WARNING" not in said
    assert "WARNING" in notes(CHART, *MINIMAL, "--set", "networkPolicy.enabled=false")


REFUSED = {
    "engine.image.digest=sha256:abc": "- engine.image.digest: ",
    "engine.image.repository=foo:latest": "- engine.image.repository: ",
    "engine.image.registry=foo/bar:latest": "- engine.image.registry: ",
    "gpu.cuont=1": "gpu: Additional property cuont is not allowed",
    "gpu.count=-1": "gpu.count: Must be greater than or equal to 0",
    "replicas=1.5": "replicas: Invalid type",
    "engine.name=vlm": "- engine.name: ",
    "deployment.name=Not_A_Label": "- deployment.name: ",
    "model.sizeBytes=-1": "- model.sizeBytes: ",
    "startup.bytesPerSecond=0": "- startup.bytesPerSecond: ",
    "podSecurity.runAsUser=0": "- podSecurity.runAsUser: ",
    "tolerations[0].kye=a": "Additional property kye is not allowed",
}


def test_schema_refuses_wrong_values_and_names_them_all() -> None:
    wrong = [item for values in REFUSED for item in ("--set", values)]
    with pytest.raises(Refused) as refused:
        template(CHART, *MINIMAL, *wrong)
    said = str(refused.value)
    assert [message for message in REFUSED.values() if message not in said] == []
