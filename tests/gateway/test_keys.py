"""What a key opens, and that looking for it costs the same however many there are."""

from __future__ import annotations

import hashlib
import sys
from types import FrameType
from typing import Any

import pytest

from exo_inference.gateway import keys
from exo_inference.gateway.errors import RequestRefused
from exo_inference.gateway.table import Table, make_deployment, make_keys, make_table
from exo_inference.wire import Route, RouteKey


def route_key(key_id: str, value: str) -> RouteKey:
    return RouteKey(id=key_id, sha256=hashlib.sha256(value.encode()).hexdigest())


def table_of(routes: dict[str, list[RouteKey]], public: list[RouteKey] | None = None) -> Table:
    deployments = [
        make_deployment(
            Route(
                deployment_id=uid, name=f"n-{uid}", model="m", state="ready", keys=of, replicas=[]
            )
        )
        for uid, of in routes.items()
    ]
    return make_table(1, deployments, make_keys(public or []))


def num_steps(token: str, table: Table, name: str) -> int:
    """Return how many lines of the gateway's own code run until it is known what a key opens."""
    steps = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal steps
        if frame.f_code.co_filename != keys.__file__:
            return None
        steps += event == "line"
        return trace

    sys.settrace(trace)
    try:
        keys.authorize(token, table, name)
    except RequestRefused:
        pass
    finally:
        sys.settrace(None)
    return steps


@pytest.mark.parametrize("name", ["d-0", "n-d-0", "gone"])
@pytest.mark.parametrize("token", ["wrong", "v-0-0", "v-1-0", "public"])
def test_ten_thousand_keys_cost_no_more_steps_than_two(token: str, name: str) -> None:
    """A stranger's wrong key must not cost more the more users there are."""
    public = [route_key("p", "public")]
    small, large = (
        table_of(
            {
                f"d-{i}": [route_key(f"k-{i}-{j}", f"v-{i}-{j}") for j in range(each)]
                for i in range(count)
            },
            public * each,
        )
        for count, each in ((2, 1), (100, 100))
    )
    assert 0 < num_steps(token, large, name) == num_steps(token, small, name)


def test_a_key_that_several_scopes_have_is_used_in_its_nearest() -> None:
    shared = "the same value"
    table = table_of(
        {"a": [route_key("own", shared), route_key("later", shared)], "b": []},
        [route_key("public", shared)],
    )
    assert keys.authorize(shared, table, "a")[1] == "own"
    assert keys.authorize(shared, table, "n-b")[1] == "public"


@pytest.mark.parametrize(
    ("token", "name", "status"),
    [("x", "a", 401), ("x", "c", 401), ("k", "c", 404), ("k", "b", 403)],
)
def test_who_holds_no_key_learns_nothing(token: str, name: str, status: int) -> None:
    table = table_of({"a": [route_key("1", "k")], "b": []})
    with pytest.raises(RequestRefused) as refused:
        keys.authorize(token, table, name)
    assert refused.value.status == status
