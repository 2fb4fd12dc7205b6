"""Pods that somebody changed past the project: what counts as such, and the patch that undoes it."""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from exo_inference.platforms.kubernetes.drift import (
    installed_annotations,
    is_edited,
    undo,
    was_put_back,
)

NOW = datetime(2026, 11, 21, 20, 0, tzinfo=UTC)
POD = {
    "containers": [{"name": "engine", "image": "engine:1", "env": [{"name": "A", "value": "1"}]}],
    "nodeSelector": {"gpu": "l40s"},
}


def installed() -> dict[str, Any]:
    found: dict[str, Any] = {
        "metadata": {"labels": {"inference.exo.dev/spec-hash": "s1"}, "annotations": {}},
        "spec": {"replicas": 1, "template": {"metadata": {}, "spec": copy.deepcopy(POD)}},
    }
    found["metadata"]["annotations"] = installed_annotations(found)
    return found


def set_image(item: dict[str, Any]) -> None:
    item["spec"]["template"]["spec"]["containers"][0]["image"] = "evil/image:1"


def add_variable(item: dict[str, Any]) -> None:
    item["spec"]["template"]["spec"]["containers"][0]["env"].append({"name": "B", "value": "2"})


def restart_rollout(item: dict[str, Any]) -> None:
    item["spec"]["template"]["metadata"]["annotations"] = {
        "kubectl.kubernetes.io/restartedAt": "2026-11-21T20:00:00Z"
    }


def autoscale(item: dict[str, Any]) -> None:
    item["spec"]["replicas"] = 7


def upgrade_with_helm(item: dict[str, Any]) -> None:
    set_image(item)
    item["metadata"]["labels"]["inference.exo.dev/spec-hash"] = "s2"


def forget(item: dict[str, Any]) -> None:
    set_image(item)
    item["metadata"]["annotations"] = {}


def interrupt_first_installation(item: dict[str, Any]) -> None:
    item["metadata"] = {"labels": {}, "annotations": {}}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda item: None, False),
        (interrupt_first_installation, False),
        (set_image, True),
        (add_variable, True),
        (restart_rollout, False),
        (autoscale, False),
        (upgrade_with_helm, False),
        (forget, False),
    ],
)
def test_what_counts_as_changed_by_hand(change: Any, expected: bool) -> None:
    item = installed()
    change(item)
    assert is_edited(item) is expected


def test_undoing_leaves_nothing_of_the_change() -> None:
    present = {**POD, "nodeSelector": {"gpu": "l40s", "mine": "1"}, "hostNetwork": True}
    assert undo(present, POD) == {
        "containers": POD["containers"],
        "nodeSelector": {"gpu": "l40s", "mine": None},
        "hostNetwork": None,
    }


def test_what_is_changed_again_and_again_is_not_fought() -> None:
    assert was_put_back(NOW, NOW + timedelta(seconds=59))
    assert not was_put_back(NOW, NOW + timedelta(seconds=61))
    assert not was_put_back(None, NOW)
