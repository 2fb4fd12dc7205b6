"""The help of an engine's parameters, over HTTP."""

from __future__ import annotations

from typing import Any

import pytest
import requests
from exoscale_auth import ExoscaleV2Auth

from exo_inference.controller.admission.problems import Refused
from exo_inference.controller.http.routes.platform import usual_engine
from exo_inference.platforms.base import InstanceTypeInfo
from tests.controller.conftest import Controller


def ask(controller: Controller, **query: str) -> tuple[int, Any]:
    url = f"{controller.endpoint}/ai/help/inference-engine-parameters"
    auth = ExoscaleV2Auth(controller.key, controller.secret)
    answer = requests.get(url, params=query, auth=auth, timeout=10)
    return answer.status_code, answer.json()


def test_help_is_that_of_the_engine_that_runs(idle_controller: Controller) -> None:
    assert ask(idle_controller) == ask(idle_controller, engine="exo")
    names = {entry["name"] for entry in ask(idle_controller)[1]["parameters"]}
    assert "max-model-len" in names
    assert "speculative-config" not in names


def test_help_of_vllm_is_that_of_a_release(idle_controller: Controller) -> None:
    def default(version: str) -> str:
        status, body = ask(idle_controller, engine="vllm", version=version)
        assert status == 200
        by_name = {entry["name"]: entry for entry in body["parameters"]}
        assert by_name["kv-cache-dtype"]["type"] == "enum"
        return str(by_name["gpu-memory-utilization"]["default"])

    assert (default("0.12.0"), default("0.28.0")) == ("0.9", "0.92")


@pytest.mark.parametrize("query", [{"engine": "nonesuch"}, {"engine": "vllm", "version": "9.9"}])
def test_help_of_what_is_not_known_is_refused(
    idle_controller: Controller, query: dict[str, str]
) -> None:
    status, body = ask(idle_controller, **query)
    assert status == 400
    assert "does not have a value in the enumeration" in str(body)


SIMULATED = InstanceTypeInfo("gpua5000", 4, 4, engine="vllm", simulated=True)
REAL = InstanceTypeInfo("gpu3", 2, 2)
CPU = InstanceTypeInfo("cpu", 1, 1)


@pytest.mark.parametrize(
    ("families", "gpu_type", "engine"),
    [
        ((SIMULATED, CPU), None, "vllm"),
        ((SIMULATED, REAL, CPU), None, "exo"),
        ((CPU,), None, "exo"),
        ((SIMULATED, REAL, CPU), "gpua5000", "vllm"),
        ((SIMULATED, CPU), "cpu", "exo"),
    ],
    ids=["simulated", "mixed", "no GPU", "by family", "by cpu"],
)
def test_help_is_that_of_the_families(
    families: tuple[InstanceTypeInfo, ...], gpu_type: str | None, engine: str
) -> None:
    assert usual_engine(families, gpu_type) == engine


def test_help_of_a_family_that_is_not_there_is_refused() -> None:
    with pytest.raises(Refused, match="gpu7"):
        usual_engine((SIMULATED, CPU), "gpu7")
