"""Alerts and dashboards ask for metrics that the gateway, the controller and the engine really have."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from exo_engine.server.telemetry.metrics import Metrics

from exo_inference.gateway.metrics import GatewayMetrics
from exo_inference.gateway.replicas.balancer import Balancer
from exo_inference.gateway.table import TableWatcher
from exo_inference.gateway.usage_ledger import UsageLedger
from scripts.kubernetes import binaries
from scripts.kubernetes.prerequisites import PrerequisiteMissing, unpacked_program
from tests.charts.rendering import CHARTS, only, render
from tests.skipping import skip_check

DASHBOARDS = sorted((CHARTS / "exo-inference/files/dashboards").glob("*.json"))
SERIES = re.compile(r"\b((?:exo_(?:gateway|controller)_|vllm:)\w+)")


def published(tmp_path: Path) -> set[str]:
    """Return the names of all series that real exporters describe."""
    ledger = UsageLedger(tmp_path / "usage.json")
    gateway = GatewayMetrics(ledger, Balancer(), TableWatcher(tmp_path / "routes.json"))
    text = (gateway.render() + Metrics("model").render()).decode()
    names = set()
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)", text, re.MULTILINE):
        suffixes = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
        names |= {f"{name}{suffix}" for suffix in suffixes}
    return names


def rule_expressions() -> Iterator[str]:
    rule = only(render("exo-inference", scenario="monitoring"), "PrometheusRule")
    for group in rule["spec"]["groups"]:
        for alert in group["rules"]:
            yield alert["expr"]


def dashboard_expressions() -> Iterator[str]:
    for path in DASHBOARDS:
        dashboard = json.loads(path.read_text())
        for panel in dashboard["panels"]:
            yield from (target["expr"] for target in panel["targets"])
        yield from (v["query"] for v in dashboard["templating"]["list"] if v["type"] == "query")


@pytest.mark.parametrize("expressions", [rule_expressions, dashboard_expressions])
def test_every_metric_that_is_asked_for_exists(expressions: object, tmp_path: Path) -> None:
    assert callable(expressions)
    asked = {name for text in expressions() for name in SERIES.findall(text)}
    assert len(asked) > 5
    assert asked - published(tmp_path) == set()


def series_of_vllm() -> set[str]:
    """Return the names of all series of the engine vLLM, by the dated list."""
    listed = json.loads(Path(__file__).with_name("vllm_metrics.json").read_text())["metrics"]
    suffixes = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("_total",), "gauge": ("",)}
    return {f"{name}{suffix}" for name, kind in listed.items() for suffix in suffixes[kind]}


@pytest.mark.parametrize("expressions", [rule_expressions, dashboard_expressions])
def test_one_dashboard_serves_both_engines(expressions: object) -> None:
    """No panel and no alert asks for what only one of them has."""
    assert callable(expressions)
    asked = {name for text in expressions() for name in SERIES.findall(text)}
    of_engines = {name for name in asked if name.startswith("vllm:")}
    assert len(of_engines) > 3
    assert of_engines - series_of_vllm() == set()


def test_what_exo_engine_shares_with_vllm_is_of_the_same_kind() -> None:
    listed = json.loads(Path(__file__).with_name("vllm_metrics.json").read_text())["metrics"]
    kinds = dict(
        re.findall(r"^# TYPE (vllm:\S+) (\S+)", Metrics("m").render().decode(), re.MULTILINE)
    )
    own = {
        name.removesuffix("_total") if kind == "counter" else name: kind
        for name, kind in kinds.items()
        if not name.endswith("_created")
    }
    # vLLM's older name of the time between two tokens, which dashboards still know.
    del own["vllm:time_per_output_token_seconds"]
    assert own.items() <= listed.items()


def test_metrics_of_autoscaling_exist(tmp_path: Path) -> None:
    keda = only(render("inference-deployment", scenario="keda"), "ScaledObject")
    query = keda["spec"]["triggers"][0]["metadata"]["query"]
    asked = set(SERIES.findall(query))
    scaler = only(render("inference-deployment", scenario="hpa"), "HorizontalPodAutoscaler")
    asked |= {metric["pods"]["metric"]["name"] for metric in scaler["spec"]["metrics"]}
    assert len(asked) == 4
    assert asked <= published(tmp_path)


def test_alerts_say_what_is_wrong_and_what_to_do() -> None:
    rule = only(render("exo-inference", scenario="monitoring"), "PrometheusRule")
    alerts = [alert for group in rule["spec"]["groups"] for alert in group["rules"]]
    assert len({alert["alert"] for alert in alerts}) == len(alerts) >= 8
    for alert in alerts:
        assert alert["annotations"]["summary"].endswith(".")
        assert len(alert["annotations"]["description"]) > 30
        assert alert["labels"]["severity"] in ("warning", "critical")
        assert "{{ " not in alert["expr"]


def test_alerts_watch_the_jobs_that_the_services_make() -> None:
    """Prometheus names a job after its Service, so the two have to agree."""
    objects = render("exo-inference", scenario="monitoring")
    jobs = {job for text in rule_expressions() for job in re.findall(r'job="([^"]+)"', text)}
    services = {item["metadata"]["name"] for item in objects if item["kind"] == "Service"}
    assert jobs == {"chat-controller-metrics", "chat-gateway-metrics"}
    assert jobs <= services


PER_PROCESS = re.compile(r"\b(sum|max|avg)(?: by \([^)]*\))? ?\((?:rate\(|increase\()?exo_gateway_")


@pytest.mark.parametrize("expressions", [rule_expressions, dashboard_expressions])
def test_what_each_gateway_process_counts_is_put_together(expressions: object) -> None:
    """A pod has several, each with series of its own."""
    assert callable(expressions)
    queries = [q for q in expressions() if "exo_gateway_" in q and "label_values" not in q]
    assert len(queries) > 3
    for query in queries:
        assert query.count("exo_gateway_") == len(PER_PROCESS.findall(query)), query
        assert not re.search(r"by \([^)]*\b(pod|instance|container|endpoint)\b", query)


def test_thresholds_are_values() -> None:
    text = "\n".join(rule_expressions())
    assert "> 2.5" in text


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_dashboards_are_whole(path: Path) -> None:
    dashboard = json.loads(path.read_text())
    identifiers = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(identifiers)) == len(identifiers)
    assert all(panel["title"] and panel["targets"] for panel in dashboard["panels"])
    data = only(
        render("exo-inference", scenario="monitoring"),
        "ConfigMap",
        f"chat-dashboard-{path.stem}",
    )["data"]
    assert json.loads(data[path.name]) == dashboard


@pytest.mark.kubernetes
def test_promtool_accepts_the_alerts_and_every_query(tmp_path: Path) -> None:
    try:
        promtool = unpacked_program("promtool", binaries.cache_dir())
    except PrerequisiteMissing as exc:
        skip_check(str(exc))
    rule = only(render("exo-inference", scenario="monitoring"), "PrometheusRule")
    queries = [
        {"record": f"dashboard:query_{number}", "expr": _without_variables(text)}
        for number, text in enumerate(dashboard_expressions())
        if not text.startswith("label_values(")
    ]
    assert len(queries) > 10
    groups = [*rule["spec"]["groups"], {"name": "dashboards", "rules": queries}]
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": groups}))
    result = subprocess.run([promtool, "check", "rules", str(path)], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def _without_variables(query: str) -> str:
    """Return a query as Grafana sends it."""
    return re.sub(r"\$__\w+", "5m", query)
