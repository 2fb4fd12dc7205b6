"""Which replicas the endpoints of a deployment on a cluster call ready, draining or doubted. Pure."""

from __future__ import annotations

from typing import Any

import pytest

from exo_inference.gateway.endpoints import doubted_replicas, sort_endpoints
from exo_inference.gateway.table import Deployment, Replica


def endpoint(name: str, address: str = "10.0.0.1", **conditions: bool) -> dict[str, Any]:
    return {
        "addresses": [address],
        "conditions": conditions,
        "targetRef": {"kind": "Pod", "name": name},
    }


@pytest.mark.parametrize(
    ("conditions", "ready", "draining"),
    [
        pytest.param({"ready": True, "serving": True, "terminating": False}, ["a"], [], id="ready"),
        pytest.param({}, ["a"], [], id="nothing said is ready"),
        pytest.param({"ready": False, "serving": False}, [], [], id="not ready"),
        pytest.param({"ready": False, "serving": True, "terminating": True}, [], ["a"], id="ends"),
        pytest.param(
            {"ready": False, "serving": False, "terminating": True}, [], ["a"], id="ends, no probe"
        ),
    ],
)
def test_conditions_of_an_endpoint_say_who_gets_requests(
    conditions: dict[str, bool], ready: list[str], draining: list[str]
) -> None:
    found = sort_endpoints([{"endpoints": [endpoint("a", **conditions)]}])
    assert (sorted(found.ready), sorted(found.draining)) == (ready, draining)


def test_a_replica_that_moves_between_slices_is_one_replica() -> None:
    slices = [
        {"endpoints": [endpoint("a", ready=True)]},
        {"endpoints": [endpoint("a", ready=True)]},
    ]
    assert list(sort_endpoints(slices).ready) == ["a"]


@pytest.mark.parametrize(
    ("address", "ports", "expected"),
    [
        ("10.0.0.1", [{"name": "http", "port": 8123}], "http://10.0.0.1:8123"),
        ("fd00::1", None, "http://[fd00::1]:8000"),
    ],
)
def test_addresses_of_both_families(address: str, ports: Any, expected: str) -> None:
    slices = [{"ports": ports, "endpoints": [endpoint("a", address)]}]
    assert sort_endpoints(slices).ready["a"].address == expected


@pytest.mark.parametrize(
    "item",
    [
        {},
        {"endpoints": None},
        {"endpoints": [{"addresses": ["10.0.0.1"]}]},
        {"endpoints": [{"addresses": [], "targetRef": {"name": "a"}}]},
    ],
)
def test_slices_without_pods_are_passed_over(item: dict[str, Any]) -> None:
    found = sort_endpoints([item])
    assert (found.ready, found.unready, found.draining) == ({}, {}, frozenset())


def doubted(known: str, **ready: bool) -> str:
    """Return the names of the replicas that are kept, of those that are ready or are not."""
    endpoints = [endpoint(name, ready=is_ready) for name, is_ready in ready.items()]
    found = doubted_replicas(sort_endpoints([{"endpoints": endpoints}]), known)
    return "".join(replica.name for replica in found)


@pytest.mark.parametrize(
    ("ready", "kept"),
    [
        pytest.param({"a": False, "b": False, "c": False}, "abc", id="all at once"),
        pytest.param({"a": True, "b": False, "c": False}, "bc", id="most"),
        pytest.param({"a": True, "b": True, "c": False}, "", id="one of three"),
        pytest.param({"a": True, "b": False}, "", id="one of two"),
        pytest.param({"a": False}, "a", id="the only one"),
        pytest.param({"a": True, "b": True, "c": True}, "", id="none"),
    ],
)
def test_replicas_are_kept_when_most_are_not_ready_at_once(
    ready: dict[str, bool], kept: str
) -> None:
    assert doubted("abc", **ready) == kept


def test_replicas_that_only_start_are_not_kept() -> None:
    assert doubted("", a=False, b=False) == ""
    assert doubted("a", a=True, b=False, c=False, d=False) == ""


def test_replicas_that_end_are_not_kept() -> None:
    ends = [endpoint(name, ready=False, terminating=True) for name in "abc"]
    found = sort_endpoints([{"endpoints": ends}])
    assert doubted_replicas(found, "abc") == []
    assert found.draining == {"a", "b", "c"}


def test_doubted_replica_counts_as_lost_for_the_requests_that_wait_for_it() -> None:
    replicas = (Replica("a", "http://a"), Replica("b", "http://b"))
    deployment = Deployment(
        "d", "chat", "ready", "", (), replicas, 8, frozenset(), doubted=frozenset("a")
    )
    assert deployment.has_lost("a")
    assert not deployment.has_lost("b")
