"""The chart of the control plane: what it installs, what it leaves alone, and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from exo_inference.controller.settings import read_settings
from exo_inference.controller.user_gpus import read_user_gpus
from exo_inference.gateway.held_requests import HoldSettings, read_hold_settings
from exo_inference.local_settings import ZONES
from exo_inference.platforms.kubernetes import read_platform_values
from tests.charts.rendering import (
    CHARTS,
    Object,
    Refused,
    helm,
    kinds,
    notes,
    only,
    render,
    scenario_path,
    template,
)

CHART = "exo-inference"
NAME = "chat"
COMPONENTS = ("controller", "gateway")

both = pytest.mark.parametrize("component", COMPONENTS)


def deployment(component: str, *arguments: str, scenario: str | None = None) -> Object:
    objects = render(CHART, *arguments, scenario=scenario)
    return only(objects, "Deployment", f"{NAME}-{component}")


def variables(component: str, *arguments: str, scenario: str | None = None) -> dict[str, Any]:
    spec = deployment(component, *arguments, scenario=scenario)["spec"]["template"]["spec"]
    return {item["name"]: item.get("value") for item in spec["containers"][0]["env"]}


@both
def test_two_of_each_spread_and_budgeted(component: str) -> None:
    spec = deployment(component)["spec"]
    assert spec["replicas"] == 2
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    keys = [c["topologyKey"] for c in spec["template"]["spec"]["topologySpreadConstraints"]]
    assert keys == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
    budget = only(render(CHART), "PodDisruptionBudget", f"{NAME}-{component}")["spec"]
    assert budget["maxUnavailable"] == 1
    assert budget["selector"] == spec["selector"]


def test_a_single_pod_has_no_budget_that_would_block_its_node() -> None:
    assert "PodDisruptionBudget" not in kinds(render(CHART, scenario="restricted"))


@both
def test_components_run_from_one_image_for_one_namespace(component: str) -> None:
    container = deployment(component)["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == "ghcr.io/exo-inference/exo-inference:0.1.0"
    assert container["command"] == ["python", "-m", f"exo_inference.{component}"]
    assert container["args"] == ["--platform=kubernetes", "--namespace=inference"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": 8080 if component == "controller" else 8081, "metrics": 9090}
    paths = {key: container[key]["httpGet"]["path"] for key in container if key.endswith("Probe")}
    assert paths == {
        "startupProbe": "/healthz",
        "livenessProbe": "/healthz",
        "readinessProbe": "/readyz",
    }


def test_digest_wins_over_tag() -> None:
    digest = "sha256:" + "b" * 64
    found = deployment("gateway", "--set", f"image.tag=v1,image.digest={digest}")
    images = {c["image"] for c in found["spec"]["template"]["spec"]["containers"]}
    assert images == {f"ghcr.io/exo-inference/exo-inference@{digest}"}


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_gateways_of_a_pod_differ_by_name_and_metrics_port_alone(processes: int) -> None:
    values = ("--set", f"gateway.processesPerPod={processes}")
    first, *others = deployment("gateway", *values)["spec"]["template"]["spec"]["containers"]
    assert len(others) == processes - 1
    assert first["ports"] == [
        {"name": "http", "containerPort": 8081},
        {"name": "metrics", "containerPort": 9090},
    ]
    text = json.dumps({**first, "ports": first["ports"][1:]})
    for number, other in enumerate(others, 1):
        expected = text.replace('"gateway"', f'"gateway-{number}"')
        expected = expected.replace('"metrics"', f'"metrics-{number}"')
        assert other == json.loads(expected.replace("9090", str(9090 + number)))


def test_metrics_of_every_process_are_let_through_and_scraped() -> None:
    values = ("--set", "gateway.processesPerPod=3,monitoring.serviceMonitor.enabled=true")
    objects = render(CHART, *values)
    named = {"metrics": 9090, "metrics-1": 9091, "metrics-2": 9092}
    service = only(objects, "Service", f"{NAME}-gateway-metrics")["spec"]
    assert {port["name"]: port["port"] for port in service["ports"]} == named
    assert [port["targetPort"] for port in service["ports"]] == list(named)
    policy = only(objects, "NetworkPolicy", f"{NAME}-gateway")["spec"]["ingress"][1]
    assert [port["port"] for port in policy["ports"]] == list(named)
    monitor = only(objects, "ServiceMonitor", NAME)["spec"]
    assert [endpoint["port"] for endpoint in monitor["endpoints"]] == list(named)
    service = only(objects, "Service", f"{NAME}-controller-metrics")["spec"]
    assert [port["name"] for port in service["ports"]] == ["metrics"]


def test_gateway_finishes_long_answers_before_it_ends() -> None:
    spec = deployment("gateway", "--set", "gateway.drainSeconds=300")["spec"]["template"]["spec"]
    assert spec["terminationGracePeriodSeconds"] > 300 + 5
    assert variables("gateway", "--set", "gateway.drainSeconds=300")["EXO_DRAIN_SECONDS"] == "300"


def test_gateway_is_told_how_long_and_how_many_requests_wait() -> None:
    defaults = variables("gateway")
    assert read_hold_settings(defaults) == HoldSettings()
    own = variables("gateway", "--set", "gateway.hold.seconds=0,gateway.hold.maxRequests=100")
    assert (own["EXO_HOLD_SECONDS"], own["EXO_HOLD_REQUESTS"]) == ("0", "100")
    assert "EXO_HOLD_SECONDS" not in variables("controller")
    # As --reuse-values does with values of a release whose chart did not have them.
    assert read_hold_settings(variables("gateway", "--set", "gateway.hold=null")) == HoldSettings()


def test_traces_are_sent_by_gateways_and_exo_engine(tmp_path: Path) -> None:
    assert not any(name.startswith("OTEL_") for name in variables("gateway"))
    values = tmp_path / "values.json"
    egress = [{"to": [{"namespaceSelector": {}}], "ports": [{"port": 4318}]}]
    own_env = {"name": "EXO_ENGINE_CPU_KERNELS", "value": "off"}
    values.write_text(
        json.dumps(
            {
                "tracing": {"endpoint": "http://c:4318", "ratio": 0.25, "egress": egress},
                "platform": {"engineValues": {"exo": {"engine": {"env": [own_env]}}}},
            }
        )
    )
    wanted = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318",
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": "0.25",
    }
    assert wanted.items() <= variables("gateway", "--values", str(values)).items()
    assert not any(n.startswith("OTEL_") for n in variables("controller", "--values", str(values)))
    objects = render(CHART, "--values", str(values))
    (platform,) = [
        item["data"]["platform.json"]
        for item in objects
        if item["kind"] == "ConfigMap" and "platform.json" in item["data"]
    ]
    exo = json.loads(platform)["engineValues"]["exo"]
    named = [{"name": name, "value": value} for name, value in wanted.items()]
    assert exo["engine"]["env"] == [*named, own_env]
    assert exo["networkPolicy"]["extraEgress"] == egress


def test_crds_are_upgraded_with_the_chart_and_stay_when_it_goes() -> None:
    files = sorted(path.name for path in (CHARTS / CHART / "files/crds").glob("*.yaml"))
    crds = [item for item in render(CHART) if item["kind"] == "CustomResourceDefinition"]
    assert sorted(f"{crd['metadata']['name']}.yaml" for crd in crds) == files
    for crd in crds:
        assert crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    objects = render(CHART, "--set", "crds.install=false")
    assert "CustomResourceDefinition" not in kinds(objects)


def test_installs_without_any_crd_file(tmp_path: Path) -> None:
    copy = tmp_path / CHART
    shutil.copytree(CHARTS / CHART, copy)
    shutil.rmtree(copy / "files" / "crds", ignore_errors=True)
    assert "CustomResourceDefinition" not in helm("template", "exo", str(copy))


def test_objects_live_in_a_namespace_of_choice_and_the_control_plane_in_its_own() -> None:
    objects = render(CHART, scenario="gpu-cluster")
    for role in ("Role", "RoleBinding"):
        found = [item for item in objects if item["kind"] == role]
        assert {item["metadata"]["namespace"] for item in found} == {"tenants"}
    accounts = [b["subjects"][0]["namespace"] for b in objects if b["kind"] == "RoleBinding"]
    assert accounts == ["inference", "inference"]
    (container,) = only(objects, "Deployment", "inference-control-controller")["spec"]["template"][
        "spec"
    ]["containers"]
    assert "--namespace=tenants" in container["args"]


@both
def test_each_component_has_an_account_of_its_own(component: str) -> None:
    spec = deployment(component)["spec"]["template"]["spec"]
    assert spec["serviceAccountName"] == f"{NAME}-{component}"
    binding = only(render(CHART), "RoleBinding", f"{NAME}-{component}")
    assert binding["subjects"][0]["name"] == spec["serviceAccountName"]


def test_accounts_may_be_made_elsewhere() -> None:
    objects = render(CHART, scenario="restricted")
    assert not kinds(objects) & {"ServiceAccount", "Role", "RoleBinding", "ClusterRole"}
    spec = only(objects, "Deployment", f"{NAME}-controller")["spec"]["template"]["spec"]
    assert spec["serviceAccountName"] == "exo-controller"


def test_platform_values_reach_the_controller_and_a_change_starts_it_again() -> None:
    objects = render(CHART, scenario="gpu-cluster")
    data = only(objects, "ConfigMap", "inference-control-platform")["data"]
    found = json.loads(data["platform.json"])
    assert found["gpuValues"]["gpuh100"]["startup"] == {"bytesPerSecond": 1000000000}
    assert found["modelValues"]["storage"]["storageClassName"] == "nfs"

    def checksum(*arguments: str) -> str:
        pod = deployment("controller", *arguments)["spec"]["template"]
        value: str = pod["metadata"]["annotations"]["checksum/platform"]
        return value

    others = ["platform.deploymentValues.priorityClassName=high", "features.leaderWorkerSet=true"]
    others += ["gpuFile=[lab]"]
    assert len({checksum(), *(checksum("--set", other) for other in others)}) == 4


def test_a_gpu_file_is_where_the_controller_reads_it(tmp_path: Path) -> None:
    told = "[lab-l40]\nmemory-mib = 46068\nbandwidth-gbps = 864\ntflops = { fp16 = 90.5 }\n"
    (tmp_path / "gpus.toml").write_text(told)
    objects = render(CHART, "--set-file", f"gpuFile={tmp_path / 'gpus.toml'}")
    data = only(objects, "ConfigMap", f"{NAME}-platform")["data"]
    assert data["gpus.toml"] == told
    environment = {**variables("controller"), "EXO_POD_NAME": "pod-1", "EXO_POD_NAMESPACE": "exo"}
    settings = read_settings(["--platform=kubernetes"], environment)
    assert settings.cluster is not None
    (mount,) = [
        each["mountPath"]
        for each in deployment("controller")["spec"]["template"]["spec"]["containers"][0][
            "volumeMounts"
        ]
        if each["name"] == "platform"
    ]
    assert settings.cluster.gpus_file == Path(mount) / "gpus.toml"
    (tmp_path / "read.toml").write_text(data["gpus.toml"])
    assert read_user_gpus(tmp_path / "read.toml")["lab-l40"].bandwidth == 864e9
    assert "gpus.toml" not in only(render(CHART), "ConfigMap", f"{NAME}-platform")["data"]


def test_the_controller_knows_whether_models_may_span_nodes(tmp_path: Path) -> None:
    def spans(*arguments: str) -> bool:
        data = only(render(CHART, *arguments), "ConfigMap", f"{NAME}-platform")["data"]
        path = tmp_path / "platform.json"
        path.write_text(data["platform.json"])
        return read_platform_values(path).spans_nodes

    assert (spans(), spans("--set", "features.leaderWorkerSet=true")) == (False, True)


def test_credentials_are_named_and_never_written() -> None:
    assert variables("controller")["EXO_CREDENTIALS_SECRET"] == "chat-credentials"
    assert variables("controller", scenario="ingress")["EXO_CREDENTIALS_SECRET"] == "exo-api"


@pytest.mark.parametrize(
    ("arguments", "scenario", "expected"),
    [
        ((), None, "http://chat-gateway.inference.svc"),
        (("--set", "gateway.service.port=9000"), None, "http://chat-gateway.inference.svc:9000"),
        ((), "ingress", "https://models.example.com"),
        ((), "http-route", "https://models.example.com"),
        (("--set", "gateway.publicUrl=https://x.example"), None, "https://x.example"),
    ],
    ids=["service", "port", "ingress", "http-route", "given"],
)
def test_deployments_are_shown_with_the_url_that_clients_reach(
    arguments: tuple[str, ...], scenario: str | None, expected: str
) -> None:
    found = variables("controller", *arguments, scenario=scenario)
    assert found["EXO_GATEWAY_URL"] == expected


def test_ingress_ends_tls_for_all_its_hosts() -> None:
    spec = only(render(CHART, scenario="ingress"), "Ingress", f"{NAME}-gateway")["spec"]
    assert spec["ingressClassName"] == "nginx"
    assert spec["tls"] == [
        {"secretName": "models-tls", "hosts": ["models.example.com", "models.example.net"]}
    ]
    assert [rule["host"] for rule in spec["rules"]] == spec["tls"][0]["hosts"]
    backend = spec["rules"][0]["http"]["paths"][0]["backend"]["service"]
    assert backend == {"name": f"{NAME}-gateway", "port": {"name": "http"}}


def test_http_route_leads_to_the_service_and_lets_answers_stream() -> None:
    route = only(render(CHART, scenario="http-route"), "HTTPRoute", f"{NAME}-gateway")["spec"]
    assert route["parentRefs"] == [{"name": "public", "namespace": "gateways"}]
    assert route["hostnames"] == ["models.example.com"]
    (rule,) = route["rules"]
    assert rule["timeouts"] == {"request": "0s"}
    assert rule["backendRefs"] == [{"name": f"{NAME}-gateway", "port": 80}]


def test_nothing_is_exposed_by_default() -> None:
    objects = render(CHART)
    assert not kinds(objects) & {"Ingress", "HTTPRoute"}
    types = {s["spec"].get("type", "ClusterIP") for s in objects if s["kind"] == "Service"}
    assert types == {"ClusterIP"}


def test_a_load_balancer_shows_no_metrics() -> None:
    services = [s for s in render(CHART, scenario="ingress") if s["kind"] == "Service"]
    (public,) = [s for s in services if s["spec"].get("type") == "LoadBalancer"]
    assert [port["name"] for port in public["spec"]["ports"]] == ["http"]


@both
def test_metrics_are_for_the_namespace_or_for_those_named(component: str) -> None:
    policy = only(render(CHART), "NetworkPolicy", f"{NAME}-{component}")["spec"]
    requests, metrics = policy["ingress"]
    assert "from" not in requests
    assert metrics["from"] == [{"podSelector": {}}]
    policy = only(render(CHART, scenario="ingress"), "NetworkPolicy", f"{NAME}-{component}")
    names = [
        rule["from"][0]["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]
        for rule in policy["spec"]["ingress"]
    ]
    assert names == ["ingress-nginx", "monitoring"]


def test_deployments_let_in_the_gateway_that_this_chart_makes() -> None:
    """Two charts have to agree on labels."""
    labels = deployment("gateway")["spec"]["template"]["metadata"]["labels"]
    values = ("--set", "model.source=a/b,model.claimName=c")
    policy = only(render("inference-deployment", *values), "NetworkPolicy")["spec"]
    wanted = policy["ingress"][0]["from"][0]["podSelector"]["matchLabels"]
    assert wanted.items() <= labels.items()
    other = deployment("controller")["spec"]["template"]["metadata"]["labels"]
    assert not wanted.items() <= other.items()


def test_monitors_select_the_services_that_have_metrics() -> None:
    objects = render(CHART, scenario="monitoring")
    monitor = only(objects, "ServiceMonitor", NAME)
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    chosen = [
        s["metadata"]["name"]
        for s in objects
        if s["kind"] == "Service" and wanted <= s["metadata"]["labels"].items()
    ]
    assert sorted(chosen) == [f"{NAME}-controller-metrics", f"{NAME}-gateway-metrics"]
    engines = only(objects, "ServiceMonitor", f"{NAME}-engines")["spec"]
    values = ("--set", "model.source=a/b,model.claimName=c")
    service = only(render("inference-deployment", *values), "Service")
    assert engines["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    ports = [port["name"] for port in service["spec"]["ports"]]
    assert [each["port"] in ports for each in engines["endpoints"]] == [True]


def test_notes_end_with_the_next_command() -> None:
    said = notes(CHART)
    assert said.splitlines()[-1].strip().startswith("exo dedicated-inference model create")
    assert "WARNING" not in said
    assert "port-forward service/chat-controller 8080:80" in said
    assert "port-forward service/chat-gateway 8081:80" in said
    assert "gateway.publicUrl=http://127.0.0.1:8081" in said
    said = notes(CHART, "--set", "gateway.publicUrl=http://127.0.0.1:8081")
    assert "port-forward service/chat-gateway 8081:80" in said
    assert "upgrade with" not in said
    said = notes(CHART, "--set", "gateway.publicUrl=https://models.example.com")
    assert "chat-gateway" not in said
    said = notes(CHART, "--values", str(scenario_path(f"{CHART}/restricted")))
    assert "WARNING: rbac.create is false" in said


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("image.tag=latest", 'image.tag is "latest"'),
        ("gateway.ingress.enabled=true", "gateway.ingress.hosts is empty"),
        ("controller.httpRoute.enabled=true", "controller.httpRoute.parentRefs is empty"),
        ("gateway.ingress.enabled=true,gateway.httpRoute.enabled=true", "choose one way in"),
    ],
)
def test_wrong_values_are_refused_with_a_reason(values: str, message: str) -> None:
    with pytest.raises(Refused, match=message):
        template(CHART, "--set", values)


REFUSED = {
    "image.digest=abc": "- image.digest: ",
    "controler.replicas=2": "Additional property controler is not allowed",
    "gateway.drainSecond=2": "gateway: Additional property drainSecond is not allowed",
    "gateway.replicas=0": "gateway.replicas: Must be greater than or equal to 1",
    "gateway.processesPerPod=0": "gateway.processesPerPod: Must be greater than or equal to 1",
    "gateway.service.port=70000": "- gateway.service.port: ",
    "gateway.publicUrl=models.example.com": "- gateway.publicUrl: ",
    "zone=mars": "- zone: ",
    "image.repository=foo:latest": "- image.repository: ",
    "platform.deploymentValues.engine.image.registry=foo/bar:latest": "image.registry: ",
    "platform.modelValues.download.image.repository=foo:latest": "download.image.repository: ",
    "inferenceNamespace=Not_A_Label": "- inferenceNamespace: ",
    "podSecurity.runAsUser=0": "- podSecurity.runAsUser: ",
    "gpuFile.lab=x": "- gpuFile: ",
    "platform.gpuValues.gpua5000.nodeSelektor.a=b": "Additional property nodeSelektor",
    "platform.engineValues.vlm.replicas=1": "Additional property vlm is not allowed",
    "platform.modelValues.storage.clas=x": "Additional property clas is not allowed",
}


@pytest.mark.parametrize("repository", ["name", "host:5000/name", "host.example.com/a/b_c-d"])
def test_a_repository_may_have_a_port_but_no_tag(repository: str) -> None:
    made = deployment("controller", "--set", f"image.repository={repository}")
    (container,) = made["spec"]["template"]["spec"]["containers"]
    assert container["image"].startswith(f"{repository}:0")
    with pytest.raises(Refused, match=r"image\.repository"):
        template(CHART, "--set", f"image.repository={repository}:latest")


def test_the_schema_knows_the_zones_that_clients_know() -> None:
    schema = json.loads((CHARTS / CHART / "values.schema.json").read_text())
    assert tuple(schema["properties"]["zone"]["enum"]) == ZONES


def test_a_gpu_file_that_is_no_file_is_refused() -> None:
    with pytest.raises(Refused, match="gpuFile"):
        template(CHART, "--set", "gpuFile=garbage")


def test_schema_refuses_wrong_values_and_names_them_all() -> None:
    wrong = [item for values in REFUSED for item in ("--set", values)]
    with pytest.raises(Refused) as refused:
        template(CHART, *wrong)
    said = str(refused.value)
    assert [message for message in REFUSED.values() if message not in said] == []
