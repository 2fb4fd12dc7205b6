"""The text that EXO2-HMAC-SHA256 signs, and its HMAC: pure functions of what goes over the wire.

The client's signer and the controller's verifier both build on these two and on nothing else in
common: which query arguments count, what has expired and how signatures are compared is for each
side to decide.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterable

SCHEME = "EXO2-HMAC-SHA256"


def string_to_sign(
    method: str, raw_path: str, body: bytes, query_values: Iterable[str], expires: int
) -> bytes:
    """Return the bytes that are signed.

    Args:
        method: as sent, upper case.
        raw_path: percent-encoded as sent, with its prefix (`/v2`), without the query.
        body: the exact bytes; empty if there is none.
        query_values: decoded values of the arguments in `signed-query-args`, in that order; an
            argument that occurs more than once adds no value.
        expires: seconds since the epoch.
    """
    head = f"{method} {raw_path}\n".encode()
    # The empty line between values and expiry stands for signed headers, which nobody uses.
    tail = f"\n{''.join(query_values)}\n\n{expires}".encode()
    return head + body + tail


def compute_signature(secret: str, message: bytes) -> str:
    """Return the HMAC-SHA256 of `message` in standard base64, with padding."""
    digest = hmac.new(secret.encode(), message, hashlib.sha256).digest()
    return base64.b64encode(digest).decode()
