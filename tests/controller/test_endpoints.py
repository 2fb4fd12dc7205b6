"""The list of zones names our own addresses alone, whatever a request claims to have been sent to."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from exo_inference.controller.http.endpoints import endpoint_of, find_endpoint
from exo_inference.controller.settings import read_settings
from exo_inference.errors import ConfigurationError
from tests.controller.conftest import Controller

OWN = (
    "http://exo-controller.inference.svc",
    "http://exo-controller:8080",
    "https://api.example.com",
    "http://plain.example.com",
)


@pytest.mark.parametrize(
    ("headers", "endpoint"),
    [
        pytest.param({"Host": "localhost:PORT"}, "http://localhost:PORT/v2", id="by name"),
        pytest.param({"Host": "[::1]:PORT"}, "http://[::1]:PORT/v2", id="IPv6"),
        pytest.param({"Host": "localhost:1"}, None, id="another's port"),
        pytest.param({"Host": "127.0.0.1"}, None, id="another's port, unnamed"),
        pytest.param({"Host": "[::1]:0PORT"}, None, id="a port in another spelling"),
        pytest.param({"Host": "evil.example"}, None, id="a stranger's host"),
        pytest.param({"Host": "10.9.8.7:80"}, None, id="a stranger's address"),
        pytest.param({"Host": "localhost.evil.example"}, None, id="begins like ours"),
        pytest.param({"Host": "127.0.0.1.evil.example"}, None, id="begins like an address of ours"),
        pytest.param({"X-Forwarded-Host": "evil.example"}, None, id="a proxy that nobody knows"),
        pytest.param(
            {"X-Forwarded-Proto": "https", "X-Forwarded-Host": "ai.example.com"}, None, id="https"
        ),
        pytest.param({"X-Forwarded-Proto": "javascript"}, None, id="odd scheme"),
        pytest.param({"Host": "bad host/../"}, None, id="no host at all"),
        pytest.param({"Host": "u:p@x"}, None, id="user and password"),
    ],
)
def test_on_one_machine_it_is_where_the_request_came_to(
    idle_controller: Controller, headers: dict[str, str], endpoint: str | None
) -> None:
    port = str(urlsplit(idle_controller.endpoint).port)
    headers = {name: value.replace("PORT", port) for name, value in headers.items()}
    answer = idle_controller.call("GET", "/v2/zone", headers=headers)
    (zone,) = answer.json()["zones"]
    assert answer.headers["cache-control"] == "no-store"
    expected = endpoint.replace("PORT", port) if endpoint else idle_controller.endpoint
    assert zone["api-endpoint"] == expected


@pytest.mark.parametrize(
    ("hosts", "is_https", "endpoint"),
    [
        (["exo-controller.inference.svc"], False, "http://exo-controller.inference.svc/v2"),
        (["EXO-controller.inference.svc:80"], False, "http://exo-controller.inference.svc:80/v2"),
        (["exo-controller:8080"], False, "http://exo-controller:8080/v2"),
        (["exo-controller"], False, None),
        (["exo-controller.inference.svc:8080"], False, None),
        (["api.example.com"], False, "https://api.example.com/v2"),
        (["api.example.com:443"], True, "https://api.example.com:443/v2"),
        (["plain.example.com"], True, "https://plain.example.com/v2"),
        (["plain.example.com:99"], True, None),
        (["evil.example", "api.example.com"], False, "https://api.example.com/v2"),
        (["api.example.com.evil.example"], True, None),
        ([""], False, None),
        (["127.3.2.1:8080"], True, "http://127.3.2.1:8080/v2"),
        (["127.0.0.1:8079"], False, "http://127.0.0.1:8079/v2"),
        (["127.0.0.1:9000"], False, None),
        (["10.96.0.7:9000"], False, None),
        (["127.0.0.1:9000", "exo-controller:8080"], False, "http://exo-controller:8080/v2"),
        (["10.96.0.7"], False, "http://10.96.0.7/v2"),
        (["[fd00::7]:8080"], False, "http://[fd00::7]:8080/v2"),
        (["8.8.8.8"], False, None),
    ],
)
def test_in_a_cluster_it_is_a_name_that_was_configured(
    hosts: list[str], is_https: bool, endpoint: str | None
) -> None:
    assert find_endpoint(hosts, OWN, [8079], is_https=is_https) == endpoint


def test_an_ipv6_address_has_brackets() -> None:
    assert endpoint_of("fd00::1", 8080) == "http://[fd00::1]:8080/v2"


def test_what_is_no_url_of_a_host_ends_the_process() -> None:
    environment = {
        "EXO_POD_NAME": "p",
        "EXO_POD_NAMESPACE": "n",
        "EXO_LISTEN_PORT": "8080",
        "EXO_METRICS_PORT": "9090",
        "EXO_PLATFORM_FILE": "/p.json",
        "EXO_LEASE": "l",
        "EXO_CREDENTIALS_SECRET": "c",
        "EXO_GATEWAY_URL": "http://g",
        "EXO_API_ADDRESSES": "http://a https://b:1",
        "KUBERNETES_SERVICE_HOST": "h",
    }
    argv = ["--platform=kubernetes", "--namespace=n"]
    assert read_settings(argv, environment).api_addresses == ("http://a", "https://b:1")
    for wrong in ("a", "ftp://a", "http://a/v2", "http://u@a"):
        with pytest.raises(ConfigurationError, match="EXO_API_ADDRESSES"):
            read_settings(argv, {**environment, "EXO_API_ADDRESSES": wrong})
