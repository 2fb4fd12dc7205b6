"""What is done next with a release, and that it converges from wherever it is left."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exo_inference.platforms.base import ObservedReplica, ReplicaPhase
from exo_inference.platforms.kubernetes.release_values import Release
from exo_inference.platforms.kubernetes.step import (
    Live,
    Rescale,
    RollBack,
    Settle,
    Step,
    Upgrade,
    decide,
    explain_roll_back,
    find_failed_update,
    find_lost_refusal,
    read_live,
    refused_annotations,
    repair,
    settled_annotations,
)
from tests.platforms.kubernetes.recorded import deployment

NOW = datetime(2026, 11, 21, 20, 0, tzinfo=UTC)


def release(pods: str = "new", replicas: int = 1) -> Release:
    return Release("exo-u1", {"replicas": replicas}, f"{pods}-{replicas}", pods)


def replica(phase: str = "ready", *, current: bool = True, restarts: int = 0) -> ObservedReplica:
    return ObservedReplica("r", ReplicaPhase(phase), current, f"because {phase}", restarts=restarts)


def live(pods: str = "new", replicas: int = 1, **changes: object) -> Live:
    found = Live(spec_hash=f"{pods}-{replicas}", pods_hash=pods, replicas=replicas)
    return replace(found, **changes)  # type: ignore[arg-type]


SETTLED_OLD = {"settled_revision": 1, "settled_spec": "old-1", "settled_pods": "old"}
REFUSED = {**SETTLED_OLD, "refused_pods": "new", "refused_at": NOW, "refused_reason": "it crashed"}


@pytest.mark.parametrize(
    ("found", "replicas", "expected"),
    [
        pytest.param(None, [], Upgrade(), id="nothing there"),
        pytest.param(live("old"), [], Upgrade(), id="another version there"),
        pytest.param(live(replicas=2), [], Upgrade(), id="another number there"),
        pytest.param(live(spec_hash=""), [], Upgrade(), id="a half-done upgrade"),
        pytest.param(
            live(replicas=7, spec_hash="new-1"), [], Upgrade(), id="scaled by hand"
        ),
        pytest.param(live(missing="services"), [replica()], Upgrade(), id="a part was deleted"),
        pytest.param(
            live(settled_spec="new-1", edited=True), [replica()], Upgrade(), id="pods changed by hand"
        ),
        pytest.param(
            live("old", **REFUSED, edited=True),
            [],
            RollBack(1, "it crashed"),
            id="pods of what serves changed by hand",
        ),
        pytest.param(
            live("old", 3, missing="services", **REFUSED),
            [],
            Rescale(1),
            id="a part was deleted, and another number is wanted of what serves",
        ),
        pytest.param(
            live("old", **REFUSED, missing="services"), [], Rescale(1), id="a part of what serves was deleted"
        ),
        pytest.param(live(), [replica("starting")], None, id="starting"),
        pytest.param(live(), [replica()], Settle(), id="ready for the first time"),
        pytest.param(live(settled_spec="new-1"), [replica()], None, id="settled"),
        pytest.param(
            live(), [replica(), replica("draining", current=False)], Settle(), id="the old one leaves"
        ),
        pytest.param(live(), [replica(), replica(current=False)], None, id="the old one is still there"),
        pytest.param(live(), [replica("failed")], None, id="failed with nothing to go back to"),
        pytest.param(
            live(**SETTLED_OLD),
            [replica(current=False), replica("failed")],
            RollBack(1, "because failed"),
            id="failed update",
        ),
        pytest.param(
            live(**SETTLED_OLD),
            [replica("backoff", restarts=3)],
            RollBack(1, "because backoff"),
            id="update in a crash loop",
        ),
        pytest.param(live(**SETTLED_OLD), [replica("backoff", restarts=2)], None, id="two crashes"),
        pytest.param(
            live(**SETTLED_OLD), [replica(), replica("backoff", restarts=9)], None, id="one works"
        ),
        pytest.param(
            live(**SETTLED_OLD, overdue=True),
            [replica("starting")],
            RollBack(1, "the new replicas did not become ready in time: because starting"),
            id="update takes too long",
        ),
        pytest.param(
            live(settled_revision=1, settled_pods="new"), [replica("failed")], None, id="the same version"
        ),
        pytest.param(live(**REFUSED), [], RollBack(1, "it crashed"), id="killed before the rollback"),
        pytest.param(live("old", **REFUSED), [replica(current=False)], None, id="rolled back"),
        pytest.param(live("old", 3, **REFUSED), [], Rescale(1), id="rolled back and scaled"),
    ],
)  # fmt: skip
def test_the_next_step(
    found: Live | None, replicas: list[ObservedReplica], expected: Step | None
) -> None:
    assert decide(release(), found, replicas) == expected


def test_a_refused_update_is_tried_again_only_when_asked() -> None:
    refused = live("old", **REFUSED)
    assert decide(release(), refused, [], restarted_at=NOW - timedelta(seconds=1)) is None
    assert decide(release(), refused, [], restarted_at=NOW + timedelta(seconds=1)) == Upgrade()
    assert decide(release("newer"), refused, []) == Upgrade()


def test_what_was_cut_off_while_an_update_is_refused_is_finished_without_ending_replicas() -> None:
    serving, half_back = live("old", 3, **REFUSED), live("new", 3, **REFUSED)
    assert repair(release("new", 3), serving) == Rescale(3)
    assert repair(
        replace(release(), values={"autoscaling": {"enabled": True}}), serving
    ) == Rescale(3)  # an autoscaler's
    assert repair(release("new", 3), half_back) == RollBack(1, "it crashed")
    assert repair(release("newer"), serving) == Upgrade()
    assert repair(release(), None) == Upgrade()


def test_what_serves_after_a_refused_update_can_be_scaled_to_zero_and_back() -> None:
    assert decide(release(replicas=0), live("old", **REFUSED), []) == Rescale(0)
    assert decide(release(), live("old", 0, **REFUSED), []) == Rescale(1)


def test_an_update_that_fails_is_told_as_one_before_it_is_undone() -> None:
    failed = [replica(current=False), replica("failed")]
    assert find_failed_update(release(), live(**SETTLED_OLD), failed) == "because failed"
    assert find_failed_update(release(), live(**SETTLED_OLD), [replica("starting")]) == ""
    assert find_failed_update(release(), live(), failed) == ""  # nothing was before it


def test_the_version_before_is_said_to_serve_only_where_it_does() -> None:
    old = replica(current=False)
    assert "before it serves on" in explain_roll_back("x", release(), [old])
    assert "before it is being started" in explain_roll_back("x", release(), [replica()])
    assert "starts when it is scaled up" in explain_roll_back("x", release(replicas=0), [])


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        (
            ("--seed=1", "--chat-template=a b"),
            "serves on, with --seed=1 '--chat-template=a b'. Change",
        ),
        ((), "serves on, without flags of the engine. Change"),
        (None, "serves on. Change"),
        (("--x=" + "y" * 1000,), "y…. Change"),
    ],
)
def test_after_a_roll_back_it_is_told_which_flags_serve(
    parameters: tuple[str, ...] | None, words: str
) -> None:
    old = replica(current=False)
    said = explain_roll_back("x", release(), [old], live("before", parameters=parameters))
    assert words in said
    assert len(said) < 700
    same = live(parameters=parameters)  # the refused ones are still on the pods
    assert "serves on. Change" in explain_roll_back("x", release(), [old], same)


def test_going_back_to_the_version_that_serves_forgets_the_refusal() -> None:
    refused = live("old", **REFUSED)
    assert decide(release("old"), refused, [replica()]) == Settle()


@pytest.mark.parametrize(
    ("found", "refusal", "expected"),
    [
        pytest.param(None, "it crashed", "it crashed", id="the Deployment was deleted"),
        pytest.param(None, "", "", id="nothing was refused"),
        pytest.param(
            live("old"), "it crashed", "it crashed", id="killed before it was written down"
        ),
        pytest.param(live("new"), "it crashed", "it crashed", id="the refused one was made again"),
        pytest.param(live("old", **SETTLED_OLD), "it crashed", "it crashed", id="half was written"),
        pytest.param(live("old", **REFUSED), "it crashed", "", id="all is known"),
        pytest.param(live(**SETTLED_OLD), "", "", id="it failed, and is rolled back"),
        pytest.param(live(), "", "because failed", id="deleted during the update, which failed"),
        pytest.param(live("old"), "", "", id="deleted, and not installed yet"),
        pytest.param(
            live(settled_revision=2, settled_pods="new"), "it crashed", "", id="it works by now"
        ),
    ],
)
def test_what_served_is_brought_back_where_the_deployment_forgot_it(
    found: Live | None, refusal: str, expected: str
) -> None:
    replicas = [replica("failed")]
    assert find_lost_refusal(release(), found, replicas, refusal) == expected


def test_an_autoscaler_is_not_fought() -> None:
    scaled = Release("exo-u1", {"replicas": 1, "autoscaling": {"enabled": True}}, "new-1", "new")
    assert decide(scaled, live(replicas=5, spec_hash="new-1"), [replica("starting")]) is None


def test_new_replicas_of_what_was_refused_are_refused_too() -> None:
    rolled = replace(release("new-rolled"), unrolled_hash="new")
    assert decide(rolled, live("old", **REFUSED), []) is None
    assert decide(rolled, live("new-rolled", **REFUSED), []) == RollBack(1, "it crashed")
    annotations = refused_annotations(rolled, "it crashed", NOW)
    assert annotations["inference.exo.dev/refused-pods-hash"] == "new"
    later = NOW + timedelta(seconds=1)
    assert decide(rolled, live("old", **REFUSED), [], restarted_at=later) == Upgrade()


def test_what_is_written_is_what_is_read() -> None:
    wanted = release()
    annotations = {
        **{k: v for k, v in settled_annotations(wanted, 4).items() if v is not None},
        **refused_annotations(wanted, "x" * 5000, NOW),
    }
    late = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
    found = read_live(deployment(annotations=annotations, conditions=(late,)))
    assert found is not None
    assert (found.settled_revision, found.settled_spec, found.settled_pods) == (4, "new-1", "new")
    assert (found.refused_pods, found.refused_at, len(found.refused_reason)) == ("new", NOW, 1000)
    assert found.overdue


@pytest.mark.parametrize("text", ["", "x", "-1", "٣" * 3000])
def test_annotations_spoiled_by_hand_are_as_if_absent(text: str) -> None:
    names = ("settled-revision", "refused-at")
    found = read_live(deployment(annotations={f"inference.exo.dev/{n}": text for n in names}))
    assert found is not None
    assert (found.settled_revision, found.refused_at) == (None, None)
    assert read_live(None) is None


@dataclass
class World:
    """Named fake of Helm and Kubernetes: steps take effect at once, pods as the test says."""

    works: frozenset[str]
    found: Live | None = None
    history: list[tuple[str, int]] = field(default_factory=list)

    def replicas(self, wanted: Release) -> list[ObservedReplica]:
        if self.found is None:
            return []
        pods, number = self.found.pods_hash, self.found.replicas or 0
        phase = "ready" if pods in self.works else "failed"
        found = [replica(phase, current=pods == wanted.pods_hash) for _ in range(number)]
        if phase == "failed" and self.found.settled_pods in self.works:
            found.append(replica(current=self.found.settled_pods == wanted.pods_hash))
        return found

    def execute(self, step: Step, wanted: Release) -> None:
        before = self.found or Live()
        if isinstance(step, Upgrade):
            self.history.append((wanted.pods_hash, wanted.replicas or 0))
            self.found = replace(
                before,
                spec_hash=wanted.spec_hash,
                pods_hash=wanted.pods_hash,
                replicas=wanted.replicas,
            )
        elif isinstance(step, Settle):
            self.found = replace(
                before,
                settled_revision=len(self.history),
                settled_spec=wanted.spec_hash,
                settled_pods=wanted.pods_hash,
                refused_pods="",
            )
        elif isinstance(step, Rescale):
            self.history.append((before.pods_hash, step.replicas))
            self.found = replace(before, replicas=step.replicas, settled_revision=len(self.history))
        else:
            pods, number = self.history[step.revision - 1]
            self.history.append((pods, number))
            self.found = replace(
                before,
                spec_hash=f"{pods}-{number}",
                pods_hash=pods,
                replicas=number,
                refused_pods=wanted.pods_hash,
                refused_at=NOW,
                settled_revision=len(self.history),
            )


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), min_size=1, max_size=8),
    st.sets(st.sampled_from("abc")),
)
def test_every_series_of_changes_comes_to_rest_and_serves_what_works(
    changes: list[tuple[str, int]], works: set[str]
) -> None:
    """Whatever was asked for in a row, steps end; and what worked last serves on."""
    world = World(frozenset(works))
    for pods, number in changes:
        wanted = release(pods, number)
        for _ in range(8):
            step = decide(wanted, world.found, world.replicas(wanted))
            if step is None:
                break
            world.execute(step, wanted)
        else:
            pytest.fail(f"no rest: {world}")
        assert world.found is not None
        assert world.found.replicas == number
        if pods in works:
            assert world.found.pods_hash == pods
        elif world.found.settled_pods and number:
            assert world.found.pods_hash in works
