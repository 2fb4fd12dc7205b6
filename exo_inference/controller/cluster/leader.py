"""Leader election by a Kubernetes Lease: of several controllers, one reconciles.

`server.py` runs the reconciler inside `LeaderElection.run`. A leader that cannot renew stops its work
before others may begin theirs. That holds however clocks are set, as long as they run equally fast:
nobody compares times of two machines, a candidate waits for one lease duration in which the Lease
does not change. Writes of a former leader that are still on their way are refused by their
resourceVersion.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

from exo_inference.controller.settings import LeaseTimes
from exo_inference.errors import StoreError
from exo_inference.kubernetes_api.client import ApiRefusal, get_if_there

logger = logging.getLogger(__name__)

_GROUP = "coordination.k8s.io/v1"


class LeaseApi(Protocol):
    """What is asked of the API: see `KubernetesApi`."""

    @property
    def namespace(self) -> str:
        """Where the Lease is."""
        ...

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Read an object."""
        ...

    async def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object."""
        ...

    async def merge(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Change fields of an object, if it is at the resourceVersion that the body names."""
        ...


class LeaderElection:
    """One candidate.

    Args:
        api: an impatient one, so that a leader knows in time that it cannot renew.
        name: of the Lease.
        identity: of this candidate; no other may have it, nor the same pod after a restart.
        times: how patient it is.
        clock: seconds, monotonic.
        sleep: waits for seconds of that clock.
    """

    def __init__(
        self,
        api: LeaseApi,
        name: str,
        identity: str,
        times: LeaseTimes | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._api = api
        self._name = name
        self._identity = identity
        self._times = times or LeaseTimes()
        self._clock = clock
        self._sleep = sleep
        self._seen_version = ""
        self._seen_at = 0.0
        self._held_until = float("-inf")

    @property
    def is_leading(self) -> bool:
        """Whether this candidate leads at this moment."""
        return self._clock() < self._held_until

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Lead whenever possible, until cancelled or until `lead` ends by itself.

        Args:
            lead: the work of a leader; it is cancelled when the Lease cannot be kept, and begun
                again when it was won again. It must end promptly when it is cancelled.
        """
        while True:
            while not await self.try_acquire():
                await self._sleep(self._times.retry_seconds)
            logger.info("%s leads", self._identity)
            work = asyncio.ensure_future(lead())
            try:
                await self._keep(work)
                if work.done():
                    return work.result()
                logger.warning("%s could not keep the lease and stops its work", self._identity)
            finally:
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)
                await self._release()

    async def try_acquire(self) -> bool:
        """Take or renew the Lease; return whether this candidate leads afterwards."""
        asked_at = self._clock()
        try:
            lease = await self._read()
            if lease is None or self._may_take(lease):
                await self._take(lease)
                self._held_until = asked_at + self._times.renew_seconds
            elif _holder(lease) != self._identity:
                self._held_until = float("-inf")
        except StoreError as exc:
            # Without the right to it nobody will ever lead; anything else passes.
            is_forbidden = isinstance(exc, ApiRefusal) and exc.status_code == 403
            level = logging.WARNING if is_forbidden else logging.INFO
            logger.log(level, "the lease could not be written: %s", exc.text)
        return self.is_leading

    async def _keep(self, work: asyncio.Future[None]) -> None:
        """Renew until the work ends or the Lease is lost."""
        while not work.done() and self.is_leading:
            pause = asyncio.ensure_future(self._sleep(self._times.retry_seconds))
            await asyncio.wait({work, pause}, return_when=asyncio.FIRST_COMPLETED)
            pause.cancel()
            if work.done():
                return
            try:  # an answer that comes after the deadline comes too late
                async with asyncio.timeout(max(0.0, self._held_until - self._clock())):
                    await self.try_acquire()
            except TimeoutError:
                logger.info("the lease was not renewed in time")

    async def _read(self) -> dict[str, Any] | None:
        lease = await get_if_there(self._api, self._path(self._name))
        if lease is None:
            return None
        version = lease["metadata"]["resourceVersion"]
        if version != self._seen_version:
            self._seen_version, self._seen_at = version, self._clock()
        return lease

    def _may_take(self, lease: Mapping[str, Any]) -> bool:
        holder = _holder(lease)
        if not holder:
            return True
        if holder == self._identity and self.is_leading:
            return True
        # The holder's own patience counts: it may have been started with another.
        lasts = float(lease["spec"].get("leaseDurationSeconds") or self._times.duration_seconds)
        return self._clock() >= self._seen_at + lasts

    async def _take(self, lease: Mapping[str, Any] | None) -> None:
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        spec: dict[str, Any] = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": math.ceil(self._times.duration_seconds),
            "renewTime": now,
        }
        if lease is None:
            spec |= {"acquireTime": now, "leaseTransitions": 0}
            body = {"metadata": {"name": self._name}, "spec": spec}
            written = await self._api.create(self._path(), body)
        else:
            if _holder(lease) != self._identity:
                transitions = int(lease["spec"].get("leaseTransitions") or 0)
                spec |= {"acquireTime": now, "leaseTransitions": transitions + 1}
            written = await self._api.merge(self._path(self._name), _at(lease, spec))
        self._seen_version = written["metadata"]["resourceVersion"]
        self._seen_at = self._clock()

    async def _release(self) -> None:
        """Let others lead at once, if the Lease is still ours."""
        held, self._held_until = self.is_leading, float("-inf")
        if not held:
            return
        try:
            lease = await self._read()
            if lease is not None and _holder(lease) == self._identity:
                await self._api.merge(self._path(self._name), _at(lease, {"holderIdentity": ""}))
        except StoreError as exc:
            logger.info("the lease was not released, others wait for its end: %s", exc.message)

    def _path(self, name: str = "") -> str:
        collection = f"/apis/{_GROUP}/namespaces/{self._api.namespace}/leases"
        return f"{collection}/{name}" if name else collection


def _holder(lease: Mapping[str, Any]) -> str:
    return str(lease.get("spec", {}).get("holderIdentity") or "")


def _at(lease: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    version = {"resourceVersion": lease["metadata"]["resourceVersion"]}
    return {"metadata": version, "spec": dict(spec)}
