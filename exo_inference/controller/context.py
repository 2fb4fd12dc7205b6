"""What the routes work with: one object per application, in every request's state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.requests import Request

from exo_inference.controller.admission import World
from exo_inference.controller.model_source import FindSource
from exo_inference.controller.routing_table import RoutingTable
from exo_inference.controller.secret_box import SecretBox
from exo_inference.controller.settings import ControllerSettings
from exo_inference.controller.stores.base import Store
from exo_inference.engines import Engine
from exo_inference.platforms.base import InstanceTypeInfo, Platform
from exo_inference.resources import InferenceDeployment, InferenceModel


@dataclass(frozen=True)
class Context:
    """The parts that routes call.

    Attributes:
        org_uuid: the organization that owns everything here; made once per store.
        writing: held from judging a change until it is recorded, so that two of them cannot both
            be right alone and wrong together.
        stopping: set when the process is asked to stop; ends log streams.
    """

    settings: ControllerSettings
    store: Store
    platform: Platform
    find_engine: Callable[[str], Engine]
    find_source: FindSource
    secret_box: SecretBox
    routing: RoutingTable
    org_uuid: str
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    async def load_world(self, families: list[InstanceTypeInfo]) -> World:
        """Return what a request is judged against."""
        return World(
            models=tuple(await self.store.list(InferenceModel)),
            deployments=tuple(await self.store.list(InferenceDeployment)),
            families=tuple(families),
            find_engine=self.find_engine,
        )


def context_of(request: Request) -> Context:
    """Return the context of the application that serves this request."""
    context = request.state.context
    assert isinstance(context, Context)
    return context
