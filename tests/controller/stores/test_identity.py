"""Which uid an object is known under: what it may ask for, who has it, and what stays for ever."""

from __future__ import annotations

from typing import Any

import pytest

from exo_inference.controller.reconcile.outcome import adopted_uid
from exo_inference.controller.secret_box import SecretBox
from exo_inference.controller.stores.base import Change
from exo_inference.controller.stores.kubernetes.cache import Cache
from exo_inference.kubernetes_api import identity as identity_module
from exo_inference.kubernetes_api.identity import (
    SEAL_ANNOTATION,
    SUCCESSOR_ANNOTATION,
    UID_ANNOTATION,
    Claims,
    Seal,
    identify,
    sealed_annotation,
)
from exo_inference.kubernetes_api.objects import read_object
from exo_inference.resources import (
    InferenceDeployment,
    InferenceModel,
    UidProblem,
)

CHOSEN = "7d3b9f0e-5a55-4b8b-9a5e-0d1f6c1d2a11"
OTHER = "0f1e2d3c-4b5a-4678-9abc-def012345678"


def raw(
    name: str = "chat", own: str = "k1", second: int = 0, *, kind: str = "", **given: Any
) -> dict[str, Any]:
    """Return an object; `given` are the annotations `asks` and `sealed`, and its status."""
    asks, sealed = given.pop("asks", None), given.pop("sealed", None)
    annotations = {UID_ANNOTATION: asks, SEAL_ANNOTATION: sealed}
    spec = {"source": "org/m1"} if kind == "model" else {"model": "org/m1", "gpuType": "cpu"}
    return {
        "apiVersion": "inference.exo.dev/v1alpha1",
        "metadata": {
            "name": name,
            "uid": own,
            "resourceVersion": str(given.pop("version", 1)),
            "creationTimestamp": f"2026-11-21T19:00:{second:02}Z",
            "generation": 1,
            "annotations": {key: value for key, value in annotations.items() if value is not None},
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
    assert identify(raw(asks=f"chat/{CHOSEN}"))[:3] == (CHOSEN, False, None)
    assert identify(raw("copy", asks=f"chat/{CHOSEN}"))[:3] == ("k1", False, None)
    assert identify(raw())[:3] == ("k1", False, None)


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
    assert identify(before)[:3] == ("prod-1", True, None)


# -- several


class World:
    """Caches of two kinds that share their claims, and what watchers of deployments were told."""

    def __init__(self, seal: Seal | None = None) -> None:
        claims = Claims()
        self.deployments = Cache(InferenceDeployment, claims, seal)
        self.models = Cache(InferenceModel, claims, seal)
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


def adopted(world: World, item: dict[str, Any]) -> dict[str, Any]:
    """Return an object as it is after a look of the controller at it."""
    (stored,) = [s for s in world.deployments.all() if s.name == item["metadata"]["name"]]
    resource = world.deployments.present(stored)
    assert isinstance(resource, InferenceDeployment)
    status: dict[str, Any] = {"uid": adopted_uid(resource)}
    if (problem := resource.metadata.uid_problem) is not None:
        text = {"reason": problem.reason, "message": problem.message}
        status["conditions"] = [{"type": "Ready", "status": "False", **text}]
    version = str(int(item["metadata"]["resourceVersion"]) + 1)
    metadata = {**item["metadata"], "resourceVersion": version}
    return {**item, "metadata": metadata, "status": status}


def test_who_was_refused_a_uid_does_not_get_it_by_waiting_for_the_end_of_who_has_it() -> None:
    """It has URL, key and clients: what is made anew under the same id in Git gets it, not who lay in wait."""
    world = World()
    world.deployments.observe(raw(asks=f"chat/{CHOSEN}", uid=CHOSEN))
    thief = raw("thief", "k2", 1, asks=f"thief/{CHOSEN}")
    for _ in range(2):  # what was written down changes nothing of what is told
        world.deployments.observe(thief)
        assert (world.uid("thief"), world.reason("thief")) == ("k2", "DuplicateUid")
        thief = adopted(world, thief)
        assert thief["status"]["uid"] == "k2"
        assert "InferenceDeployment chat had the id" in thief["status"]["conditions"][0]["message"]
    world.deployments.observe(thief)
    world.deployments.forget("chat", "k1")
    assert (world.uid("thief"), world.reason("thief")) == ("k2", "DuplicateUid")
    assert world.deployments.by_uid(CHOSEN) is None
    assert ("thief", CHOSEN) not in world.told
    world.deployments.observe(raw(own="k9", second=9, asks=f"chat/{CHOSEN}", version=9))
    assert (world.uid("chat"), world.reason("chat")) == (CHOSEN, "")
    freed = {**thief, "metadata": {**thief["metadata"], "annotations": {}, "resourceVersion": "10"}}
    world.deployments.observe(freed)
    assert (world.uid("thief"), world.reason("thief")) == ("k2", "")


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"deletionTimestamp": "2026-11-21T19:00:02Z"}, id="it is being deleted"),
        pytest.param({"generation": "x"}, id="it cannot be read"),
    ],
)
def test_one_at_which_no_look_is_taken_lies_in_no_wait_either(change: dict[str, str]) -> None:
    """A finalizer of its own holds it for ever, and nothing is written into its status."""
    world = World()
    thief = raw("thief", "k2", 1, asks=f"thief/{CHOSEN}")
    world.deployments.observe({**thief, "metadata": {**thief["metadata"], **change}})
    world.deployments.observe(raw(second=2, asks=f"chat/{CHOSEN}"))
    assert (world.uid("chat"), world.reason("chat")) == (CHOSEN, "")


