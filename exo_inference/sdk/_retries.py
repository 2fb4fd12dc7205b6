"""Which requests are sent again, and when. Pure: `_http.py` gives these to tenacity.

A request that never left may always be repeated. One that may have arrived is repeated only where
doing it twice is doing it once: reads, deletions, and creates with an idempotency key.
"""

from __future__ import annotations

from collections.abc import Callable

from tenacity import RetryCallState

from exo_inference.errors import ConnectionFailed
from exo_inference.sdk._messages import Request, Response
from exo_inference.sdk._problems import retry_after

MAX_ATTEMPTS = 4
FIRST_WAIT_SECONDS = 0.2
MAX_WAIT_SECONDS = 5.0
MAX_RETRY_AFTER_SECONDS = 30.0
"""A server that asks for more than this gets no repeat; the caller decides."""

_TRANSIENT = frozenset({429, 500, 502, 503, 504})


def should_repeat(request: Request) -> Callable[[RetryCallState], bool]:
    """Return the predicate that tenacity asks after each attempt."""

    def decide(state: RetryCallState) -> bool:
        assert state.outcome is not None, "tenacity asks after an attempt"
        failure = state.outcome.exception()
        if isinstance(failure, ConnectionFailed):
            return request.repeatable or not failure.request_sent
        if failure is not None:
            return False
        return _is_transient(request, state.outcome.result())

    return decide


def should_stop(end: float, monotonic: Callable[[], float]) -> Callable[[RetryCallState], bool]:
    """Return the predicate that ends the attempts: there were enough, or the next begins too late.

    Args:
        end: of the whole request, on the clock.
        monotonic: the clock, in seconds.
    """

    def decide(state: RetryCallState) -> bool:
        return state.attempt_number >= MAX_ATTEMPTS or monotonic() + state.upcoming_sleep >= end

    return decide


def wait_seconds(state: RetryCallState) -> float:
    """Return the pause before the next attempt: what the server asks, or doubling from 0.2 s."""
    assert state.outcome is not None, "tenacity asks after an attempt"
    if state.outcome.exception() is None:
        asked = retry_after(state.outcome.result().headers)
        if asked is not None:
            return asked
    return min(MAX_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2.0 ** (state.attempt_number - 1))


def _is_transient(request: Request, response: Response) -> bool:
    if response.status_code not in _TRANSIENT:
        return False
    if (retry_after(response.headers) or 0) > MAX_RETRY_AFTER_SECONDS:
        return False
    # 429 says that the request was not looked at, so it may be repeated whatever it was.
    return request.repeatable or response.status_code == 429
