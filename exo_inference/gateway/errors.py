"""What the gateway answers itself, as the OpenAI error object that every client library reads.

Raised anywhere on the way of a request, rendered once, in `app.py`.
"""

from __future__ import annotations

import json

from aiohttp import web

from exo_inference.errors import ExoError

SERVER = "exo-inference"
"""The `Server` header of every answer; versions are not told to strangers."""


class RequestRefused(ExoError):
    """One request that gets no answer from an engine.

    Attributes:
        status: the HTTP status.
        type, code: of the OpenAI error object.
        headers: further headers, such as `Retry-After`.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        type: str = "invalid_request_error",  # the OpenAI object's own word
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.type = type
        self.code = code
        self.headers = headers or {}

    def body(self) -> bytes:
        """Return the OpenAI error object."""
        error = {"message": self.message, "type": self.type, "param": None, "code": self.code}
        return json.dumps({"error": error}, ensure_ascii=False).encode()

    def to_response(self) -> web.Response:
        """Return the whole answer."""
        return web.Response(
            status=self.status,
            body=self.body(),
            content_type="application/json",
            headers={"Server": SERVER, **self.headers},
        )


def missing_key() -> RequestRefused:
    """401: no usable Authorization or X-Api-Key header."""
    return RequestRefused(
        401,
        "missing_api_key",
        "no API key was given; send it as `Authorization: Bearer KEY` "
        "(see `exo dedicated-inference deployment reveal-api-key`)",
        type="authentication_error",
        headers={"WWW-Authenticate": "Bearer"},
    )


def unknown_key() -> RequestRefused:
    """401: a key that opens nothing."""
    return RequestRefused(
        401,
        "invalid_api_key",
        "the API key is not known here; it may have been deleted",
        type="authentication_error",
        headers={"WWW-Authenticate": 'Bearer error="invalid_token"'},
    )


def foreign_key(name_or_id: str) -> RequestRefused:
    """403: a key of another deployment."""
    return RequestRefused(
        403,
        "wrong_deployment",
        f"the API key is valid, but not for deployment {name_or_id!r}",
        type="permission_error",
    )


def unknown_deployment(name: str) -> RequestRefused:
    """404: the first part of the path names no deployment."""
    return RequestRefused(
        404,
        "deployment_not_found",
        f"there is no deployment {name!r}; its URL is in "
        "`exo dedicated-inference deployment show NAME`",
        type="not_found_error",
    )


def model_not_in_effect(deployment: str, model: str, served: str, state: str) -> RequestRefused:
    """404: the model that a deployment is to have, which no replica of it has.

    Args:
        deployment: its name.
        model: the one that was asked for.
        served: what replicas answer to.
        state: where the change stands.
    """
    return RequestRefused(
        404,
        "model_not_found",
        f"deployment {deployment!r} does not serve the model {model!r}: its change to it is not in effect "
        f"({state}); it serves {served}. Ask for that one, or see `exo dedicated-inference deployment "
        f"show {deployment}`",
        type="not_found_error",
    )


def unknown_path() -> RequestRefused:
    """404: a path that no deployment serves."""
    return RequestRefused(
        404,
        "unknown_url",
        "unknown path; requests go to /<deployment-id>/v1/..., for example "
        "/<deployment-id>/v1/chat/completions",
        type="not_found_error",
    )


def too_many_values(limit: int) -> RequestRefused:
    """400: a body that would take too long to be parsed."""
    return RequestRefused(
        400,
        "request_too_large",
        f"the request's body has more than {limit:,} commas, brackets and braces (these count twice)",
    )


def unavailable(message: str, *, retry_after_seconds: int = 5) -> RequestRefused:
    """503: nothing can answer now, and a repeat may."""
    return RequestRefused(
        503,
        "no_ready_replica",
        message,
        type="service_unavailable_error",
        headers={"Retry-After": str(retry_after_seconds)},
    )


def saturated(name: str, max_pending: int) -> RequestRefused:
    """429: every replica has as many requests as it may have."""
    return RequestRefused(
        429,
        "too_many_pending_requests",
        f"every replica of deployment {name!r} has {max_pending} requests pending; "
        "repeat later, or scale the deployment",
        type="rate_limit_error",
        headers={"Retry-After": "1"},
    )


def busy(name: str) -> RequestRefused:
    """429: the replicas are there, and take no more connections for the moment."""
    return RequestRefused(
        429,
        "too_many_connections",
        f"every replica of deployment {name!r} has more connections than it takes at once; "
        "repeat later, or scale the deployment",
        type="rate_limit_error",
        headers={"Retry-After": "1"},
    )


def out_of_descriptors(max_exchanges: int) -> RequestRefused:
    """429: this process may open no more connections."""
    return RequestRefused(
        429,
        "too_many_connections",
        f"the gateway passes on {max_exchanges} requests at once, as many as its limit of open files "
        "allows (`ulimit -n`); repeat later",
        type="rate_limit_error",
        headers={"Retry-After": "1", "Connection": "close"},
    )


def unreachable(name: str) -> RequestRefused:
    """503: what the routing table names is not there."""
    return unavailable(
        f"no replica of deployment {name!r} can be reached at the moment", retry_after_seconds=1
    )


def replica_failed(message: str) -> RequestRefused:
    """502: a replica broke off and the request cannot be repeated elsewhere."""
    return RequestRefused(502, "replica_failed", message, type="server_error")
