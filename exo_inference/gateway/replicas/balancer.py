"""Which replica gets a request: the one with the fewest pending, ties in turn.

`choose_replica` is pure. `Balancer` keeps what it needs: pending requests per replica name, whose
turn it is, and which replicas could not be reached a moment ago. It lives on one event loop and
does no I/O.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from exo_inference.gateway import errors
from exo_inference.gateway.table import Deployment, Replica

COOL_DOWN_SECONDS = 1.0
"""For how long a replica that could not be reached comes after all others."""


def choose_replica(
    replicas: Sequence[Replica],
    pending: Mapping[str, int],
    *,
    max_pending: int,
    last: Collection[str] = (),
    turn: int = 0,
) -> Replica | None:
    """Return the replica for the next request.

    Args:
        replicas: the candidates.
        pending: requests each one has now, by name; absent is none.
        max_pending: a replica with so many gets no more.
        last: names that are taken only when no other has room.
        turn: which one of equals; grows by one with each choice.

    Returns:
        The choice, or None when none has room.
    """
    open_ = [r for r in replicas if pending.get(r.name, 0) < max_pending]
    preferred = [r for r in open_ if r.name not in last] or open_
    if not preferred:
        return None
    fewest = min(pending.get(r.name, 0) for r in preferred)
    equals = [r for r in preferred if pending.get(r.name, 0) == fewest]
    return equals[turn % len(equals)]


def check_ready(deployment: Deployment) -> None:
    """Say where a deployment stands that has no ready replica.

    Raises:
        RequestRefused: 503, it has none.
    """
    if not deployment.replicas:
        raise errors.unavailable(_why_not_ready(deployment))


class Balancer:
    """Pending requests per replica, and the choices made from them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._turn = 0
        self._unreachable: dict[str, float] = {}
        self.pending: Counter[str] = Counter()

    def check(self, deployment: Deployment) -> None:
        """Refuse at once what `acquire` would refuse. Counts nothing, takes no turn.

        Raises:
            RequestRefused: 503 there is no ready replica, 429 none of them has room.
        """
        check_ready(deployment)
        limit = deployment.max_pending
        if all(self.pending.get(r.name, 0) >= limit for r in deployment.replicas):
            raise errors.saturated(deployment.name, limit)

    def acquire(self, deployment: Deployment, without: Collection[str] = ()) -> Replica | None:
        """Choose a replica and count one more pending on it.

        Args:
            deployment: its ready replicas are the candidates.
            without: names of replicas that must not be chosen.

        Returns:
            The replica, to be given back with `release`; None when every replica is in `without`.

        Raises:
            RequestRefused: 503 there is no ready replica, 429 none of them has room.
        """
        self.check(deployment)
        candidates = [r for r in deployment.replicas if r.name not in without]
        if not candidates:
            return None
        now = self._clock()
        self._unreachable = {n: t for n, t in self._unreachable.items() if t > now}
        replica = choose_replica(
            candidates,
            self.pending,
            max_pending=deployment.max_pending,
            last=self._unreachable,
            turn=self._turn,
        )
        if replica is None:
            raise errors.saturated(deployment.name, deployment.max_pending)
        self._turn += 1
        self.pending[replica.name] += 1
        return replica

    def release(self, name: str) -> None:
        """Count one less pending."""
        self.pending[name] -= 1
        if self.pending[name] <= 0:
            del self.pending[name]

    def note_unreachable(self, name: str) -> None:
        """Let this replica come last for a moment."""
        self._unreachable[name] = self._clock() + COOL_DOWN_SECONDS


def _why_not_ready(deployment: Deployment) -> str:
    """Say where the deployment stands: `deployment 'chat' is deploying: loading weights 43 %`."""
    details = f": {deployment.state_details}" if deployment.state_details else ""
    if deployment.state == "ready":  # scaled to 0, or all of its replicas have just gone
        return f"deployment {deployment.name!r} has no ready replica{details or ' at the moment'}"
    state = "in error" if deployment.state == "error" else deployment.state
    return f"deployment {deployment.name!r} is {state}{details}"
