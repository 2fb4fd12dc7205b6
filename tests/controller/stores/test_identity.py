"""Which uid an object is known under: what it may ask for, who has it, and what stays for ever."""

from __future__ import annotations

from typing import Any

import pytest

from exo_inference.controller.stores.base import Change
from exo_inference.controller.stores.kubernetes.cache import Cache
from exo_inference.kubernetes_api.identity import UID_ANNOTATION, Claims, identify
from exo_inference.kubernetes_api.objects import NAME_ANNOTATION, read_object
from exo_inference.resources import InferenceDeployment, InferenceModel, model_object_name

CHOSEN = "7d3b9f0e-5a55-4b8b-9a5e-0d1f6c1d2a11"
OTHER = "0f1e2d3c-4b5a-4678-9abc-def012345678"


def raw(
    name: str = "chat", own: str = "k1", second: int = 0, *, kind: str = "", **given: Any
) -> dict[str, Any]:
    """Return an object; `given` are the annotation `asks`, and its status."""
    asks = given.pop("asks", None)
    spec = {"source": "org/m1"} if kind == "model" else {"model": "org/m1", "gpuType": "cpu"}
    return {
        "apiVersion": "inference.exo.dev/v1alpha1",
        "metadata": {
            "name": name,
            "uid": own,
            "resourceVersion": str(given.pop("version", 1)),
            "creationTimestamp": f"2026-11-21T19:00:{second:02}Z",
            "generation": 1,
            "annotations": {} if asks is None else {UID_ANNOTATION: asks},
        },
        "spec": spec,
        "status": given,
    }


# -- one object


@pytest.mark.parametrize(
    "asks",
    [
        pytest.param("chat/inference", id="the control plane's release"),
        pytest.param(f"chat/model-{CHOSEN}", id="a model's release"),
        pytest.param(f"chat/d-{CHOSEN}", id="a prefix of ours"),
        pytest.param(f"chat/{CHOSEN.upper()}", id="upper case"),
        pytest.param(f"chat/{CHOSEN.replace('-', '')}", id="no dashes"),
        pytest.param(f"chat/{{{CHOSEN}}}", id="braces"),
        pytest.param(f"chat/urn:uuid:{CHOSEN}", id="urn"),
        pytest.param(f"chat/{CHOSEN}\n", id="line feed"),
        pytest.param(f"chat/../{CHOSEN}", id="path"),
        pytest.param("chat/", id="empty"),
        pytest.param(CHOSEN, id="without the name"),
        pytest.param("", id="nothing"),
        pytest.param("chat/" + "a" * 100_000, id="long"),
    ],
)
def test_only_a_canonical_uuid_can_be_asked_for(asks: str) -> None:
    found = identify(raw(asks=asks))
    assert (found.uid, found.is_fixed) == ("k1", False)
    assert found.problem is not None
    assert found.problem.reason == "InvalidUid"
    assert "expected chat/UUID" in found.problem.message
    assert len(found.problem.message) < 400


def test_a_uuid_that_is_asked_for_counts_and_that_of_a_copy_says_nothing() -> None:
    assert identify(raw(asks=f"chat/{CHOSEN}")) == (CHOSEN, False, None)
    assert identify(raw("copy", asks=f"chat/{CHOSEN}")) == ("k1", False, None)
    assert identify(raw()) == ("k1", False, None)


@pytest.mark.parametrize(
    ("asks", "reason"),
    [
        (None, ""),
        (f"chat/{CHOSEN}", ""),
        (f"chat/{OTHER}", "UidChanged"),
        ("chat/k1", "UidChanged"),
        ("chat/inference", "UidChanged"),
        (f"other/{OTHER}", ""),
    ],
)
def test_what_the_first_adoption_wrote_down_stays(asks: str | None, reason: str) -> None:
    found = identify(raw(asks=asks, uid=CHOSEN))
    assert (found.uid, found.is_fixed) == (CHOSEN, True)
    assert (found.problem.reason if found.problem else "") == reason


@pytest.mark.parametrize(
    "status",
    [
        {"url": f"https://gateway.example/{CHOSEN}/v1"},
        {"path": f"pvc:exo-model-{CHOSEN}"},
        {"path": f"pvc:models/{CHOSEN}"},
    ],
)
def test_what_the_version_before_adopted_stays_too(status: dict[str, str]) -> None:
    for asks in (None, f"chat/{OTHER}"):
        assert identify(raw(asks=asks, **status))[:2] == (CHOSEN, True)


def test_an_id_that_is_no_uuid_and_served_before_goes_on() -> None:
    """An earlier version took any text; what is adopted is not torn down for that."""
    before = raw(asks="chat/prod-1", url="https://gateway.example/prod-1/v1")
    assert identify(before) == ("prod-1", True, None)


# -- several


