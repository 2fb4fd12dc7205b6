"""What a gateway in a pod reads of its environment, and how it says what is wrong there."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from exo_inference.errors import ConfigurationError
from exo_inference.kubernetes_api.pod import listen_everywhere, read_number, read_pod

ENVIRONMENT = {
    "EXO_POD_NAME": "gateway-1",
    "EXO_POD_NAMESPACE": "exo",
    "EXO_LISTEN_PORT": "8081",
    "EXO_METRICS_PORT": "9090",
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"EXO_POD_NAME": ""}, "EXO_POD_NAME is not set"),
        ({"EXO_LISTEN_PORT": "http"}, "EXO_LISTEN_PORT is 'http'"),
        ({"EXO_METRICS_PORT": "-1"}, "EXO_METRICS_PORT is '-1'"),
        ({"EXO_METRICS_PORT": "70000"}, "from 0 to 65535"),
    ],
)
def test_a_wrong_environment_is_named(changes: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read_pod({**ENVIRONMENT, **changes}, None)


def test_the_namespace_of_the_objects_is_the_pods_own_unless_given() -> None:
    assert read_pod(ENVIRONMENT, None).inference_namespace == "exo"
    assert read_pod(ENVIRONMENT, "other").inference_namespace == "other"


def test_the_drain_is_a_number_of_seconds() -> None:
    assert read_number({"EXO_DRAIN_SECONDS": "120"}, "EXO_DRAIN_SECONDS", maximum=600) == 120
    with pytest.raises(ConfigurationError, match="EXO_DRAIN_SECONDS is '1e3'"):
        read_number({"EXO_DRAIN_SECONDS": "1e3"}, "EXO_DRAIN_SECONDS", maximum=600)


def test_a_taken_port_is_named() -> None:
    with listen_everywhere(0) as first:
        port = first.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"cannot listen on port {port}"):
            listen_everywhere(port)


def test_a_gateway_without_its_environment_says_so_and_does_not_start() -> None:
    command = [sys.executable, "-m", "exo_inference.gateway", "--platform=kubernetes"]
    ended = subprocess.run(command, env={}, capture_output=True, text=True, timeout=60)
    assert ended.returncode == os.EX_CONFIG
    assert "EXO_POD_NAMESPACE is not set" in ended.stderr.splitlines()[-1]
