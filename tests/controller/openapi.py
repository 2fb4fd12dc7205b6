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

ADDITIVE_METHODS = (("PUT", re.compile("/ai/deployment/[^/]+"), "PATCH"),)
"""What is ours alone, with the documented method of that path whose answers have the same form."""

_VALUE = {
    "type": "object",
    "properties": {"value": {"type": "string", "minLength": 1}},
    "required": ["value"],
    "additionalProperties": False,
}

NEWER = {
    ("PATCH", "/ai/api-key/{id}"): {"$ref": "#/components/schemas/get-ai-api-key-response"},
    ("GET", "/ai/api-key/{id}/reveal"): _VALUE,
    ("POST", "/ai/api-key/{id}/rotate"): _VALUE,
}
"""Operations of the vendor's document that the copy in `exoscale` 0.16.4 does not have yet; written after the
copy in its SDK for Java (api/openapi.yaml at f908d955a), with the schemas of 200."""

ADDITIVE = (
    "/events",
    "/restart",
    "/ai/usage",
    "/ai/metrics",
    "/ai/status",
    "/ai/plan",
    "/ai/plan/starts",
    "/healthz",
)
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


def operations() -> dict[tuple[str, str], dict[str, Any]]:
    """Return every operation of the document, with its parameters, by method and path."""
    return {
        (method.upper(), path): operation
        for path, of_path in document()["paths"].items()
        for method, operation in of_path.items()
    }


def schema_for(method: str, path: str, status: int) -> dict[str, Any]:
    """Return the schema of an answer; statuses the document lacks have the error form."""
    for (newer, template), schema in NEWER.items():
        if method == newer and status == 200 and _matches(template, path):
            return json.loads(json.dumps(schema).replace('"#/', '"urn:openapi#/'))
    for additive, form, like in ADDITIVE_METHODS:
        if method == additive and form.fullmatch(path):
            method = like
    for template, operations in document()["paths"].items():
        if method.lower() in operations and _matches(template, path):
            answers = operations[method.lower()]["responses"]
            if str(status) in answers:
                found = answers[str(status)]["content"]["application/json"]["schema"]
                return json.loads(json.dumps(found).replace('"#/', '"urn:openapi#/'))
    assert status >= 400, f"{method} {path} answered {status}, which the document does not have"
    return {"$ref": "urn:openapi#/components/schemas/error-response"}


def _matches(template: str, path: str) -> bool:
    return _pattern(template).fullmatch(path) is not None


@cache
def _pattern(template: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\\{[a-z]+\\\}", "[^/]+", re.escape(template)))


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
