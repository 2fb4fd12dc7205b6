"""The fewest pending wins, ties take turns, and what cannot be reached comes last."""

from __future__ import annotations

from collections import Counter

import pytest

from exo_inference.gateway.errors import RequestRefused
from exo_inference.gateway.replicas.balancer import COOL_DOWN_SECONDS, Balancer, choose_replica
from exo_inference.gateway.table import Deployment, Replica

A, B, C = (Replica(name, f"unix:{name}") for name in "abc")


def deployment(*replicas: Replica, max_pending: int = 2, **changes: str) -> Deployment:
    fields = {"state": "ready", "state_details": "", **changes}
    return Deployment(
        id="d", name="chat", keys=(), replicas=replicas, max_pending=max_pending, **fields
    )


@pytest.mark.parametrize(
    ("pending", "last", "turn", "chosen"),
    [
        pytest.param({}, (), 0, "a", id="all idle, first turn"),
        pytest.param({}, (), 1, "b", id="all idle, second turn"),
        pytest.param({}, (), 5, "c", id="turns go round"),
        pytest.param({"a": 3, "b": 1, "c": 2}, (), 0, "b", id="fewest pending"),
        pytest.param({"a": 1}, (), 0, "b", id="tie among the idle, first"),
        pytest.param({"a": 1}, (), 1, "c", id="tie among the idle, second"),
        pytest.param({"b": 9, "c": 9}, ("a",), 0, "b", id="unreachable comes after the busy"),
        pytest.param({"b": 10, "c": 10}, ("a",), 0, "a", id="unreachable is better than none"),
        pytest.param({"a": 10, "b": 10, "c": 9}, (), 7, "c", id="only one has room"),
        pytest.param({"a": 10, "b": 10, "c": 10}, (), 0, None, id="all full"),
        pytest.param({"a": 11, "b": 10, "c": 12}, (), 0, None, id="over the limit after a change"),
    ],
)
def test_choice(pending, last, turn, chosen):
    choice = choose_replica((A, B, C), pending, max_pending=10, last=last, turn=turn)
    assert (choice.name if choice else None) == chosen


def test_no_candidates_no_choice():
    assert choose_replica((), {}, max_pending=1) is None


def test_requests_spread_evenly():
    balancer = Balancer()
    target = deployment(A, B, C, max_pending=100)
    chosen = Counter(balancer.acquire(target).name for _ in range(30))
    assert chosen == {"a": 10, "b": 10, "c": 10}


def test_released_replica_is_forgotten_at_zero():
    balancer = Balancer()
    balancer.acquire(deployment(A))
    balancer.acquire(deployment(A))
    balancer.release("a")
    assert balancer.pending == {"a": 1}
    balancer.release("a")
    assert not balancer.pending


def test_full_replicas_are_429():
    balancer = Balancer()
    target = deployment(A, B, max_pending=1)
    balancer.acquire(target)
    balancer.acquire(target)
    with pytest.raises(RequestRefused, match="has 1 requests pending") as refused:
        balancer.acquire(target)
    assert refused.value.status == 429


def test_everything_excluded_is_none_not_an_error():
    assert Balancer().acquire(deployment(A, B), {"a", "b"}) is None


def test_unreachable_replica_comes_last_until_it_cooled_down():
    now = [0.0]
    balancer = Balancer(clock=lambda: now[0])
    balancer.note_unreachable("a")
    chosen = {balancer.acquire(deployment(A, B, max_pending=9)).name for _ in range(5)}
    assert chosen == {"b"}
    now[0] = COOL_DOWN_SECONDS
    assert balancer.acquire(deployment(A, B, max_pending=9)).name == "a"


@pytest.mark.parametrize(
    ("state", "details", "message"),
    [
        (
            "deploying",
            "loading weights 43 %",
            "deployment 'chat' is deploying: loading weights 43 %",
        ),
        ("creating", "", "deployment 'chat' is creating"),
        ("error", "no such file", "deployment 'chat' is in error: no such file"),
        ("ready", "", "deployment 'chat' has no ready replica at the moment"),
        (
            "ready",
            "scaled to 0: scale it up",
            "deployment 'chat' has no ready replica: scaled to 0: scale it up",
        ),
    ],
)
def test_refusal_says_where_the_deployment_stands(state, details, message):
    with pytest.raises(RequestRefused) as refused:
        Balancer().acquire(deployment(state=state, state_details=details))
    assert refused.value.status == 503
    assert refused.value.message == message
    assert refused.value.headers["Retry-After"]
