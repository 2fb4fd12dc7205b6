"""What goes to the API and what comes back, before and after any I/O: the sans-IO vocabulary.

`Request` and `Response` are plain values; a `Call` is a request together with how its answer is
read. `_requests.py` builds calls, `_http.py` carries them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

from pydantic import ValidationError

from exo_inference.errors import InvalidAnswer
from exo_inference.sdk._problems import api_error
from exo_inference.wire import WireModel

T = TypeVar("T")
U = TypeVar("U")
M = TypeVar("M", bound=WireModel)


@dataclass(frozen=True, slots=True)
class Request:
    """One request, relative to an endpoint.

    Attributes:
        action: what it does, for messages: `creating model "org/name"`.
        method: upper case.
        path: percent-encoded, after the endpoint's prefix.
        query: decoded arguments in the order they are sent.
        body: the exact bytes, or None.
        headers: additional headers.
        signed: whether it carries a signature; the list of zones does not.
        repeatable: whether sending it twice has the effect of sending it once.
    """

    action: str
    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    body: bytes | None = field(default=None, repr=False)
    headers: tuple[tuple[str, str], ...] = ()
    signed: bool = True
    repeatable: bool = False

    @property
    def target(self) -> str:
        """The path with its query, as sent after the endpoint."""
        if not self.query:
            return self.path
        return f"{self.path}?{urlencode(self.query, quote_via=quote)}"


@dataclass(frozen=True, slots=True)
class Response:
    """One answer; header names are lower case. `repeated`: an earlier attempt may have arrived."""

    status_code: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A request and how to read its answer."""

    request: Request
    read: Callable[[Response], T]

    def map(self, pick: Callable[[T], U]) -> Call[U]:
        """Return the same request with another reading: what `pick` takes of this one's."""
        return Call(self.request, lambda response: pick(self.read(response)))

    def result(self, response: Response) -> T:
        """Return the typed answer.

        Raises:
            ApiError: the answer is an error.
            InvalidAnswer: the answer is a success that cannot be read.
        """
        if response.status_code >= 300:
            error = api_error(response.status_code, response.headers, response.body, self.action)
            if response.repeated and response.status_code == 404 and self.is_deletion:
                error.hint = "An attempt whose answer was lost may have deleted it."
            raise error
        return self.read(response)

    @property
    def is_deletion(self) -> bool:
        """Whether the request deletes something."""
        return self.request.method == "DELETE"

    @property
    def action(self) -> str:
        """What the request does, for messages."""
        return self.request.action


def encode_json(value: Any) -> bytes:
    """Encode as the Go client does: compact, keys sorted, UTF-8."""
    text = json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
    return text.encode()


def decode_json(body: bytes, action: str) -> Any:
    """Decode the JSON of a successful answer; a null field counts as one that is absent.

    Raises:
        InvalidAnswer: the body is not JSON.
    """
    try:
        return _without_nulls(json.loads(body))
    except ValueError as exc:
        found = body[:80].decode(errors="replace") or "an empty body"
        raise InvalidAnswer(
            f"{action}: the API answered {found!r} where JSON was expected",
            hint="Check that the endpoint is that of the API, with its prefix (/v2).",
        ) from exc


def parse(model: type[M], value: Any, action: str) -> M:
    """Return the answer as its wire type.

    Raises:
        InvalidAnswer: a required field is missing or of the wrong type.
    """
    try:
        return model.model_validate({} if value is None else value)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the body"
        raise InvalidAnswer(
            f"{action}: the API's answer is not of its form: {where}: {first['msg']}",
            hint="Check that the endpoint speaks the v2 API, and that this client is up to date.",
        ) from exc


def reader(model: type[M], action: str) -> Callable[[Response], M]:
    """Return the function that reads an answer as `model`."""
    return lambda response: parse(model, decode_json(response.body, action), action)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
