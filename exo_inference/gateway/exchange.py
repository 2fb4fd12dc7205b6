"""One request on its way through the gateway: what is known of it, and its log line."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from exo_inference.gateway.answer_usage import Tokens

REQUEST_ID_HEADER = "X-Request-ID"
HELD_HEADER = "X-Exo-Held-Seconds"
"""How long a request waited here for a replica that was on its way; absent where it did not."""

CLIENT_CLOSED = 499
"""Status of requests whose client hung up before the answer's end; only in logs and metrics."""

_SAFE_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")


class Attempt(Protocol):
    """The span of one replica that a request was sent to."""

    def inject(self, headers: MutableMapping[str, str]) -> None:
        """Have the replica continue the trace from here."""
        ...

    def end(self, error: BaseException | None) -> None:
        """Note how it ended."""
        ...


class Trace(Protocol):
    """The spans of one request; `tracing.py` makes them."""

    def attempt(self, replica: str) -> Attempt:
        """Begin to send the request to a replica."""
        ...

    def end(self, exchange: Exchange) -> None:
        """Note what came of the request."""
        ...


@dataclass(slots=True)
class Exchange:
    """Filled in as the request is understood; read once, at its end.

    Attributes:
        request_id: the client's own, where it sent a harmless one.
        deployment_id, key_id: empty until the key has been checked.
        replica: the one that answered, or the last one tried.
        status: what the client got; 499 when it hung up.
        held_seconds: for how long it was held until there was a replica.
        retries: further replicas that were tried.
        tokens: as the engine counted them; None when it did not say.
        doubted: the first count of the engine that was not believed; empty where there was none.
        trace: its spans, where any are sent.
        estimated: the engine did not come to say; `tokens` are the events that passed, and the prompt as it
            was found out afterwards.
        is_complete: the client was sent the last event of a stream; it may hang up then.
        left: path and body of a request whose client left before the engine said what it used.
    """

    request_id: str
    method: str = ""
    path: str = ""
    deployment_id: str = ""
    deployment: str = ""
    key_id: str = ""
    replica: str = ""
    status: int = 0
    held_seconds: float = 0.0
    retries: int = 0
    streamed: bool = False
    broken: bool = False
    estimated: bool = False
    tokens: Tokens | None = None
    doubted: str = ""
    started: float = field(default_factory=time.perf_counter)
    first_byte_seconds: float | None = None
    trace: Trace | None = None
    is_complete: bool = False
    left: tuple[str, bytes] | None = None

    def note_first_byte(self) -> None:
        """Remember when the answer began."""
        self.first_byte_seconds = time.perf_counter() - self.started

    def note_doubt(self, doubted: str) -> None:
        """Remember the first count that is not believed."""
        self.doubted = self.doubted or doubted

    def note_prompt(self, num_tokens: int) -> None:
        """Remember the prompt's tokens, for which the engine was asked afterwards."""
        self.tokens = Tokens(num_tokens, self.tokens.completion if self.tokens else 0)

    def own_headers(self) -> dict[str, str]:
        """Return what every answer has of us: the request's id, and how long it was held if it was."""
        held = {HELD_HEADER: f"{self.held_seconds:.1f}"} if self.held_seconds else {}
        return {REQUEST_ID_HEADER: self.request_id, **held}

    def log_line(self, seconds: float) -> str:
        """Return the one line that people read."""
        where = f"{self.deployment}: " if self.deployment else ""
        by = f" by {self.replica}" if self.replica else ""
        path = self.path or "(no path of a deployment)"
        return f"{where}{self.method} {path} -> {self.status} in {seconds * 1000:.1f} ms{by}"

    def log_fields(self, seconds: float) -> dict[str, Any]:
        """Return what programs read: no prompt, no answer, no key."""
        first = self.first_byte_seconds
        return {
            "request_id": self.request_id,
            "deployment": self.deployment,
            "deployment_id": self.deployment_id,
            "key_id": self.key_id,
            "replica": self.replica,
            "status": self.status,
            "duration_seconds": round(seconds, 4),
            "first_byte_seconds": None if first is None else round(first, 4),
            "prompt_tokens": self.tokens.prompt if self.tokens else None,
            "completion_tokens": self.tokens.completion if self.tokens else None,
            "tokens_estimated": self.estimated,
            "streamed": self.streamed,
            "held_seconds": round(self.held_seconds, 3),
            "retries": self.retries,
            "broken": self.broken,
        }


@contextmanager
def attempt_at(exchange: Exchange, replica: str) -> Iterator[Attempt | None]:
    """Have what is done within the block, at one replica, in the request's trace, if there is one."""
    if exchange.trace is None:
        yield None
        return
    attempt, error = exchange.trace.attempt(replica), None
    try:
        yield attempt
    except BaseException as exc:
        error = exc
        raise
    finally:
        attempt.end(error)


def request_id_of(header: str | None) -> str:
    """Return the client's request id where it is fit for logs and headers, else a new one."""
    if header and _SAFE_ID.fullmatch(header):
        return header
    return uuid.uuid4().hex
