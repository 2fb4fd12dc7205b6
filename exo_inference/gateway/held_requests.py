"""Holds requests while no replica can take them and one is on its way.

The routing table says which deployments have a replica on its way (`Deployment.is_coming`); a replica
that the table names and that cannot be reached has ended a moment ago, which the controller is about to
notice. Both are waited for within bounds of number and time. What is held costs a connection and, once
its body was read, its share of what `uploads.py` may hold; of both a deployment has a quarter at most, so
one that crashes for hours leaves room for the others. Lives on one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from exo_inference.errors import ConfigurationError
from exo_inference.gateway.exchange import Exchange
from exo_inference.gateway.table import Deployment

LOOK_AGAIN_SECONDS = 0.5
"""A new table wakes what is held; without one, unreachable replicas are tried again so often."""

SHARE = 4
"""One deployment has at most this part of the places."""

MAX_SECONDS = 3600
MAX_REQUESTS = 100_000


@dataclass(frozen=True, slots=True)
class HoldSettings:
    """The bounds.

    Attributes:
        seconds: the longest time that one request is held; 0 holds none.
        max_requests: held at one time; further ones are refused as if none could be. One deployment
            has a quarter of them.
        deployment_bytes: what the bodies of the requests may take that are held for one deployment.
        unseen_seconds: how long a replica may be unreachable that the table calls ready; each time anew.
        stop_seconds: the longest time that requests are still held once the gateway stops.
    """

    seconds: float = 60.0
    max_requests: int = 4096
    deployment_bytes: int = 128 << 20
    unseen_seconds: float = 10.0
    stop_seconds: float = 5.0


def read_hold_settings(environment: Mapping[str, str]) -> HoldSettings:
    """Return what `EXO_HOLD_SECONDS` and `EXO_HOLD_REQUESTS` say.

    Raises:
        ConfigurationError: one of them is no whole number within its bounds.
    """
    default = HoldSettings()
    return HoldSettings(
        seconds=_number(environment, "EXO_HOLD_SECONDS", int(default.seconds), MAX_SECONDS),
        max_requests=_number(environment, "EXO_HOLD_REQUESTS", default.max_requests, MAX_REQUESTS),
    )


class Holding:
    """All requests that a gateway holds.

    Attributes:
        num_held: how many there are now.
    """

    def __init__(self, settings: HoldSettings | None = None) -> None:
        self._settings = settings or HoldSettings()
        self._news = asyncio.Event()
        self._stop_at: float | None = None
        self._places: dict[str, dict[int, int]] = {}
        """Bytes of the body of each request that has a place, by its exchange, by deployment."""
        self.num_held = 0

    def follow(self) -> None:
        """Wake everything that is held: there is a new table."""
        self._news.set()
        self._news = asyncio.Event()

    def stop(self) -> None:
        """Hold nothing for long any more; called when the gateway stops."""
        self._stop_at = asyncio.get_running_loop().time() + self._settings.stop_seconds
        self.follow()

    async def until_ready(
        self,
        exchange: Exchange,
        deployment: Deployment,
        find: Callable[[], Deployment],
        *,
        num_bytes: int = 0,
    ) -> Deployment:
        """Hold the request while the deployment has no replica and one is on its way.

        Args:
            exchange: the request; its bound of time is for all its waits together, and it keeps its
                place until `release`.
            deployment: as the table has it now.
            find: returns it as the table has it then.
            num_bytes: of its body, as far as it was read.

        Returns:
            The deployment of the newest table; without replicas where it was held long enough.
        """
        while not deployment.replicas and deployment.is_coming:
            if not await self._hold(exchange, num_bytes):
                break
            deployment = find()
        return deployment

    async def until_reachable(
        self, exchange: Exchange, deployment: Deployment, *, since: float, num_bytes: int = 0
    ) -> bool:
        """Hold the request for a moment because no replica of the table could be reached.

        It keeps its place until `release`, so none that comes later takes it while this one tries.

        Args:
            exchange: the request.
            deployment: as the table has it now.
            since: when none could be reached first, after the last that could; a time of the loop. What
                the request waited before that, for another end of a replica, does not count.
            num_bytes: of its body.

        Returns:
            Whether it is worth to try again.
        """
        unseen_until = None if deployment.is_coming else since + self._settings.unseen_seconds
        return await self._hold(exchange, num_bytes, unseen_until)

    def release(self, exchange: Exchange) -> None:
        """Give the request's place to others, if it has one: it is answered, or held no longer."""
        places = self._places.get(exchange.deployment_id, {})
        places.pop(id(exchange), None)
        if not places:
            self._places.pop(exchange.deployment_id, None)

    def _take_place(self, exchange: Exchange, num_bytes: int) -> bool:
        """Return whether the request has a place, now or already."""
        places = self._places.get(exchange.deployment_id, {})
        if id(exchange) in places:
            return True
        limit = self._settings.max_requests
        if (
            sum(map(len, self._places.values())) >= limit
            or len(places) >= max(1, limit // SHARE)
            or sum(places.values()) + num_bytes > self._settings.deployment_bytes
        ):
            return False
        self._places[exchange.deployment_id] = places
        places[id(exchange)] = num_bytes
        return True

    async def _hold(
        self, exchange: Exchange, num_bytes: int, unseen_until: float | None = None
    ) -> bool:
        """Wait for news or a while; return False at once where the bounds are reached."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        deadline = now + self._settings.seconds - exchange.held_seconds
        for other in (unseen_until, self._stop_at):
            deadline = deadline if other is None else min(deadline, other)
        if now >= deadline or not self._take_place(exchange, num_bytes):
            return False
        self.num_held += 1
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(min(deadline, now + LOOK_AGAIN_SECONDS)):
                    await self._news.wait()
        finally:
            self.num_held -= 1
            exchange.held_seconds += loop.time() - now
        return True


def _number(environment: Mapping[str, str], name: str, default: int, maximum: int) -> int:
    text = environment.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and int(text) <= maximum):
        raise ConfigurationError(
            f"{name} is {text[:64]!r}, expected a whole number from 0 to {maximum}",
            hint="Correct it, or leave it out.",
        )
    return int(text)