class World:
    """Caches of two kinds that share their claims, and what watchers of deployments were told."""

    def __init__(self) -> None:
        claims = Claims()
        self.deployments = Cache(InferenceDeployment, claims)
        self.models = Cache(InferenceModel, claims)
        self.told: list[tuple[str, str]] = []
        self.deployments._queues.append(self)  # type: ignore[arg-type]

    def put_nowait(self, change: Change) -> None:
        self.told.append((change.object.metadata.name, change.object.metadata.uid))

    def uid(self, name: str) -> str:
        (stored,) = [s for s in self.deployments.all() if s.name == name]
        return self.deployments.present(stored).metadata.uid

    def reason(self, name: str) -> str:
        (stored,) = [s for s in self.deployments.all() if s.name == name]
        problem = self.deployments.present(stored).metadata.uid_problem
        return problem.reason if problem else ""


@pytest.mark.parametrize("older_first", [True, False])
def test_of_two_that_ask_for_one_uid_the_older_has_it(older_first: bool) -> None:
    world = World()
    both = [raw(asks=f"chat/{CHOSEN}"), raw("thief", "k2", 1, asks=f"thief/{CHOSEN}")]
    for item in both if older_first else reversed(both):
        world.deployments.observe(item)
    assert (world.uid("chat"), world.reason("chat")) == (CHOSEN, "")
    assert (world.uid("thief"), world.reason("thief")) == ("k2", "DuplicateUid")
    found = world.deployments.by_uid(CHOSEN), world.deployments.by_uid("k2")
    assert [stored.name for stored in found if stored] == ["chat", "thief"]


def test_an_adopted_one_keeps_its_uid_whoever_is_older() -> None:
    world = World()
    world.deployments.observe(raw("thief", "k2", 0, asks=f"thief/{CHOSEN}"))
    world.deployments.observe(raw(own="k1", second=1, uid=CHOSEN))
    assert (world.uid("chat"), world.reason("thief")) == (CHOSEN, "DuplicateUid")


def test_what_the_cluster_gave_to_one_no_other_gets() -> None:
    world = World()
    world.models.observe(raw("m1", OTHER, 5, kind="model"))
    world.deployments.observe(raw("thief", CHOSEN, 0, asks=f"thief/{OTHER}"))
    assert (world.uid("thief"), world.reason("thief")) == (CHOSEN, "DuplicateUid")
    assert world.deployments.by_uid(OTHER) is None
    assert world.models.by_uid(OTHER) is not None


def test_the_younger_one_gets_the_uid_when_the_older_one_is_gone_and_it_is_told() -> None:
    world = World()
    world.deployments.observe(raw(asks=f"chat/{CHOSEN}"))
    world.deployments.observe(raw("second", "k2", 1, asks=f"second/{CHOSEN}"))
    assert world.told == [("chat", CHOSEN), ("second", "k2")]
    world.deployments.forget("chat", "k1")
    assert world.told[2:] == [("chat", CHOSEN), ("second", CHOSEN)]
    assert (world.uid("second"), world.reason("second")) == (CHOSEN, "")
    assert world.deployments.by_uid("k2") is None


def test_an_object_that_was_made_anew_may_ask_for_the_same() -> None:
    world = World()
    world.deployments.observe(raw(asks=f"chat/{CHOSEN}", uid=CHOSEN))
    world.deployments.observe(raw(own="k9", second=9, asks=f"chat/{CHOSEN}", version=2))
    assert (world.uid("chat"), world.reason("chat")) == (CHOSEN, "")


def test_an_id_that_a_hand_took_out_of_the_status_stays() -> None:
    world = World()
    world.deployments.observe(raw(uid=CHOSEN))
    for version, status in ((2, {"uid": OTHER}), (3, {}), (4, {"uid": ""})):
        world.deployments.observe(raw(version=version, **status))
        assert (world.uid("chat"), world.reason("chat")) == (CHOSEN, "")


# -- other fields that become names


def test_a_model_is_named_after_its_source_whatever_it_says_itself() -> None:
    """Or one that is called as another source is would be taken for it."""
    name = model_object_name("org/victim")
    stored = read_object(InferenceModel, raw(name, kind="model", asks=f"{name}/{CHOSEN}"))
    assert stored.resource is not None
    assert stored.resource.metadata.name == model_object_name("org/m1")


@pytest.mark.parametrize("wanted", ["../x", "Upper", "a" * 64, "a b", "", "-a", "a.b", "a\n"])
def test_a_new_name_that_is_no_dns_label_is_passed_over(wanted: str) -> None:
    item = raw()
    item["metadata"]["annotations"][NAME_ANNOTATION] = wanted
    stored = read_object(InferenceDeployment, item)
    assert stored.resource is not None
    assert stored.resource.metadata.name == "chat"