def test_an_id_that_was_adopted_is_not_given_up_because_another_has_it_too() -> None:
    """Two that an earlier version adopted under one id: what runs of the younger is left as it is."""
    for known in ({"uid": CHOSEN}, {"url": f"https://gateway.example/{CHOSEN}/v1"}):
        second = raw("second", "k2", 1, asks=f"second/{CHOSEN}", **known)
        resource = read_object(InferenceDeployment, second).resource
        assert isinstance(resource, InferenceDeployment)
        problem = UidProblem("DuplicateUid", "")
        known_as = resource.metadata.known_as("k2", problem)
        refused = resource.model_copy(update={"metadata": known_as})
        assert adopted_uid(refused) == known.get("uid", "")


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


# -- a status that somebody else wrote, where no admission policy keeps him from it

BOX = SecretBox(b"k" * 32)


def sealed(name: str, uid: str, *, kind: str = "InferenceDeployment") -> str:
    return sealed_annotation(kind, name, uid, BOX.uid_seal)


LIES = [
    pytest.param({"uid": CHOSEN}, id="uid"),
    pytest.param({"url": f"https://gateway.example/{CHOSEN}/v1"}, id="url"),
    pytest.param({"uid": CHOSEN, "sealed": sealed("chat", CHOSEN)}, id="the other's seal"),
    pytest.param({"uid": CHOSEN, "sealed": f"{CHOSEN}.{'0' * 64}"}, id="a made up seal"),
    pytest.param(
        {"uid": CHOSEN, "sealed": sealed("thief", CHOSEN, kind="InferenceModel")}, id="a model's"
    ),
]


@pytest.mark.parametrize("victim_first", [True, False])
@pytest.mark.parametrize("lies", LIES)
def test_an_older_one_that_wrote_anothers_uid_into_its_status_does_not_have_it(
    lies: dict[str, str], victim_first: bool
) -> None:
    """As after a restart of all controllers, which then know nothing but what is written."""
    world = World(BOX.uid_seal)
    both = [
        raw(own="k1", second=9, uid=CHOSEN, sealed=sealed("chat", CHOSEN)),
        raw("thief", "k2", 0, keySha256="0" * 64, **lies),
    ]
    for item in both if victim_first else reversed(both):
        world.deployments.observe(item)
    assert (world.uid("chat"), world.reason("chat")) == (CHOSEN, "")
    assert (world.uid("thief"), world.reason("thief")) == ("k2", "DuplicateUid")
    found = world.deployments.by_uid(CHOSEN)
    assert found is not None
    assert found.name == "chat"
    (thief,) = [s for s in world.deployments.all() if s.name == "thief"]
    told = world.deployments.present(thief)
    assert isinstance(told, InferenceDeployment)
    assert (told.status.uid, told.status.url, told.status.key_sha256) == ("", "", "")
    assert adopted_uid(told) == "k2", "it is put right"


