"""What the routes work with: one object per application, in every request's state."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from starlette.requests import Request

from exo_inference.controller.admission.architectures import (
    Architectures,
    KnownModel,
    find_bundled,
)
from exo_inference.controller.admission.model import FindSource
from exo_inference.controller.admission.world import World, find_model
from exo_inference.controller.hub_tokens import read_hub_token
from exo_inference.controller.routing import Routing
from exo_inference.controller.secret_box import SecretBox
from exo_inference.controller.settings import ControllerSettings
from exo_inference.controller.stores.base import Store
from exo_inference.controller.stores.start_log import FileStarts, Starts
from exo_inference.planner.gpu_catalog import Gpu
from exo_inference.platforms.base import (
    InstanceTypeInfo,
    ModelPlatform,
    Platform,
    TokenSecretUnusable,
)
from exo_inference.resources import InferenceDeployment, InferenceModel
from exo_inference.wire import ModelRef

PAGE_SECONDS = 1.0
"""How long one page is given to all who ask."""


class SharedPage:
    """The page of metrics: made by one request at a time, and shared for a second.

    Args:
        clock: in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._making = asyncio.Lock()
        self._page = b""
        self._until = float("-inf")

    async def get(self, make: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return the page that was made last, or make another."""
        async with self._making:
            if self._clock() >= self._until:
                self._page = await make()
                self._until = self._clock() + PAGE_SECONDS
            return self._page


@dataclass(frozen=True)
class Context:
    """The parts that routes call.

    Attributes:
        org_uuid: the organization that owns everything here; made once per store.
        architectures: looks models up for judging.
        user_gpus: GPUs that the user described in `gpus.toml`, by name.
        writing: held from judging a change until it is recorded, so that two of them cannot both
            be right alone and wrong together.
        models: brings models' files on a cluster; None where this process fetches them itself.
        cluster_starts: where the real starts of a cluster are; None is a file of this machine.
        metrics: the page of metrics that all who ask at once share.
        stopping: set when the process is asked to stop; ends log streams.
        following: the answers that are log streams now.
    """

    settings: ControllerSettings
    store: Store
    platform: Platform
    find_source: FindSource
    secret_box: SecretBox
    routing: Routing
    org_uuid: str
    architectures: Architectures = field(default_factory=Architectures)
    user_gpus: Mapping[str, Gpu] = field(default_factory=dict)
    models: ModelPlatform | None = None
    cluster_starts: Starts | None = None
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    metrics: SharedPage = field(default_factory=SharedPage)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    following: set[object] = field(default_factory=set)

    @property
    def starts(self) -> Starts:
        """The real starts of this control plane."""
        return self.cluster_starts or FileStarts(self.settings.state.plan_starts_file)

    async def families(self) -> list[InstanceTypeInfo]:
        """Return what the platform has, with what the user says of GPUs of the same name."""
        offered = await self.platform.instance_types()
        return [replace(each, gpu=self.user_gpus.get(each.family, each.gpu)) for each in offered]

    async def load_world(
        self,
        families: Sequence[InstanceTypeInfo] = (),
        ref: ModelRef | None = None,
        draft_name: str | None = None,
    ) -> World:
        """Return what a request is judged against.

        Args:
            families: what the platform has; none where GPUs are not judged.
            ref: the deployment's model, looked up for judging.
            draft_name: the draft model that the engine's flags name, looked up too.
        """
        models = tuple(await self.store.list(InferenceModel))
        return World(
            models=models,
            deployments=tuple(await self.store.list(InferenceDeployment)),
            families=tuple(families),
            known={} if ref is None else await self.look_up(ref, draft_name, models),
        )

    @asynccontextmanager
    async def hold_world(
        self, families: Sequence[InstanceTypeInfo], ref: ModelRef, draft_name: str | None
    ) -> AsyncIterator[World]:
        """Hold `writing`, so that the world stays as it is until a change is recorded.

        The arguments are those of `load_world`.

        The models are looked up before, so that one that is slow to read holds up no other's writes;
        again if others have their names by the time the lock is held.
        """
        refs = (ref, ModelRef(name=draft_name))
        while True:
            models = await self.store.list(InferenceModel)
            known = await self.look_up(ref, draft_name, models)
            async with self.writing:
                world = replace(await self.load_world(families), known=known)
                if all(_is_same(find_model(r, models), find_model(r, world.models)) for r in refs):
                    yield world
                    return

    async def look_up(
        self, ref: ModelRef, draft_name: str | None, models: Sequence[InferenceModel]
    ) -> dict[str, KnownModel]:
        """Return what is known about a model of `models` and a draft model."""
        known = {}
        model = find_model(ref, models)
        if model is not None:
            known[model.spec.source] = await self._find_out(model)
        if draft_name is not None:
            draft = find_model(ModelRef(name=draft_name), models)
            known[draft_name] = (
                find_bundled(draft_name) if draft is None else await self._find_out(draft)
            )
        return known

    async def _find_out(self, model: InferenceModel) -> KnownModel:
        if self.models is None:
            return await self.architectures.of_model(model)
        return await self.architectures.of_remote(model, token=await self.hub_token(model))

    async def hub_token(self, model: InferenceModel) -> str | None:
        """Return the token to ask the Hub about a model with; None also where its Secret is of no use."""
        try:
            return await read_hub_token(self.store, self.secret_box, self.models, model)
        except TokenSecretUnusable:  # the model itself says so
            return None


def _is_same(before: InferenceModel | None, now: InferenceModel | None) -> bool:
    if before is None or now is None:
        return before is now
    return before.metadata.uid == now.metadata.uid


def context_of(request: Request) -> Context:
    """Return the context of the application that serves this request."""
    context = request.state.context
    assert isinstance(context, Context)
    return context
