"""The chart of one deployment: what scales its replicas by load."""

from __future__ import annotations

import json
from contextlib import nullcontext

import pytest

from exo_inference.engines import ENGINES
from tests.charts.rendering import Refused, only, render, template

CHART = "inference-deployment"
MINIMAL = ("--set", "model.source=a/b,model.claimName=weights")


@pytest.mark.parametrize("scenario", ["keda", "hpa"])
def test_replicas_are_left_to_the_autoscaler(scenario: str) -> None:
    assert "replicas" not in only(render(CHART, scenario=scenario), "Deployment")["spec"]


def test_keda_scales_by_the_requests_that_the_gateways_hold() -> None:
    scaled = only(render(CHART, scenario="keda"), "ScaledObject")["spec"]
    assert scaled["scaleTargetRef"] == {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "name": "chat",
    }
    assert (scaled["minReplicaCount"], scaled["maxReplicaCount"]) == (0, 8)
    (trigger,) = scaled["triggers"]
    uid = "3f0d5a52-8f8e-4b8e-9a53-0b7d3a1d8c11"
    assert f'exo_gateway_pending_requests{{deployment_id="{uid}"}}' in trigger["metadata"]["query"]
    assert trigger["metadata"]["threshold"] == "32"
    assert trigger["authenticationRef"] == {"name": "prometheus"}


def test_hpa_scales_by_the_engines_metrics_or_by_those_given() -> None:
    scaler = only(render(CHART, scenario="hpa"), "HorizontalPodAutoscaler")["spec"]
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (2, 6)
    names = [metric["pods"]["metric"]["name"] for metric in scaler["metrics"]]
    assert names == ["vllm:num_requests_running", "vllm:num_requests_waiting"]
    scaler = only(render(CHART, scenario="hpa-cpu"), "HorizontalPodAutoscaler")["spec"]
    assert [metric["type"] for metric in scaler["metrics"]] == ["Resource"]


@pytest.mark.parametrize("name", ENGINES)
def test_hpa_needs_the_metrics_named_of_engines_without_the_usual_ones(name: str) -> None:
    values = f"autoscaling.enabled=true,autoscaling.type=hpa,engine.name={name}"
    refused = pytest.raises(Refused, match="does not publish")
    with nullcontext() if name in ("exo", "vllm") else refused:
        template(CHART, *MINIMAL, "--set", values)


def test_hpa_takes_the_metrics_named_of_any_engine() -> None:
    values = "autoscaling.enabled=true,autoscaling.type=hpa,engine.name=sglang"
    metric = {"name": "sglang:num_running_reqs"}
    target = {"type": "AverageValue", "averageValue": "16"}
    given = json.dumps([{"type": "Pods", "pods": {"metric": metric, "target": target}}])
    arguments = ("--set", values, "--set-json", f"autoscaling.hpaMetrics={given}")
    scaler = only(render(CHART, *MINIMAL, *arguments), "HorizontalPodAutoscaler")["spec"]
    assert [each["pods"]["metric"] for each in scaler["metrics"]] == [metric]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            "autoscaling.enabled=true,autoscaling.prometheus.serverAddress=http://p",
            "deployment.uid",
        ),
        (
            "autoscaling.enabled=true,autoscaling.type=hpa,autoscaling.minReplicas=0",
            "which a HorizontalPodAutoscaler cannot do",
        ),
        ("autoscaling.enabled=true", "autoscaling.prometheus.serverAddress"),
        ("autoscaling.enabled=true,autoscaling.minReplicas=9", "is above"),
        (
            "autoscaling.enabled=true,autoscaling.type=hpa,engine.name=tgi",
            'which engine "tgi" does not publish: name its own metrics in autoscaling.hpaMetrics',
        ),
    ],
)
def test_wrong_values_are_refused_with_a_reason(values: str, message: str) -> None:
    with pytest.raises(Refused, match=message):
        template(CHART, *MINIMAL, "--set", values)
