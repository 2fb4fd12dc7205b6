"""`EXOSCALE_TRACE`: requests and answers as text, with every secret masked. Pure but for the write.

`_http.py` calls it around each attempt, so that retries are seen as well.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping

from exo_inference.sdk._messages import Response

MASK = "***"

_SECRET_FIELDS = re.compile(
    r'("(?:huggingface-token|api-key|value|secret|token)"\s*:\s*)"(?:[^"\\]|\\.)*"'
)
_SIGNATURE = re.compile(r"(signature=).*")
_PUBLIC_HEADERS = frozenset(
    {
        "accept",
        "accept-encoding",
        "connection",
        "content-length",
        "content-type",
        "date",
        "host",
        "idempotency-key",
        "location",
        "retry-after",
        "server",
        "transfer-encoding",
        "user-agent",
        "x-request-id",
    }
)


def trace_request(method: str, url: str, headers: Mapping[str, str], body: bytes) -> None:
    """Show a request that is about to be sent."""
    _write(">", [f"{method} {url}", *_headers(headers), *_body(body)])


def trace_response(response: Response) -> None:
    """Show an answer."""
    _write("<", [str(response.status_code), *_headers(response.headers), *_body(response.body)])


def trace_failure(reason: str) -> None:
    """Show that no answer came."""
    _write("<", [f"no answer: {reason}"])


def mask_body(text: str) -> str:
    """Return a body without the values of its secret fields."""
    return _SECRET_FIELDS.sub(rf'\1"{MASK}"', text)


def _headers(headers: Mapping[str, str]) -> Iterable[str]:
    for name, value in headers.items():
        if name.lower() == "authorization":
            value = _SIGNATURE.sub(rf"\1{MASK}", value) if "signature=" in value else MASK
        elif name.lower() not in _PUBLIC_HEADERS:
            value = MASK  # a header of the account may be a credential of a proxy
        yield f"{name}: {value}"


def _body(body: bytes) -> list[str]:
    return ["", *mask_body(body.decode(errors="replace")).splitlines()] if body else []


def _write(mark: str, lines: list[str]) -> None:
    print("\n".join(f"{mark} {line}".rstrip() for line in lines), file=sys.stderr)
