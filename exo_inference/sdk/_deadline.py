"""A limit on the whole of blocking work; httpx has limits on each step, which a server that drips bytes stretches."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

GRACE_SECONDS = 0.1
"""More than the limit of a step: where nothing comes at all, that one says what it waited for."""


def run_within(seconds: float, work: Callable[[], T]) -> T:
    """Return what work returns, or raise what it raises; infinity is no limit.

    Work whose time is over goes on in a thread that keeps nobody from ending, and what it returns is lost.

    Raises:
        TimeoutError: its time is over.
    """
    if math.isinf(seconds):
        return work()
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as exc:  # whatever it is, it is raised where it is waited for
            done.set_exception(exc)

    threading.Thread(target=run, daemon=True, name="exo-request").start()
    return done.result(max(0.0, seconds) + GRACE_SECONDS)
