"""Holds every answer to the openapi document that the `exoscale` package ships."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import exoscale
import jsonschema
import requests
from referencing import Registry
from referencing.jsonschema import DRAFT202012

ADDITIVE = ("/events", "/ai/status", "/ai/plan", "/ai/plan/starts", "/healthz")
_DATE_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

FORMATS = jsonschema.FormatChecker(formats=())
FORMATS.checks("uuid")(lambda value: not isinstance(value, str) or bool(_UUID.fullmatch(value)))
FORMATS.checks("date-time")(
    lambda value: not isinstance(value, str) or bool(_DATE_TIME.fullmatch(value))
)


@cache
def document() -> dict[str, Any]:
    return json.loads((Path(exoscale.__file__).parent / "openapi.json").read_text())


@cache
def registry() -> Registry:
    return Registry().with_resource("urn:openapi", DRAFT202012.create_resource(document()))


def schema_for(method: str, path: str, status: int) -> dict[str, Any]:
    """Return the schema of an answer; statuses the document lacks have the error form."""
    for template, operations in document()["paths"].items():
        pattern = re.sub(r"\\\{[a-z]+\\\}", "[^/]+", re.escape(template))
        if re.fullmatch(pattern, path) and method.lower() in operations:
            answers = operations[method.lower()]["responses"]
            if str(status) in answers:
                found = answers[str(status)]["content"]["application/json"]["schema"]
                return json.loads(json.dumps(found).replace('"#/', '"urn:openapi#/'))
    assert status >= 400, f"{method} {path} answered {status}, which the document does not have"
    return {"$ref": "urn:openapi#/components/schemas/error-response"}


def check_answer(method: str, path: str, status: int, body: Any) -> None:
    """Assert that an answer is of the documented form."""
    if status < 400 and path.endswith(ADDITIVE):
        return
    for schema in [schema_for(method, path, status)] + (
        [{"$ref": "urn:openapi#/components/schemas/error-response"}] if status >= 400 else []
    ):
        validator = jsonschema.Draft202012Validator(
            schema, registry=registry(), format_checker=FORMATS
        )
        errors = [f"{error.json_path}: {error.message}" for error in validator.iter_errors(body)]
        assert not errors, (method, path, status, body, errors)
    if status >= 400:
        # Go prints `detail` and then `errors`; what reads `message` alone gets all of it there.
        assert body["message"]
        assert "errors" in body or body["message"] == body["detail"]
        texts = [entry["detail"] for entry in body.get("errors", [])]
        assert not [text for text in texts if text in body["detail"]], "said twice"
        assert body["status"] == status
        assert body["title"]


def check_response(response: requests.Response, *args: object, **kwargs: object) -> None:
    """Hook for requests."""
    if response.headers.get("content-type", "").startswith("application/x-ndjson"):
        return
    request = response.request
    path = re.sub("//+", "/", requests.utils.urlparse(request.url).path).removeprefix("/v2")
    check_answer(request.method or "", path, response.status_code, response.json())
