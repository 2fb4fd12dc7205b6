"""Which headers pass, in each direction. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from multidict import CIMultiDict, CIMultiDictProxy

from exo_inference.gateway.errors import SERVER
from exo_inference.gateway.exchange import REQUEST_ID_HEADER

DRAINING_HEADER = "X-Exo-Draining"
"""Set by an engine on the 503 that it answers while it finishes its last requests."""

STARTING_HEADER = "X-Exo-Starting"
"""Set by an engine on the 503 that it answers until its model is loaded."""

FAILED_HEADER = "X-Exo-Failed"
"""Set by an engine on the 503 to a request that it had taken, when its core died before the answer."""

_HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""RFC 9110 §7.6.1, and Proxy-Connection, which old clients still send."""

# Content-Length is set anew (the body may have grown), the key is for us alone, a compressed body
# was decoded, and an answer that came compressed could not be read for usage.
_OURS = frozenset(
    {
        "host",
        "authorization",
        "x-api-key",
        "content-length",
        "content-encoding",
        "accept-encoding",
        "expect",
        "x-request-id",
    }
)
_OURS_IN_ANSWERS = frozenset(
    {
        "server",
        "date",
        "x-request-id",
        "x-exo-draining",
        "x-exo-failed",
        "x-exo-held-seconds",
        "x-exo-starting",
    }
)


def request_headers(headers: CIMultiDictProxy[str], request_id: str) -> CIMultiDict[str]:
    """Return what the engine gets."""
    passed = CIMultiDict(_end_to_end(headers, _OURS))
    passed[REQUEST_ID_HEADER] = request_id
    passed["Accept-Encoding"] = "identity"
    return passed


def answer_headers(headers: CIMultiDictProxy[str], own: Mapping[str, str]) -> CIMultiDict[str]:
    """Return what the client gets: the engine's headers, and our own."""
    passed = CIMultiDict(_end_to_end(headers, _OURS_IN_ANSWERS))
    passed.update(own)
    passed["Server"] = SERVER
    return passed


def _end_to_end(
    headers: CIMultiDictProxy[str], without: frozenset[str]
) -> Iterator[tuple[str, str]]:
    named = {
        name.strip().lower()
        for value in headers.getall("Connection", ())
        for name in value.split(",")
    }
    dropped = _HOP_BY_HOP | named | without
    return ((name, value) for name, value in headers.items() if name.lower() not in dropped)
