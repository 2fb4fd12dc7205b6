"""Tells the other controllers which writes were refused, so that none of them does one later.

`middleware.py` tells of each refusal after it was answered. A record beside the objects takes the place of the one
that a write is known under (`stores/kubernetes/records.py`), so whoever is about to do a write sees it without asking
for more. Gateways do no writes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable

from exo_inference.controller.http.operations import signature_key
from exo_inference.controller.http.replays import KEEP_SECONDS, REFUSAL_SECONDS
from exo_inference.errors import StoreError

logger = logging.getLogger(__name__)

MAX_REFUSALS = 10_000
"""Of this controller, within the time for which a signature is accepted: some 10 MB in the cluster. Only who has the
signing key can cause more, and may do without a replay what it would."""

_PATIENCE_SECONDS = 5.0

AddRefusal = Callable[[str, float], Awaitable[None]]
"""Records one, by what a write is known under, with until when it is judged again."""


class SharedRefusals:
    """Records the signatures of refused writes, so many within a time.

    Args:
        record: of the store.
        clock: seconds since the epoch.
        monotonic: seconds that nobody sets.
    """

    def __init__(
        self,
        record: AddRefusal,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._record = record
        self._clock = clock
        self._monotonic = monotonic
        self._times: deque[float] = deque()

    async def add(self, signature: str) -> None:
        """Record one; where that cannot be done it is said, and no error."""
        now = self._monotonic()
        while self._times and self._times[0] <= now - KEEP_SECONDS:
            self._times.popleft()
        if len(self._times) >= MAX_REFUSALS:
            logger.warning("more than %d refused writes: this one is not shared", MAX_REFUSALS)
            return
        self._times.append(now)
        key, until = signature_key(signature), self._clock() + REFUSAL_SECONDS
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await self._record(key, until)
        except (StoreError, TimeoutError) as exc:
            logger.warning("the other controllers do not know of a refused write: %s", exc)
