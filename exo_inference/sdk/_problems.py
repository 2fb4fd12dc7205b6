"""Error answers of every form the API has, as one error of our tree. Pure.

Servers answer problem details (`title`, `detail`, `errors`), or `message`, or `error`, with
`errors` as strings or objects, with the deployments that block a deletion, or with no JSON at all.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

from pydantic import ValidationError

from exo_inference import errors
from exo_inference.wire import SIGNATURE_PROBLEM, DeploymentPlan

MAX_TEXT = 256
"""How much of a body that is not ours is repeated in a message: it may be a whole page."""

_CLASSES: dict[int, type[errors.ApiError]] = {
    400: errors.BadRequest,
    401: errors.AuthenticationFailed,
    403: errors.AuthenticationFailed,
    404: errors.NotFound,
    409: errors.Conflict,
    412: errors.PreconditionFailed,
    422: errors.BadRequest,
    429: errors.TooManyRequests,
}
_ENUMERATION = re.compile(r"does not have a value in the enumeration (\[.*\])", re.DOTALL)
_LOCATION = re.compile(r"\[['\"]?([^'\"\]]+)['\"]?\]|\.([\w-]+)")


def api_error(
    status_code: int, headers: Mapping[str, str], body: bytes, action: str
) -> errors.ApiError:
    """Return the error that an answer of 300 and above stands for.

    Args:
        status_code: its HTTP status.
        headers: its headers, names in lower case.
        body: its body.
        action: what was being done, for the message.
    """
    fields = _decode(body)
    title, detail = _text(fields.get("title")), _detail(fields)
    phrase = _phrase(status_code)
    text = _headline(fields, title, detail, phrase)
    deployments = tuple(_text(entry) for entry in _list(fields.get("deployments")))
    kind = errors.ServerError if status_code >= 500 else _CLASSES.get(status_code, errors.ApiError)
    if status_code == 403 and not _is_about_caller(fields, title, phrase):
        kind = errors.ApiError
    return kind(
        f"{action}: {phrase}: {text}" if text else f"{action}: {phrase}",
        status_code=status_code,
        title=title,
        detail=detail,
        problems=tuple(_problem(entry) for entry in _list(fields.get("errors"))),
        deployments=deployments,
        retry_after_seconds=retry_after(headers),
        plan=_plan(fields.get("plan")),
        hint=_text(fields.get("hint")) or _hint(kind, status_code, headers, deployments),
    )


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of Retry-After (a number or a date), or None."""
    value = headers.get("retry-after", "").strip()
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None


def _decode(body: bytes) -> dict[str, Any]:
    """Return the body's fields; what is no JSON object becomes a message."""
    try:
        value = json.loads(body)
    except ValueError:
        value = body.decode(errors="replace").strip()
    if isinstance(value, dict):
        return value
    if isinstance(value, list):
        return {"errors": value}
    return {"message": _cut(_text(value))}


def _detail(fields: Mapping[str, Any]) -> str:
    """Return `detail`, or the whole sentence of `message` where one field alone is wrong.

    Problems of several fields are listed one by one, and `detail` has their number.
    """
    problems = _list(fields.get("errors"))
    if len(problems) == 1 and isinstance(problems[0], dict) and problems[0].get("location"):
        return _text(fields.get("message")) or _text(fields.get("detail"))
    return _text(fields.get("detail"))


def _plan(value: Any) -> DeploymentPlan | None:
    """Return the plan of a refusal; one of a form that is not ours is left out."""
    try:
        return None if value is None else DeploymentPlan.model_validate(value)
    except ValidationError:
        return None


def _headline(fields: Mapping[str, Any], title: str, detail: str, phrase: str) -> str:
    if title == phrase:
        title = ""
    if title and detail and title != detail:
        return f"{title}: {detail}"
    message = _text(fields.get("message")) or _text(fields.get("error"))
    return detail or message or title


def _is_about_caller(fields: Mapping[str, Any], title: str, phrase: str) -> bool:
    """Whether a 403 refuses the caller's credentials, and not what was asked for.

    A server whose problems have no class of their own (RFC 9457) means the credentials.
    """
    return fields.get("type") == SIGNATURE_PROBLEM or title in ("", phrase)


def _text(value: Any) -> str:
    """Return a field as text: nested error objects give their message, other objects their JSON."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, dict):
        for key in ("message", "detail", "name", "id"):
            if isinstance(value.get(key), str):
                return str(value[key])
    return _cut(json.dumps(value, ensure_ascii=False))


def _list(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _problem(entry: Any) -> tuple[str, str]:
    """Return (location, detail) of one entry of `errors`; the location may be empty."""
    if not isinstance(entry, dict):
        return "", _text(entry)
    detail = _text(entry.get("detail")) or _text(entry.get("message")) or _text(entry)
    if match := _ENUMERATION.search(detail):
        detail = f"{errors.CHOICES_PREFIX}{_values(match[1])}"
    return _location(_text(entry.get("location"))), detail


def _location(path: str) -> str:
    """Return the field that a JSON path such as `$['model']['name']` means: `model.name`."""
    parts = [quoted or bare for quoted, bare in _LOCATION.findall(path)]
    return ".".join(parts) or path


def _values(text: str) -> str:
    try:
        return ", ".join(str(value) for value in json.loads(text))
    except ValueError:
        return text.strip("[]").replace('"', "")


def _phrase(status_code: int) -> str:
    try:
        return HTTPStatus(status_code).phrase
    except ValueError:
        return f"HTTP error {status_code}"


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


def _hint(
    kind: type[errors.ApiError],
    status_code: int,
    headers: Mapping[str, str],
    deployments: tuple[str, ...],
) -> str | None:
    if status_code < 400:
        return (
            f"The endpoint moved to {headers.get('location', 'another address')}; configure that."
        )
    if kind is errors.AuthenticationFailed:
        return (
            "Check the key, its secret and its permissions, and that this machine's clock is right."
        )
    if deployments:
        return f"Delete what uses it first: {', '.join(deployments)}."
    if status_code == 429 and (seconds := retry_after(headers)) is not None:
        return f"Repeat it in {seconds:.0f} s."
    return None
