"""Request bodies: from bytes to one JSON object. Called by the routes."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from exo_inference.controller.admission.fields import describe
from exo_inference.controller.admission.problems import Refused

MAX_BODY_BYTES = 1024 * 1024

_TITLE = "Body not readable"


def parse_object(body: bytes) -> dict[str, Any]:
    """Parse a body that must be one JSON object; no body at all is an empty one.

    Raises:
        Refused: 400, with the place where it goes wrong.
    """
    if not body.strip():
        return {}
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_refuse_constant)
        json.dumps(value, ensure_ascii=False).encode("utf-8")  # lone surrogates cannot be stored
    except UnicodeDecodeError as exc:
        raise _unreadable(f"the body is not UTF-8: byte {exc.start} is wrong") from exc
    except UnicodeEncodeError as exc:
        raise _unreadable("the body holds half of a surrogate pair, which is no text") from exc
    except json.JSONDecodeError as exc:
        where = f"line {exc.lineno}, column {exc.colno}"
        raise _unreadable(f"the body is not JSON: {exc.msg} at {where}") from exc
    except RecursionError as exc:
        raise _unreadable("the body is nested too deeply") from exc
    except ValueError as exc:  # what Python says then is advice to whoever runs it
        raise _unreadable("the body has a number of too many digits") from exc
    if not isinstance(value, dict):
        raise _unreadable(f"the body must be a JSON object, found {describe(value)}")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise _unreadable(f"the body is not JSON: {name} is no JSON number")


def _unreadable(detail: str) -> Refused:
    return Refused(400, _TITLE, detail, hint="Send one JSON object in UTF-8.")
