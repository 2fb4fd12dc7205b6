"""Decisions for a deployment: pure functions of what is stored and seen."""

from __future__ import annotations

import shlex

import pytest

from exo_inference.controller.conditions import changes, condition, merge, with_ready
from exo_inference.controller.reconcile.decision import (
    Apply,
    Hold,
    TearDown,
    assess_deployment,
    blocked_conditions,
    coming_models,
    decide,
    is_restarting,
    to_state,
)
from exo_inference.platforms.base import ObservedDeployment, ObservedReplica, ReplicaPhase
from exo_inference.resources import (
    RESTART_ANNOTATION,
    ConditionStatus,
    InferenceDeployment,
    find_condition,
    is_true,
)
from exo_inference.resources.states import deployment_state
from tests.controller.builders import NOW, assess, deployment, model, ready_model, replica

NONE: frozenset[str] = frozenset()


def test_a_ready_model_lets_the_platform_act() -> None:
    action = decide(deployment(replicas=2), ready_model(), unrouted=frozenset({"old"}))
    assert isinstance(action, Apply)
    assert action.desired.model_path == "/models/m"
    assert action.desired.model_size_bytes == ready_model().status.size_bytes
    assert action.desired.spec.model == "org/m1"
    assert (action.desired.spec.replicas, action.desired.unrouted) == (2, frozenset({"old"}))


def test_a_model_on_its_way_holds_the_deployment_and_says_how_far() -> None:
    downloading = model(
        condition("Resolved", True, "Resolved"),
        condition("Downloaded", False, "Downloading", "downloading 1.2 of 15.0 GiB (8 %)"),
    )
    action = decide(deployment(), downloading, unrouted=NONE)
    assert isinstance(action, Hold)
    held = deployment(conditions=action.conditions)
    assert deployment_state(held) == ("preparing", "downloading 1.2 of 15.0 GiB (8 %)")


def test_a_failed_or_missing_model_is_an_error_of_the_deployment() -> None:
    failed = model(condition("Failed", True, "NotUsable", "licence not accepted"))
    for given, words in (
        (failed, "licence not accepted"),
        (None, "there is no model org/m1; create it"),
    ):
        action = decide(deployment(), given, unrouted=NONE)
        assert isinstance(action, Hold)
        state, details = deployment_state(deployment(conditions=action.conditions))
        assert state == "error"
        assert words in details


@pytest.mark.parametrize(
    ("asked", "counts"),
    [
        ("2026-01-02T03:04:05.678901+00:00", True),
        ("2026-01-02T03:04:05Z", True),
        ("2026-01-02T03:04:05", False),
        ("-", False),
        ("1" * 250_000, False),
        ("2026-99-02T03:04:05Z", False),
    ],
)
def test_a_restart_at_what_is_no_time_was_not_asked_for(asked: str, counts: bool) -> None:
    given = deployment()
    metadata = given.metadata.model_copy(update={"annotations": {RESTART_ANNOTATION: asked}})
    given = given.model_copy(update={"metadata": metadata})
    action = decide(given, ready_model(), unrouted=NONE)
    assert isinstance(action, Apply)
    assert (action.desired.restarted_at is not None) == counts
    assert given.restart == (asked if counts else "")


@pytest.mark.parametrize(
    "source", ["a b; reboot", "$(reboot)", "`reboot`", "\x1b]0;x\x07", "x" * 4096]
)
def test_a_name_is_no_more_than_a_name_in_what_is_to_be_pasted(source: str) -> None:
    given = deployment()
    spec = given.spec.model_copy(update={"model": source})
    action = decide(given.model_copy(update={"spec": spec}), None, unrouted=NONE)
    assert isinstance(action, Hold)
    text = deployment_state(deployment(conditions=action.conditions))[1]
    assert text.isprintable()
    assert len(text) < 1000
    command = text.partition("create it with `")[2].rpartition("`, or apply")[0]
    assert shlex.split(command)[:4] == ["exo", "dedicated-inference", "model", "create"]
    assert len(shlex.split(command)) == 5
    assert command.endswith(("'", "x", "…"))


def test_what_a_platform_could_not_do_is_an_error_while_the_old_version_serves() -> None:
    observed = ObservedDeployment(
        (replica("a", current=False),), failure="the update was rolled back"
    )
    found = assess_deployment(deployment(), observed).conditions
    assert is_true(found, "Available")
    state, details = deployment_state(deployment(conditions=found))
    assert (state, details) == ("error", "the update was rolled back")


def test_deletion_wins_over_everything() -> None:
    action = decide(deployment(deleting=True), None, unrouted=NONE)
    assert isinstance(action, TearDown)


def test_a_blocked_step_keeps_what_was_known() -> None:
    settled = assess(deployment(), replica("a"))
    kept = blocked_conditions(settled.status.conditions, "no GPU is free")
    assert is_true(kept, "Available")
    state, details = deployment_state(deployment(conditions=kept))
    assert (state, details) == ("deploying", "no GPU is free")


def test_events_tell_each_turn_once() -> None:
    starting = assess(deployment(), replica("a", "starting"))
    found = assess_deployment(starting, ObservedDeployment((replica("a"),)))
    assert [event.reason for event in found.events] == ["ReplicaReady"]
    ready = assess(starting, replica("a"))
    assert assess_deployment(ready, ObservedDeployment((replica("a"),))).events == ()
    crashed = replica("a", "backoff", details="killed", restarts=1)
    (event,) = assess_deployment(ready, ObservedDeployment((crashed,))).events
    assert (event.type, event.message) == ("Warning", "replica a: killed")


