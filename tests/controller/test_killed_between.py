"""Every verb that deletes or replaces, killed between its halves: no orphan, no lost uid, no lost key.

A kill is injected at a statement of a transaction, after a commit whose answer is lost, or before a step
of the platform; then everything in memory is made anew, as after a restart, and goes on.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import pytest

from exo_inference.controller.conditions import condition
from exo_inference.controller.http import operations
from exo_inference.controller.reconcile.deployment import DeploymentReconciler
from exo_inference.controller.reconcile.model import ModelReconciler
from exo_inference.controller.secret_box import (
    KEY_SECRET,
    TOKEN_SECRET,
    SecretBox,
    hash_api_key,
    new_api_key,
)
from exo_inference.controller.stores.base import NewEvent, ObjectNotFound, Recording
from exo_inference.controller.stores.sqlite import SqliteStore
from exo_inference.platforms.base import DesiredDeployment, ObservedDeployment
from exo_inference.resources import (
    DEPLOYMENT_FINALIZER,
    MODEL_FINALIZER,
    ApiKeySpec,
    DeploymentSpec,
    EngineRef,
    InferenceApiKey,
    InferenceDeployment,
    InferenceModel,
    ModelSpec,
    ModelStatus,
    ObjectMeta,
    model_object_name,
)
from tests.controller.fakes import FakePlatform, FakeSource

T = TypeVar("T")

CYCLES = pytest.mark.parametrize(
    "cycles",
    [
        pytest.param(40, id="40"),
        pytest.param(1000, id="1000", marks=[pytest.mark.slow, pytest.mark.timeout(300)]),
    ],
)
MODELS = ("org/m1", "org/m2")


class Killed(BaseException):
    """The process ended here."""


class Fate:
    """When the process ends: after so many steps from now; None is never."""

    def __init__(self) -> None:
        self.left: int | None = None
        self.kills = 0

    def step(self) -> None:
        if self.left is None:
            return
        self.left -= 1
        if self.left < 0:
            self.left = None
            self.kills += 1
            raise Killed


class MortalConnection:
    """A connection whose every statement may be the last."""

    def __init__(self, connection: sqlite3.Connection, fate: Fate) -> None:
        self._connection = connection
        self._fate = fate

    def execute(self, *words: Any) -> sqlite3.Cursor:
        self._fate.step()
        return self._connection.execute(*words)


class MortalPlatform(FakePlatform):
    """A platform that outlives the controller, which may end before and after each step."""

    fate: Fate

    async def apply(self, desired: DesiredDeployment) -> ObservedDeployment:
        self.fate.step()
        observed = await super().apply(desired)
        self.fate.step()
        return observed

    async def delete(self, uid: str) -> bool:
        self.fate.step()
        gone = await super().delete(uid)
        self.fate.step()
        return gone


class FakeRouting:
    """Nobody routes: whatever is asked for is so at once."""

    must_let_go = False

    def __init__(self) -> None:
        self.routes: set[str] = set()

    async def unrouted(self, names: list[str]) -> frozenset[str]:
        return frozenset(names)

    async def set_route(self, route: Any) -> None:
        self.routes.add(route.deployment_id)

    async def remove_route(self, uid: str) -> None:
        self.routes.discard(uid)

    def has_route(self, uid: str) -> bool:
        return uid in self.routes

    async def is_unrouted(self, uid: str) -> bool:
        return uid not in self.routes

    async def wait_until_applied(self) -> None:
        return


class FakeStarts:
    """Measures nothing."""

    def notice(self, *_: object) -> None:
        return

    def forget(self, *_: object) -> None:
        return


class Plane:
    """A control plane without its server: the store, the reconcilers, a platform."""

    def __init__(self, store: SqliteStore, root: Path, fate: Fate) -> None:
        self.store, self.fate, self.models_dir = store, fate, root / "models"
        self.box = SecretBox(b"k" * 32)
        self.platform = MortalPlatform(looks_until_ready=1)
        self.platform.fate = fate
        self.gateway = FakeRouting()
        self.restart()

    def restart(self) -> None:
        """Forget all that was in memory."""
        self.deployments = DeploymentReconciler(
            self.store,
            self.platform,
            self.gateway,
            self.box,
            "http://g",
            FakeStarts(),  # type: ignore[arg-type]
        )
        self.models = ModelReconciler(
            self.store,
            FakeSource().find,
            self.box,
            self.models_dir,
            lambda _: None,
            first_retry_seconds=1,
        )

    async def attempt(self, act: Callable[[], Awaitable[T]], steps: int) -> bool:
        """Do something that may be cut off after so many steps; return whether it was answered."""
        self.fate.left = steps
        try:
            await act()
            self.fate.step()  # the answer is lost as well
        except Killed:
            self.restart()
            return False
        finally:
            self.fate.left = None
        return True

    async def settle(self, reconciler: Any, uid: str, chance: random.Random) -> None:
        """Reconcile, killed now and then, until there is nothing more to do."""
        quiet = 0
        for _ in range(60):
            outcome: list[Any] = []

            async def look() -> None:
                outcome.append(await reconciler().reconcile(uid))  # noqa: B023

            answered = await self.attempt(look, chance.randrange(25))
            quiet = quiet + 1 if answered and outcome and not outcome[0].changed else 0
            if quiet >= 4:
                return

    async def settle_deployment(self, uid: str, chance: random.Random) -> None:
        await self.settle(lambda: self.deployments, uid, chance)

    async def settle_model(self, uid: str, chance: random.Random) -> None:
        await self.settle(lambda: self.models, uid, chance)

    async def create_deployment(self, name: str) -> tuple[str, str]:
        uid, key = str(uuid4()), new_api_key()
        sealed = {KEY_SECRET: self.box.encrypt(key, owner=uid, name=KEY_SECRET)}
        obj = InferenceDeployment(
            metadata=ObjectMeta(name=name, uid=uid, finalizers=(DEPLOYMENT_FINALIZER,)),
            spec=spec_of("org/m1"),
        )
        events = (NewEvent("Normal", "Created", "it was"),)
        operation = operations.succeeded("deployment", uid)
        await self.store.create(obj, Recording(operation, secrets=sealed, events=events))
        return uid, key

    async def create_model(self, source: str) -> str:
        uid = str(uuid4())
        ready = tuple(condition(t, True, t) for t in ("Resolved", "Downloaded", "Ready"))
        path = self.models_dir / uid
        path.mkdir(parents=True)
        obj = InferenceModel(
            metadata=ObjectMeta(
                name=model_object_name(source), uid=uid, finalizers=(MODEL_FINALIZER,)
            ),
            spec=ModelSpec(source=source),
            status=ModelStatus(conditions=ready, path=str(path)),
        )
        sealed = {TOKEN_SECRET: self.box.encrypt("hf", owner=uid, name=TOKEN_SECRET)}
        await self.store.create(obj, Recording(secrets=sealed))
        return uid

    async def key_of(self, uid: str) -> str:
        sealed = await self.store.get_secret(uid, KEY_SECRET)
        assert sealed is not None, "the key is lost"
        return self.box.decrypt(sealed, owner=uid, name=KEY_SECRET)

    async def check(self) -> None:
        """Assert that whatever is kept beside objects belongs to one that is there."""
        kinds = (InferenceDeployment, InferenceModel, InferenceApiKey)
        uids = {obj.metadata.uid for kind in kinds for obj in await self.store.list(kind)}

        def owners(db: sqlite3.Connection) -> set[str]:
            found = set()
            for table in ("secrets", "events"):
                found |= {row[0] for row in db.execute(f"SELECT DISTINCT owner FROM {table}")}
            return found

        orphans = await self.store._database.read(owners) - uids
        assert not orphans, f"secrets or events of nobody: {orphans}"
        assert await self.platform.deployments() <= uids, "replicas of nobody"
        assert self.gateway.routes <= uids, "routes to nobody"
        folders = (
            {entry.name for entry in self.models_dir.iterdir()}
            if self.models_dir.is_dir()
            else set()
        )
        assert folders <= uids, "files of nobody"


def spec_of(model: str, **more: Any) -> DeploymentSpec:
    return DeploymentSpec(model=model, gpu_type="cpu", engine=EngineRef(name="exo"), **more)


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncIterator[Plane]:
    store, fate = await SqliteStore.open(tmp_path / "controller.db"), Fate()
    transact = store._database._transact

    def mortal(work: Callable[[Any], T]) -> T:
        result = transact(lambda db: work(MortalConnection(db, fate)))
        fate.step()
        return result

    store._database._transact = mortal  # type: ignore[method-assign]
    # What is killed is this process, not the machine.
    connection = store._database._writer
    connection.executor.submit(
        lambda: connection.live_connection().execute("PRAGMA synchronous = OFF")
    ).result()
    yield Plane(store, tmp_path, fate)
    await store.close()


async def delete(plane: Plane, kind: Any, uid: str) -> None:
    """What the route does."""
    noun = "model" if kind is InferenceModel else "deployment"
    await operations.delete(plane.store, noun, await plane.store.get(kind, uid))


async def is_there(plane: Plane, kind: Any, uid: str) -> bool:
    try:
        return (await plane.store.get(kind, uid)).metadata.deletion_timestamp is None
    except ObjectNotFound:
        return False


async def is_gone(plane: Plane, kind: Any, uid: str) -> bool:
    try:
        await plane.store.get(kind, uid)
    except ObjectNotFound:
        return True
    return False


@CYCLES
async def test_a_replacement_that_is_killed_is_made_or_not_made(plane: Plane, cycles: int) -> None:
    for source in MODELS:
        await plane.create_model(source)
    uid, key = await plane.create_deployment("chat")
    chance, tallies = random.Random(7), {True: 0, False: 0}
    for number in range(cycles):
        before = await plane.store.get(InferenceDeployment, uid)
        after = spec_of(MODELS[number % 2], replicas=1 + number % 3, gpu_count=1)

        async def replace(present: Any = before, spec: Any = after) -> None:
            recording = Recording(
                operations.succeeded("deployment", uid),
                events=(NewEvent("Normal", "Replaced", f"{number}"),),  # noqa: B023
            )
            await plane.store.update(present.model_copy(update={"spec": spec}), recording)

        answered = await plane.attempt(replace, chance.randrange(14))
        tallies[answered] += 1
        found = await plane.store.get(InferenceDeployment, uid)
        assert found.spec in ((after,) if answered else (before.spec, after))
        if number % 5 == 0:
            await plane.settle_deployment(uid, chance)
            assert plane.platform.applied[-1].model_name == found.spec.model
        assert await plane.key_of(uid) == key
        await plane.check()
    assert min(tallies.values()) > cycles / 10, tallies
    assert [d.metadata.uid for d in await plane.store.list(InferenceDeployment)] == [uid]


@CYCLES
async def test_a_deployment_whose_deletion_is_killed_is_there_or_goes_and_can_be_made_again(
    plane: Plane, cycles: int
) -> None:
    await plane.create_model("org/m1")
    chance = random.Random(8)
    uid, key = await plane.create_deployment("chat")
    for _ in range(cycles):
        await plane.settle_deployment(uid, chance)
        answered = await plane.attempt(
            lambda: delete(plane, InferenceDeployment, uid),  # noqa: B023
            chance.randrange(8),
        )
        if await is_there(plane, InferenceDeployment, uid):
            assert not answered
            assert await plane.key_of(uid) == key
            continue
        while not await is_gone(plane, InferenceDeployment, uid):
            await plane.settle_deployment(uid, chance)
        await plane.check()
        assert await plane.platform.deployments() == set()
        uid, key = await plane.create_deployment("chat")  # the name is free again
    assert plane.fate.kills > cycles / 2


@CYCLES
async def test_a_model_whose_deletion_is_killed_is_there_or_goes_with_its_files(
    plane: Plane, cycles: int
) -> None:
    chance = random.Random(9)
    uid = await plane.create_model("org/m1")
    for _ in range(cycles):
        answered = await plane.attempt(
            lambda: delete(plane, InferenceModel, uid),  # noqa: B023
            chance.randrange(8),
        )
        if await is_there(plane, InferenceModel, uid):
            assert not answered
            assert (plane.models_dir / uid).is_dir()
            continue
        while not await is_gone(plane, InferenceModel, uid):
            await plane.settle_model(uid, chance)
        await plane.check()
        uid = await plane.create_model("org/m1")
    assert plane.fate.kills > cycles / 2


@CYCLES
async def test_a_key_that_is_changed_or_deleted_while_killed_is_the_old_or_the_new_one(
    plane: Plane, cycles: int
) -> None:
    chance, value = random.Random(10), new_api_key()
    metadata = ObjectMeta(name="ci", uid=str(uuid4()))
    spec = ApiKeySpec(display_name="ci", scope="public", sha256=hash_api_key(value))
    stored = await plane.store.create(InferenceApiKey(metadata=metadata, spec=spec))
    for number in range(cycles):
        uid, old = stored.metadata.uid, stored.spec.sha256
        if number % 2:
            new = hash_api_key(new_api_key())
            changed = stored.model_copy(
                update={"spec": stored.spec.model_copy(update={"sha256": new})}
            )
            answered = await plane.attempt(
                lambda: plane.store.update(changed),  # noqa: B023
                chance.randrange(7),
            )
            stored = await plane.store.get(InferenceApiKey, uid)
            assert stored.spec.sha256 in ((new,) if answered else (old, new))
            continue
        operation = Recording(operations.succeeded("api-key", uid))
        answered = await plane.attempt(
            lambda: plane.store.delete(InferenceApiKey, uid, operation),  # noqa: B023
            chance.randrange(8),
        )
        if await is_gone(plane, InferenceApiKey, uid):
            fresh = metadata.model_copy(update={"uid": str(uuid4())})
            stored = await plane.store.create(InferenceApiKey(metadata=fresh, spec=spec))
        else:
            assert not answered
        await plane.check()
    assert plane.fate.kills > cycles / 10
