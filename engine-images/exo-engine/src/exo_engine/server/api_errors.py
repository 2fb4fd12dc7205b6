"""Errors of the HTTP side, as the OpenAI error object.

A route raises `ApiError`; the middleware in `app` turns it into a response, a stream into an event.
Errors of the engine and of templates are mapped here and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from exo_engine.errors import EngineError, RequestError
from exo_engine.server.messages import Refusal
from exo_engine.server.pools.process_pool import NoProcess
from exo_engine.tokenizer.template_sources import TemplateRefused

STARTING_HEADER = "x-exo-starting"
"""Set on the 503 until the model is loaded, so that a gateway waits or asks another replica."""

DRAINING_HEADER = "x-exo-draining"
"""On a 503: this request was not begun, another replica may have it."""

FAILED_HEADER = "x-exo-failed"
"""On a 503: the engine core died while it had this request, and nothing was answered yet."""

_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class ApiError(EngineError):
    """An answer with an error status."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        """The OpenAI error object."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {
            "error": {
                "message": self.message,
                "type": _TYPES.get(self.status, kind),
                "param": self.param,
                "code": self.code,
            }
        }

    @property
    def anthropic_body(self) -> dict[str, Any]:
        """The same in the form of Anthropic's API."""
        kind = "api_error" if self.status >= 500 else "invalid_request_error"
        error = {"type": _TYPES.get(self.status, kind), "message": self.message}
        return {"type": "error", "error": {**error, "param": self.param, "code": self.code}}


def bad_request(message: str, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """Return the error for a request that cannot be served as it is."""
    return ApiError(400, message, code=code, param=param)


def not_supported(param: str, what: str) -> ApiError:
    """Return the error for a field of the API that this engine does not offer."""
    return bad_request(f"{what} is not supported by this engine", param, "unsupported_parameter")


def renamed(error: ApiError, names: Mapping[str, str]) -> ApiError:
    """Return an error about a field of chat as one about the field of another route that it came from.

    Args:
        error: as a reader of chat requests raised it; changed in place.
        names: what fields of chat, or the objects that hold them, are called on that route.
    """
    own = names.get(re.split(r"[.\[]", error.param or "", maxsplit=1)[0])
    if own is not None and error.param is not None:
        named = rf"(?:^|(?<= lower )){re.escape(error.param)}(?!\w)"
        error.message = re.sub(named, own.replace("\\", r"\\"), error.message)
        error.param = own
    return error


def from_engine(error: EngineError) -> ApiError:
    """Map an error of the engine or of a chat template."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestError):
        return bad_request(error.message, error.param, error.code)
    if isinstance(error, NoProcess):
        return ApiError(503, error.message, code="no_process", headers={"Retry-After": "1"})
    if isinstance(error, TemplateRefused):
        return bad_request(error.message, "messages", "chat_template_error")
    return ApiError(500, error.message, code="internal_error")


def from_refusal(refusal: Refusal | None) -> ApiError:
    """Map what the core said about a request it could not serve.

    It says nothing when the model itself failed: there was no token to choose.
    """
    if refusal is None:
        return ApiError(
            500,
            "the model's output was not a number (NaN or infinite), so there is no answer. Start "
            "the engine with --dtype float32, or check the model's weights.",
            code="model_output_not_a_number",
        )
    if refusal.is_internal:
        headers = {FAILED_HEADER: "1", "Connection": "close"}
        return ApiError(503, refusal.message, code=refusal.code, headers=headers)
    return ApiError(400, refusal.message, code=refusal.code, param=refusal.param)