def test_a_model_does_not_get_a_deployments_uid_by_its_status() -> None:
    world = World(BOX.uid_seal)
    world.models.observe(raw("m1", "k2", 0, kind="model", uid=CHOSEN, path=f"pvc:exo-m-{CHOSEN}"))
    world.deployments.observe(raw(second=9, uid=CHOSEN, sealed=sealed("chat", CHOSEN)))
    assert (world.uid("chat"), world.reason("chat")) == (CHOSEN, "")
    assert world.models.by_uid(CHOSEN) is None


@pytest.mark.parametrize("status", [{"uid": OTHER}, {"uid": ""}, {}])
def test_what_is_sealed_is_known_by_that_whatever_its_status_says(status: dict[str, str]) -> None:
    found = identify(
        raw(asks=f"chat/{CHOSEN}", sealed=sealed("chat", CHOSEN), **status),
        "InferenceDeployment",
        BOX.uid_seal,
    )
    assert found[:4] == (CHOSEN, True, None, True)


def test_what_a_version_before_adopted_is_sealed_and_what_is_refused_is_not() -> None:
    world = World(BOX.uid_seal)
    world.deployments.observe(raw(uid=CHOSEN))
    world.deployments.observe(raw("thief", "k2", 1, asks=f"thief/{CHOSEN}"))
    world.deployments.observe(raw("odd", "k3", 2, asks="odd/inference"))
    found = {s.name: world.deployments.find_seal(s) for s in world.deployments.all()}
    assert found == {"chat": sealed("chat", CHOSEN), "thief": "", "odd": ""}
    world.deployments.observe(raw(uid=CHOSEN, sealed=found["chat"], version=2))
    (chat,) = [s for s in world.deployments.all() if s.name == "chat"]
    assert world.deployments.find_seal(chat) == ""
    assert chat.identity.is_sealed


def test_one_that_was_taken_over_before_there_were_seals_still_outranks_who_asks_for_its_uid() -> (
    None
):
    world = World(BOX.uid_seal)
    world.deployments.observe(raw("thief", "k2", 0, asks=f"thief/{CHOSEN}"))
    world.deployments.observe(raw(second=1, uid=CHOSEN))
    assert (world.uid("chat"), world.reason("thief")) == (CHOSEN, "DuplicateUid")


# -- the uid of what was deleted


@pytest.mark.parametrize("known", [{}, {"uid": CHOSEN}, {"url": f"https://g.example/{CHOSEN}/v1"}])
def test_the_uid_of_what_was_deleted_is_for_no_object_of_another_name(
    known: dict[str, str],
) -> None:
    """Its URL has clients, and keys that name it open what has it next."""
    world = World(BOX.uid_seal)
    world.deployments.observe(raw(asks=f"chat/{CHOSEN}", sealed=sealed("chat", CHOSEN)))
    world.deployments.forget("chat", "k1")
    thief = raw("thief", "k2", 1, asks=f"thief/{CHOSEN}", **known)
    world.deployments.observe(thief)
    assert (world.uid("thief"), world.reason("thief")) == ("k2", "DuplicateUid")
    assert world.deployments.by_uid(CHOSEN) is None
    thief = adopted(world, thief)
    assert thief["status"]["uid"] == "k2"
    kept = f"the id {CHOSEN} is kept for InferenceDeployment chat"
    assert kept in thief["status"]["conditions"][0]["message"]
    world.models.observe(raw("chat", "k3", 2, kind="model", asks=f"chat/{CHOSEN}"))
    assert world.models.by_uid(CHOSEN) is None
    world.deployments.observe(raw(own="k9", second=9, asks=f"chat/{CHOSEN}", version=9))
    assert (world.uid("chat"), world.reason("chat")) == (CHOSEN, "")


