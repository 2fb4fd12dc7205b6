"""What a cache makes of objects that come late, twice, or from before a restore."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from exo_inference.controller.stores.base import Change
from exo_inference.controller.stores.kubernetes.cache import MAX_GONE, Cache
from exo_inference.kubernetes_api.identity import UID_ANNOTATION
from exo_inference.kubernetes_api.objects import (
    NAME_ANNOTATION,
    new_object,
    plan_change,
    read_object,
)
from exo_inference.resources import (
    InferenceDeployment,
    InferenceModel,
    ObjectMeta,
    model_object_name,
)
from tests.controller.builders import NOW
from tests.controller.stores.objects import deployment, with_replicas

CHOSEN = "7d3b9f0e-5a55-4b8b-9a5e-0d1f6c1d2a11"


def raw(name: str = "chat", version: int = 1, uid: str = "k1", **annotations: str) -> Any:
    return {
        "apiVersion": "inference.exo.dev/v1alpha1",
        "metadata": {
            "name": name,
            "uid": uid,
            "resourceVersion": str(version),
            "creationTimestamp": "2026-11-21T19:00:00Z",
            "generation": 1,
            "annotations": annotations,
        },
        "spec": {"model": "org/m1", "gpuType": "cpu", "replicas": version},
    }


@pytest.fixture
def cache() -> Cache:
    return Cache(InferenceDeployment)


@pytest.fixture
def told(cache: Cache) -> list[str]:
    """What watchers were told, as words; filled while the test runs."""
    words: list[str] = []

    class Words:
        def put_nowait(self, change: Change) -> None:
            obj = change.object
            assert isinstance(obj, InferenceDeployment)
            words.append(f"{change.type} {obj.metadata.name} {obj.spec.replicas}")

    cache._queues.append(Words())  # type: ignore[arg-type]
    return words


def test_what_is_not_newer_is_not_told(cache: Cache, told: list[str]) -> None:
    for version in (2, 2, 1, 3, 2):
        cache.observe(raw(version=version))
    assert told == ["ADDED chat 2", "MODIFIED chat 3"]


def test_late_news_do_not_bring_a_deleted_object_back(cache: Cache, told: list[str]) -> None:
    cache.observe(raw(version=2))
    cache.forget("chat", "k1")
    cache.observe(raw(version=3))
    cache.observe_deletion(raw(version=4))
    cache.observe(raw(version=3))
    assert told == ["ADDED chat 2", "DELETED chat 2"]
    cache.observe(raw(version=5, uid="k2"))
    assert told[-1] == "ADDED chat 5"


def test_only_so_many_deleted_objects_are_remembered(cache: Cache) -> None:
    for number in range(MAX_GONE + 10):
        cache.forget("chat", f"k{number}")
    assert len(cache._gone) == MAX_GONE


def test_an_object_made_anew_is_another_one(cache: Cache, told: list[str]) -> None:
    cache.observe(raw(version=2))
    cache.observe(raw(version=5, uid="k2"))
    assert told == ["ADDED chat 2", "DELETED chat 2", "ADDED chat 5"]
    assert cache.by_uid("k1") is None


def test_a_new_list_tells_the_differences_alone(cache: Cache, told: list[str]) -> None:
    for name in ("same", "changed", "deleted"):
        cache.observe(raw(name, 2, uid=name))
    told.clear()
    newer = [raw("same", 2, uid="same"), raw("changed", 7, uid="changed"), raw("new", 8, uid="new")]
    cache.replace(newer, 9, asked_at=cache.version)
    assert sorted(told) == ["ADDED new 8", "DELETED deleted 2", "MODIFIED changed 7"]
    assert cache.version == 9


def test_what_was_written_after_the_list_was_made_stays(cache: Cache, told: list[str]) -> None:
    asked_at = cache.version
    cache.observe(raw("written", 20, uid="w"))
    cache.replace([], 10, asked_at=asked_at)
    assert told == ["ADDED written 20"]


def test_a_cluster_put_back_to_an_earlier_state_is_believed(cache: Cache, told: list[str]) -> None:
    cache.observe(raw(version=50))
    cache.replace([raw(version=10)], 12, asked_at=cache.version)
    assert told == ["ADDED chat 50", "DELETED chat 50", "ADDED chat 10"]
    assert cache.version == 12


def test_a_uid_goes_with_the_name_it_was_chosen_for() -> None:
    chosen = f"chat/{CHOSEN}"
    first = read_object(InferenceDeployment, raw(**{UID_ANNOTATION: chosen}))
    copied = read_object(InferenceDeployment, raw("copy", uid="k2", **{UID_ANNOTATION: chosen}))
    assert (first.resource_uid, copied.resource_uid) == (CHOSEN, "k2")


def test_an_objects_own_name_outranks_one_that_another_was_renamed_to(cache: Cache) -> None:
    renamed = cache.observe(raw("old", 1, uid="a", **{NAME_ANNOTATION: "new"}))
    assert cache.present(renamed).metadata.name == "new"
    cache.observe(raw("new", 2, uid="b"))
    found = cache.by_name("new")
    assert found is not None
    assert found.uid == "b"
    assert cache.present(renamed).metadata.name == "old"


def test_a_model_from_a_manifest_is_known_by_its_source() -> None:
    manifest = raw("any-name")
    manifest["spec"] = {"source": "exo/tiny-chat"}
    stored = read_object(InferenceModel, manifest)
    assert stored.resource is not None
    assert stored.resource.metadata.name == model_object_name("exo/tiny-chat")


def test_an_object_that_cannot_be_read_says_what_is_wrong() -> None:
    manifest = raw()
    manifest["spec"]["fieldOfTheFuture"] = 1
    stored = read_object(InferenceDeployment, manifest)
    assert stored.resource is None
    assert "spec.fieldOfTheFuture" in stored.problem


def test_a_status_of_a_newer_version_does_not_hide_its_object() -> None:
    manifest = raw()
    manifest["status"] = {"readyReplicas": 3, "fieldOfTheFuture": 1}
    stored = read_object(InferenceDeployment, manifest)
    assert isinstance(stored.resource, InferenceDeployment)
    assert stored.resource.status.ready_replicas == 0


def test_a_change_names_what_differs_and_nothing_else() -> None:
    made = deployment()
    made = made.model_copy(update={"metadata": made.metadata.model_copy(update={"uid": "u"})})
    body = new_object(made, NOW)
    body["metadata"] |= {
        "uid": "k",
        "resourceVersion": "1",
        "creationTimestamp": "2026-11-21T19:00:00Z",
    }
    stored = read_object(InferenceDeployment, body)
    present = stored.resource
    assert isinstance(present, InferenceDeployment)
    assert plan_change(stored, present) == {}
    assert plan_change(stored, with_replicas(present, 3)) == {"spec": {"replicas": 3}}
    spec = present.spec.model_copy(
        update={"engine": present.spec.engine.model_copy(update={"version": "1"})}
    )
    meta = ObjectMeta(**{**present.metadata.model_dump(), "name": "renamed", "labels": {}})
    changed = present.model_copy(update={"spec": spec, "metadata": meta})
    assert plan_change(stored, changed) == {
        "metadata": {"labels": {"team": None}, "annotations": {NAME_ANNOTATION: "renamed"}},
        "spec": {"engine": {"version": "1"}},
    }


async def test_a_watcher_that_leaves_is_not_told_any_more(cache: Cache) -> None:
    changes: AsyncIterator[Change] = cache.subscribe()
    cache.observe(raw())
    assert (await anext(changes)).type == "ADDED"
    await changes.aclose()  # type: ignore[attr-defined]
    assert cache._queues == []
