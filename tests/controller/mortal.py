"""A control plane that is killed at any line, for the tests of what is left then; on SQLite and on a cluster.

A kill is injected at a statement of a transaction or a request to the Kubernetes API, before or after it
is in effect, or before a step of the platform; then everything in memory is made anew, as after a
restart, and goes on.
"""

from __future__ import annotations

import abc
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from uuid import uuid4

from exo_inference.controller.conditions import condition
from exo_inference.controller.http import operations
from exo_inference.controller.reconcile.cluster_model import ClusterModelReconciler
from exo_inference.controller.reconcile.deployment import DeploymentReconciler
from exo_inference.controller.reconcile.model import ModelReconciler
from exo_inference.controller.secret_box import (
    KEY_SECRET,
    TOKEN_SECRET,
    SecretBox,
    new_api_key,
)
from exo_inference.controller.stores.base import NewEvent, Recording, Store
from exo_inference.platforms.base import DesiredDeployment, ObservedDeployment
from exo_inference.resources import (
    DEPLOYMENT_FINALIZER,
    MODEL_FINALIZER,
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
from tests.controller.fakes import FakePlatform

T = TypeVar("T")


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


class Plane(abc.ABC):
    """A control plane without its server: the store, the reconcilers, a platform.

    Attributes:
        num_steps: more than a write takes, so that a kill may come after any of them, and sometimes none comes.
        num_settling: the same of a look of a reconciler; restarts of a cluster's controller are dear.
    """

    store: Store
    deployments: DeploymentReconciler
    models: ModelReconciler | ClusterModelReconciler
    num_steps: int
    num_settling: int

    def __init__(self, fate: Fate) -> None:
        self.fate = fate
        self.box = SecretBox(b"k" * 32)
        self.platform = MortalPlatform(looks_until_ready=1)
        self.platform.fate = fate
        self.gateway = FakeRouting()

    @abc.abstractmethod
    async def restart(self) -> None:
        """Forget all that was in memory."""

    @abc.abstractmethod
    def folders(self) -> set[str]:
        """Return the uids of the models whose files are there."""

    @abc.abstractmethod
    async def place_files(self, uid: str) -> str:
        """Put the files of a model there; return the path that its status names."""

    @abc.abstractmethod
    async def owners(self, uids: set[str]) -> set[str]:
        """Return the uids of objects for which something is kept; those of objects are told."""

    def new_deployments(self) -> DeploymentReconciler:
        """Return a reconciler that knows nothing yet."""
        return DeploymentReconciler(
            self.store,
            self.platform,
            self.gateway,
            self.box,
            "http://g",
            FakeStarts(),  # type: ignore[arg-type]
        )

    async def attempt(self, act: Callable[[], Awaitable[T]], steps: int) -> bool:
        """Do something that may be cut off after so many steps; return whether it was answered."""
        self.fate.left = steps
        try:
            await act()
            self.fate.step()  # the answer is lost as well
        except Killed:
            await self.restart()
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

            answered = await self.attempt(look, chance.randrange(self.num_settling))
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
        path = await self.place_files(uid)
        obj = InferenceModel(
            metadata=ObjectMeta(
                name=model_object_name(source), uid=uid, finalizers=(MODEL_FINALIZER,)
            ),
            spec=ModelSpec(source=source),
            status=ModelStatus(conditions=ready, path=path),
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

        orphans = await self.owners(uids) - uids
        assert not orphans, f"secrets or events of nobody: {orphans}"
        assert await self.platform.deployments() <= uids, "replicas of nobody"
        assert self.gateway.routes <= uids, "routes to nobody"
        assert self.folders() <= uids, "files of nobody"


def spec_of(model: str, **more: Any) -> DeploymentSpec:
    return DeploymentSpec(model=model, gpu_type="cpu", engine=EngineRef(name="exo"), **more)