def test_an_object_names_who_may_have_its_uid_after_it() -> None:
    world = World(BOX.uid_seal)
    item = raw(asks=f"chat/{CHOSEN}")
    item["metadata"]["annotations"][SUCCESSOR_ANNOTATION] = "talk"
    world.deployments.observe(item)
    world.deployments.forget("chat", "k1")
    world.deployments.observe(raw(own="k9", second=2, asks=f"chat/{CHOSEN}", version=2))
    assert (world.uid("chat"), world.reason("chat")) == ("k9", "DuplicateUid")
    world.deployments.observe(raw("talk", "k2", 3, asks=f"talk/{CHOSEN}"))
    assert (world.uid("talk"), world.reason("talk")) == (CHOSEN, "")


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("own", [{}, {"uid": "k3"}])
def test_a_seal_that_outlived_its_object_gives_no_uid_that_went_to_another_name(
    waits: bool, own: dict[str, str]
) -> None:
    """Whoever could read the first object has its seal, and may create an object of its name."""
    world = World(BOX.uid_seal)
    first = raw(asks=f"chat/{CHOSEN}", uid=CHOSEN, sealed=sealed("chat", CHOSEN))
    first["metadata"]["annotations"][SUCCESSOR_ANNOTATION] = "talk"
    world.deployments.observe(first)
    world.deployments.forget("chat", "k1")
    world.deployments.observe(
        raw("talk", "k2", 2, asks=f"talk/{CHOSEN}", uid=CHOSEN, sealed=sealed("talk", CHOSEN))
    )
    thief = raw(own="k3", second=3, asks=f"chat/{CHOSEN}", sealed=sealed("chat", CHOSEN), **own)
    if waits:
        world.deployments.observe(thief)
        assert (world.uid("chat"), world.reason("chat")) == ("k3", "DuplicateUid")
    assert (world.uid("talk"), world.reason("talk")) == (CHOSEN, "")
    world.deployments.forget("talk", "k2")
    world.deployments.observe(thief)
    assert (world.uid("chat"), world.reason("chat")) == ("k3", "DuplicateUid")
    assert world.deployments.by_uid(CHOSEN) is None
    world.deployments.observe(raw("talk", "k9", 9, asks=f"talk/{CHOSEN}", version=9))
    assert (world.uid("talk"), world.reason("talk")) == (CHOSEN, "")


def test_one_that_carries_a_seal_on_is_behind_a_younger_one_that_was_taken_over() -> None:
    """As after a restore from a backup, which makes what is restored younger."""
    world = World(BOX.uid_seal)
    world.deployments.observe(raw(own="k1", second=1, sealed=sealed("chat", CHOSEN)))
    world.deployments.observe(raw("talk", "k2", 2, uid=CHOSEN, sealed=sealed("talk", CHOSEN)))
    assert (world.uid("talk"), world.reason("talk")) == (CHOSEN, "")
    assert world.uid("chat") == "k1"


def test_one_that_was_restored_without_its_status_has_the_uid_of_its_seal() -> None:
    world = World(BOX.uid_seal)
    world.deployments.observe(raw(uid=CHOSEN, sealed=sealed("chat", CHOSEN)))
    world.deployments.forget("chat", "k1")
    world.deployments.observe(raw(own="k2", second=5, sealed=sealed("chat", CHOSEN)))
    assert (world.uid("chat"), world.reason("chat")) == (CHOSEN, "")


def test_whose_a_uid_was_is_remembered_of_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity_module, "MAX_DEPARTED", 10)
    claims = Claims()
    for number in range(100):
        claims.remember(str(number), "InferenceDeployment chat")
    assert len(claims._departed) == 10
