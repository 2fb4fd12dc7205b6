"""Which replicas a table tells apart by their models, on one machine and on a cluster."""

from __future__ import annotations

import json

import pytest

from exo_inference.gateway.endpoints import sort_endpoints
from exo_inference.gateway.models.replicas import read_models
from exo_inference.gateway.table import Deployment, Replica, parse_table, tell_models_apart
from exo_inference.resources import (
    DeploymentSpec,
    DeploymentStatus,
    InferenceDeployment,
    ObjectMeta,
    ReplicaState,
)

OLD, NEW = "exo/old", "exo/new"


def told(*models: tuple[str, ...] | None, wanted: str = NEW, coming: tuple[str, ...] = ()):
    replicas = [
        Replica(name, f"http://{name}", None if found is None else frozenset(found))
        for name, found in zip("abc", models, strict=False)
    ]
    found = tell_models_apart(replicas, wanted, coming)
    return {name: "".join(r.name for r in each) for name, each in found.items()}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        pytest.param({}, {}, id="none"),
        pytest.param({"models": [(OLD,), (OLD,)]}, {}, id="all alike"),
        pytest.param({"models": [None, None]}, {}, id="nothing known"),
        pytest.param({"models": [(OLD,), (NEW,)]}, {OLD: "a", NEW: "b"}, id="two models"),
        pytest.param(
            {"models": [(NEW,), (NEW, "lora")]}, {NEW: "ab", "lora": "b"}, id="an adapter more"
        ),
        pytest.param(
            {"models": [(OLD,)], "coming": (NEW,)}, {OLD: "a", NEW: ""}, id="one is coming"
        ),
        pytest.param({"models": [(NEW,)], "coming": (NEW,)}, {}, id="one more of it is coming"),
        pytest.param({"models": [(OLD,), None]}, {OLD: "a"}, id="a new one of which nobody said"),
        pytest.param({"models": [(NEW,), None]}, {}, id="one more of which nobody said"),
    ],
)
def test_replicas_are_told_apart(arguments, expected) -> None:
    options = {name: value for name, value in arguments.items() if name != "models"}
    assert told(*arguments.get("models", ()), **options) == expected


def test_a_name_that_nobody_is_known_to_have_goes_to_those_of_which_nothing_is_known() -> None:
    replicas = (Replica("a", "http://a", frozenset({OLD})), Replica("b", "http://b"))
    by_model = tell_models_apart(replicas, NEW, ())
    deployment = Deployment("d", "chat", "", "", (), replicas, 8, by_model=by_model)
    assert [r.name for r in deployment.with_model(NEW).replicas] == ["b"]
    assert [r.name for r in deployment.with_model(OLD).replicas] == ["a"]
    assert deployment.with_model(None) is deployment


def test_a_table_of_an_older_controller_is_read() -> None:
    route = {
        "deployment-id": "d",
        "name": "chat",
        "model": NEW,
        "state": "ready",
        "keys": [],
        "replicas": [{"name": "a", "address": "unix:a"}],
    }
    table = parse_table(json.dumps({"version": 1, "routes": [route], "public-keys": []}))
    assert table.by_id["d"].replicas == (Replica("a", "unix:a"),)
    assert table.by_id["d"].by_model == {}


# -- on a cluster: status and endpoints together


def on_cluster(states, endpoints, *, remembered=frozenset(), is_coming=False):
    """Look at replicas, `name: (state, models)`; `endpoints` has `name: "ready", "unready" or "ends"`."""
    replicas = tuple(
        ReplicaState(name=name, state=state, models=models)
        for name, (state, models) in states.items()
    )
    resource = InferenceDeployment(
        metadata=ObjectMeta(name="chat", uid="d"),
        spec=DeploymentSpec(model=NEW, gpu_type="cpu"),
        status=DeploymentStatus(replicas=replicas),
    )
    items = [
        {
            "addresses": ["10.0.0.1"],
            "conditions": {"ready": state == "ready", "terminating": state == "ends"},
            "targetRef": {"name": name},
        }
        for name, state in endpoints.items()
    ]
    found = sort_endpoints([{"endpoints": items}])
    return read_models(
        resource, found, found.ready.values(), is_coming=is_coming, remembered=remembered
    )


def test_a_status_says_which_replica_has_which_model() -> None:
    states = {"a": ("ready", (OLD,)), "b": ("ready", None), "c": ("starting", None)}
    found = on_cluster(states, {"a": "ready", "b": "ready", "new": "ready"})
    assert {r.name: r.models for r in found.replicas} == {"a": [OLD], "b": [NEW], "new": None}
    assert (found.wanted, found.coming) == (NEW, [])
    assert found.remembered == {OLD, NEW}


@pytest.mark.parametrize(
    ("states", "endpoints", "is_coming", "coming"),
    [
        pytest.param({"b": ("ready", None)}, {"b": "unready"}, False, [NEW], id="not ready now"),
        pytest.param({"b": ("backoff", None)}, {}, False, [NEW], id="started again"),
        pytest.param({"b": ("ready", None)}, {}, False, [], id="gone, and nobody said"),
        pytest.param({}, {}, True, [NEW], id="its successor is not known yet"),
        pytest.param({"b": ("draining", None)}, {"b": "ends"}, False, [], id="ends"),
        pytest.param({"a": ("ready", (OLD,))}, {"a": "ends"}, True, [NEW], id="the old one ends"),
    ],
)
def test_names_that_were_answered_to_are_coming_while_a_replica_with_them_stays(
    states, endpoints, is_coming, coming
) -> None:
    remembered = frozenset({OLD, NEW})
    found = on_cluster(states, endpoints, remembered=remembered, is_coming=is_coming)
    assert found.coming == coming


def test_a_model_that_never_served_is_not_waited_for() -> None:
    states = {"a": ("ready", (OLD,)), "b": ("starting", None)}
    found = on_cluster(states, {"a": "ready", "b": "unready"}, is_coming=True)
    assert found.coming == []
