"""EXO2-HMAC-SHA256, the client's side: pure functions from a request to its Authorization header.

The signed text itself is in `wire/signature.py`; the controller has a verifier of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from exo_inference.wire.signature import SCHEME, compute_signature, string_to_sign

EXPIRY_SECONDS = 600
"""How long a signature holds; the same ten minutes as every other client of the API."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """A key and its secret."""

    key: str
    secret: str = field(repr=False)


def sign(
    credentials: Credentials,
    method: str,
    raw_path: str,
    query: Sequence[tuple[str, str]] = (),
    body: bytes = b"",
    *,
    expires: int,
) -> str:
    """Return the value of the Authorization header.

    Args:
        credentials: who asks.
        method: as sent, upper case.
        raw_path: percent-encoded as sent, with its prefix, without the query.
        query: the decoded arguments; those that occur exactly once are signed.
        body: the exact bytes that are sent.
        expires: seconds since the epoch when the signature ends to hold.
    """
    occurrences = Counter(name for name, _ in query)
    signed = sorted((name, value) for name, value in query if occurrences[name] == 1)
    values = [value for _, value in signed]
    text = string_to_sign(method, raw_path, body, values, expires)
    parts = [f"credential={credentials.key}"]
    if signed:
        parts.append(f"signed-query-args={';'.join(name for name, _ in signed)}")
    parts.append(f"expires={expires}")
    parts.append(f"signature={compute_signature(credentials.secret, text)}")
    return f"{SCHEME} {','.join(parts)}"
