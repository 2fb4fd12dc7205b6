"""The list of deployments is that of the views, and unchanged ones are not made anew."""

from __future__ import annotations

import json

import pytest

from exo_inference.controller.http import deployment_list
from exo_inference.controller.http.deployment_list import ListedDeployments
from exo_inference.controller.http.views import view_deployment
from exo_inference.resources import InferenceDeployment
from exo_inference.wire import DeploymentList
from tests.controller.builders import assess, deployment, replica


def named(name: str, *, deleting: bool = False) -> InferenceDeployment:
    found = assess(deployment(deleting=deleting), replica("a"))
    metadata = found.metadata.model_copy(update={"uid": f"uid-{name}", "name": f"{name} é"})
    return found.model_copy(update={"metadata": metadata})


def test_it_is_the_list_of_the_views_and_only_changes_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[str] = []

    def view(item: InferenceDeployment, *args: object, **more: object) -> object:
        made.append(item.metadata.uid)
        return view_deployment(item, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(deployment_list, "view_deployment", view)
    lists = ListedDeployments()
    a, b, c = named("a"), named("b", deleting=True), named("c")
    ids: dict[str, str] = {"org/m1": "m-1"}
    newer = a.model_copy(update={"status": a.status.model_copy(update={"ready_replicas": 7})})
    for given, model_ids, expected in (
        ([], ids, []),
        ([a, b], ids, ["uid-a", "uid-b"]),
        ([a, b, c], ids, ["uid-c"]),
        ([c, newer, b], ids, ["uid-a"]),
        ([newer, b], {}, ["uid-a", "uid-b"]),
        ([newer, b], {"org/m1": "m-2"}, ["uid-a", "uid-b"]),
        ([newer, b], {"org/m1": "m-2"}, []),
    ):
        made.clear()
        answer = lists.answer(given, model_ids)
        views = [view_deployment(item, model_ids, details=False) for item in given]
        assert json.loads(bytes(answer.body)) == DeploymentList(deployments=views).to_wire()
        assert made == expected
