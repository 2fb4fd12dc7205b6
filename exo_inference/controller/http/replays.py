"""A write that comes again with the same signature gets the first one's answer, and has no effect.

`middleware.py` asks before any route runs. A signature cannot be told from a copy of it, and the
vendor's clients send the same one again when they retry: so the retry is answered, and who has
captured the request can do nothing with it until it expires. Refusals are remembered as well, or
a captured one could be sent at a better moment; but expiry is in whole seconds, so that within the
first two a client may mean a new request by it, whose hindrance is gone. They are counted from the
first refusal: being refused again does not lengthen them. What has had no effect and asks to be
repeated (5xx, 429, 408) is not remembered.

Two equal changes that are meant, made within one second with another change between them, have one signature as
well: the second is told so, and not that it is in effect.

The memory is this process's and is bounded. What has to hold beyond it holds by other means: a write is recorded
under its signature, with the object (`operations.identify_request` and `identify_change`), and a refusal in a file
(`refused_signatures.py`), or on a cluster beside the objects (`cluster/refused_signatures.py`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from exo_inference.controller.http.refused_signatures import RefusalLog

logger = logging.getLogger(__name__)

MAX_SIGNATURES = 100_000
MAX_ANSWER_BYTES = 32 * 1024 * 1024
"""Of all answers together. The oldest ones go first; that they were given is still remembered."""

REFUSAL_SECONDS = 2.0
"""How long after its first refusal the same request is judged again."""

KEEP_SECONDS = 960.0
"""How long a signature is remembered at least, whatever the clock is set to: no clock that is right
accepts one for longer."""

_AGAIN = frozenset({408, 429})


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer as it was sent."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes

    @property
    def is_final(self) -> bool:
        """Whether the same request would be answered so for ever."""
        return self.status < 500 and self.status not in _AGAIN


@dataclass(slots=True)
class _Entry:
    """One signature. `ended` is set while nobody answers it: neither its first request nor a repeat.

    Attributes:
        judged_again_until: until then an equal request is not taken for a repeat; None if it was
            not refused.
        target: what it changes; empty for what it makes.
    """

    ended: asyncio.Event = field(default_factory=asyncio.Event)
    is_final: bool = False
    answer: Answer | None = None
    judged_again_until: float | None = None
    target: str = ""


class Forgotten(Exception):
    """The request was answered before, and the answer is not kept any more."""


class Superseded(Exception):
    """The request was answered before, and what it changed was changed by another one since."""


class ReplayMemory:
    """What writes were answered, by their signatures.

    Args:
        refusals: those of earlier processes; None where nothing is kept.
        clock: seconds since the epoch, as for the signatures.
        monotonic: seconds that nobody sets.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        refusals: RefusalLog | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        max_signatures: int = MAX_SIGNATURES,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
    ) -> None:
        self._clock = clock
        self._refusals = refusals
        self._monotonic = monotonic
        self._max_signatures = max_signatures
        self._max_answer_bytes = max_answer_bytes
        self._entries: dict[str, _Entry] = {}
        self._ends: OrderedDict[str, tuple[float, float]] = OrderedDict()  # in order of arrival
        self._answered: dict[str, int] = {}
        self._answer_bytes = 0
        self._latest: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._entries)

    async def once(
        self,
        signature: str,
        until: float,
        first: Callable[[], Awaitable[Answer | None]],
        *,
        target: str = "",
        repeat: Callable[[], Awaitable[object]] | None = None,
    ) -> Answer | None:
        """Run `first`, unless the same signature was answered before or is being answered now.

        Args:
            signature: of the request, with whose it is.
            until: when the signature ends to be accepted.
            first: answers the request and returns the answer; None if it broke off.
            target: what it changes, if that is there already.
            repeat: answers a repeat of what was done, one at a time, where what was told may be over
                since: another controller may have ended it. It knows the write and has no effect, and what
                it answers takes nothing from the first: it is refused where the value is over, for now or for good.

        Returns:
            The answer of before, which is still to be sent; None if `first` or `repeat` has run.

        Raises:
            Forgotten: the answer of before is not kept.
            Superseded: it would say that something is in effect that is not any more.
        """
        judged_again_until = None
        while (entry := self._entries.get(signature)) is not None:
            while not entry.ended.is_set():  # of several who waited one may answer again by now
                await entry.ended.wait()
            if entry.is_final:
                if entry.judged_again_until and self._clock() < entry.judged_again_until:
                    # Another repeat may be judged already: then this one waits for it.
                    if self._entries.get(signature) is entry:
                        judged_again_until = entry.judged_again_until
                        self._forget(signature)
                    continue
                if entry.answer is None:
                    raise Forgotten
                if entry.answer.status < 400 and self._latest.get(target, signature) != signature:
                    raise Superseded
                if repeat is None or entry.answer.status >= 400:
                    return entry.answer
                entry.ended.clear()
                try:
                    await repeat()
                finally:
                    entry.ended.set()
                return None
        is_new = judged_again_until is None
        if is_new and self._refusals is not None and signature in self._refusals:
            raise Forgotten
        entry = self._begin(signature, until)
        entry.target = target
        entry.judged_again_until = judged_again_until
        try:
            answer = await first()
            if answer is not None and answer.is_final:
                self._keep(signature, entry, answer)
                if answer.status >= 400 and self._refusals is not None:
                    self._refusals.add(signature, until)
        finally:
            if not entry.is_final and self._entries.get(signature) is entry:
                self._forget(signature)
            entry.ended.set()
        return None

    def _begin(self, signature: str, until: float) -> _Entry:
        now, monotonic = self._clock(), self._monotonic()
        while self._ends:
            ends, kept_until = next(iter(self._ends.values()))
            if ends > now or kept_until > monotonic:
                break
            self._forget_first()
        # There are no more entries than ends; writes that had no final answer have an end alone.
        while len(self._ends) >= self._max_signatures and signature not in self._ends:
            logger.warning("more than %d writes are remembered", self._max_signatures)
            self._forget_first()
        entry = self._entries[signature] = _Entry()
        self._ends.setdefault(signature, (until, monotonic + KEEP_SECONDS))
        return entry

    def _keep(self, signature: str, entry: _Entry, answer: Answer) -> None:
        entry.is_final = True
        if answer.status < 400:
            entry.judged_again_until = None
        elif entry.judged_again_until is None:
            entry.judged_again_until = self._clock() + REFUSAL_SECONDS
        if self._entries.get(signature) is not entry:  # it took so long that it was made room of
            return
        entry.answer = answer
        if entry.target and answer.status < 400:
            self._latest[entry.target] = signature
        self._answered[signature] = len(answer.body)
        self._answer_bytes += len(answer.body)
        while self._answer_bytes > self._max_answer_bytes:
            oldest = next(iter(self._answered))
            self._entries[oldest].answer = None
            self._answer_bytes -= self._answered.pop(oldest)

    def _forget_first(self) -> None:
        """Forget the signature that came first."""
        signature, _ = self._ends.popitem(last=False)
        self._forget(signature)

    def _forget(self, signature: str) -> None:
        """Forget a signature; its place in the queue of ends stays, and does no harm."""
        entry = self._entries.pop(signature, None)
        if entry is not None:
            if self._latest.get(entry.target) == signature:
                del self._latest[entry.target]
            self._answer_bytes -= self._answered.pop(signature, 0)