def test_what_a_platform_noticed_and_puts_right_is_a_warning() -> None:
    settled = assess(deployment(), replica("a"))
    observed = ObservedDeployment((replica("a"),), notice="the pods were changed by hand")
    (event,) = assess_deployment(settled, observed).events
    assert (event.type, event.reason) == ("Warning", "ChangedByHand")
    assert event.message == "the pods were changed by hand"


def test_conditions_keep_the_moment_of_their_last_turn() -> None:
    first = merge((), [condition("Available", False, "A", "x")], generation=1, now=NOW)
    later = NOW.replace(hour=21)
    same = merge(first, [condition("Available", False, "B", "y")], generation=2, now=later)
    turned = merge(same, [condition("Available", True, "C")], generation=2, now=later)
    assert [c[0].last_transition_time for c in (first, same, turned)] == [NOW, NOW, later]
    assert same[0].observed_generation == 2


def test_one_cause_is_one_event() -> None:
    conditions = [condition(t, True, "ModelFailed", "no licence") for t in ("A", "B")]
    (event,) = changes((), conditions)
    assert (event.type, event.reason, event.message) == ("Warning", "ModelFailed", "no licence")
    assert changes(conditions, conditions) == []


def test_an_update_that_was_rolled_back_is_a_warning() -> None:
    (event,) = changes((), [condition("Failed", True, "ChangeFailed", "it was rolled back")])
    assert (event.type, event.reason) == ("Warning", "ChangeFailed")


SERVING = assess(deployment(), replica("a"))


@pytest.mark.parametrize(
    ("obj", "status", "reason"),
    [
        pytest.param(SERVING, "True", "ReplicasReady", id="as asked for"),
        pytest.param(assess(deployment(replicas=0)), "True", "ScaledToZero", id="scaled to zero"),
        pytest.param(assess(deployment()), "False", "Deploying", id="deploying"),
        pytest.param(
            assess(assess(deployment(replicas=2), replica("a"), replica("b")), replica("a")),
            "False",
            "Recovering",
            id="one of two is gone",
        ),
        pytest.param(
            assess(deployment(), replica("a", "failed")), "False", "ReplicaFailed", id="failed"
        ),
        pytest.param(deployment(), "Unknown", "NotObserved", id="nobody looked"),
    ],
)
def test_one_condition_sums_the_others_up(
    obj: InferenceDeployment, status: str, reason: str
) -> None:
    found = find_condition(with_ready(obj.status.conditions), "Ready")
    assert found is not None
    assert (found.status, found.reason) == (ConditionStatus(status), reason)


def test_a_deployment_that_waits_for_its_model_is_not_ready_and_says_the_same() -> None:
    downloading = model(
        condition("Resolved", True, "Resolved"),
        condition("Downloaded", False, "Downloading", "downloading 8 %"),
    )
    action = decide(deployment(), downloading, unrouted=NONE)
    assert isinstance(action, Hold)
    found = find_condition(with_ready(action.conditions), "Ready")
    assert found == condition("Ready", False, "ModelNotReady", "downloading 8 %")


def test_the_sum_is_made_anew_each_time() -> None:
    once = with_ready(SERVING.status.conditions)
    assert with_ready(once) == once


@pytest.mark.parametrize(
    ("phase", "served", "is_coming"),
    [
        (ReplicaPhase.BACKOFF, True, True),
        (ReplicaPhase.BACKOFF, False, False),  # a crash loop: it was never ready
        (ReplicaPhase.FAILED, True, False),
        (ReplicaPhase.READY, True, False),
    ],
)
def test_replica_that_served_is_on_its_way_however_often_it_crashed(
    phase: ReplicaPhase, served: bool, is_coming: bool
) -> None:
    crashed = ObservedReplica("a", phase, current=True, restarts=40, served=served)
    assert is_restarting(ObservedDeployment((crashed,))) is is_coming
    assert not is_restarting(None)


@pytest.mark.parametrize(
    ("phase", "has_served", "expected"),
    [
        (ReplicaPhase.STARTING, True, ["org/a", "org/m1"]),
        (ReplicaPhase.BACKOFF, True, ["org/a", "org/m1"]),
        (ReplicaPhase.PENDING, True, ["org/a", "org/m1"]),
        (ReplicaPhase.STARTING, False, []),  # its first start may take long
        (ReplicaPhase.READY, True, []),
        (ReplicaPhase.DRAINING, True, []),
        (ReplicaPhase.FAILED, True, []),
    ],
)
def test_the_models_of_replicas_that_served_are_coming_while_these_start_again(
    phase: ReplicaPhase, has_served: bool, expected: list[str]
) -> None:
    models = ("org/m1", "org/a")
    away = ObservedReplica("a", phase, current=True, models=models, has_served=has_served)
    assert coming_models(ObservedDeployment((away,))) == expected
    assert coming_models(None) == []


@pytest.mark.parametrize(
    ("models", "expected"),
    [
        (("org/m1",), None),
        ((), None),
        (("org/m0",), ("org/m0",)),
        (("org/m1", "adapter"), ("org/m1", "adapter")),
    ],
)
def test_a_status_names_models_only_where_they_are_not_the_deployments_own(
    models: tuple[str, ...], expected: tuple[str, ...] | None
) -> None:
    seen = ObservedReplica("a", ReplicaPhase.READY, current=True, models=models)
    assert to_state(seen, "org/m1").models == expected
