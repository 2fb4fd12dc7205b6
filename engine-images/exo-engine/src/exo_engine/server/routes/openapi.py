"""`/openapi.json`: routes and fields as the engine keeps to them, made from the tables that it reads.

What a field may be stands here; that a value of another type is refused is tested for each of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from exo_engine import __version__
from exo_engine.server.known_fields import ROUTES, KnownFields

_TYPES: Final[dict[str, str]] = {
    "integer": """
        best_of dimensions max_completion_tokens max_output_tokens max_tokens max_tokens_per_doc min_tokens n priority
        prompt_logprobs seed top_k top_logprobs top_n truncate_prompt_tokens
    """,
    "number": """
        frequency_penalty min_p presence_penalty repetition_penalty temperature top_p
    """,
    "boolean": """
        add_generation_prompt add_special_tokens continue_final_message echo ignore_eos include_reasoning
        include_stop_str_in_output parallel_tool_calls return_documents return_token_ids return_token_strs
        return_tokens_as_token_ids skip_special_tokens stream use_activation
    """,
    "string": """
        cache_salt encoding_format model query reasoning_effort suffix truncation_side
    """,
    "array": """
        allowed_token_ids bad_words messages stop_sequences stop_token_ids tokens tools
    """,
    "object": """
        chat_template_kwargs logit_bias response_format stream_options structured_outputs
    """,
}
"""Fields that have the same type on every route that reads them; others may be of several."""

_TYPE_OF: Final = {name: kind for kind, names in _TYPES.items() for name in names.split()}
_REQUIRED: Final[Mapping[str, tuple[str, ...]]] = {
    "/v1/chat/completions": ("messages",),
    "/v1/completions": ("prompt",),
    "/v1/responses": ("input",),
    "/v1/messages": ("messages", "max_tokens"),
    "/v1/messages/count_tokens": ("messages",),
    "/v1/embeddings": ("input",),
    "/v1/rerank": ("query", "documents"),
    "/rerank": ("query", "documents"),
    "/v2/rerank": ("query", "documents"),
    "/pooling": ("input",),
    "/classify": ("input",),
    "/detokenize": ("tokens",),
}
_SAME_FIELDS: Final[Mapping[str, str]] = {
    "/v1/messages/count_tokens": "/v1/messages",
    "/score": "/v1/score",
    "/rerank": "/v1/rerank",
    "/v2/rerank": "/v1/rerank",
}
_STREAMING: Final = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"}
)
_ERROR: Final = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "integer", "null"]},
            },
        }
    },
}


def type_of(name: str) -> str | None:
    """Return the JSON type of a field; None where it may be of several."""
    return _TYPE_OF.get(name)


def describe(routes: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return the OpenAPI document of these routes, each a method and a path."""
    paths: dict[str, dict[str, Any]] = {}
    for method, path in routes:
        paths.setdefault(path, {})[method.lower()] = _operation(method, path)
    return {
        "openapi": "3.1.0",
        "info": {"title": "exo-engine", "version": __version__},
        "paths": paths,
        "components": {"schemas": {"Error": _ERROR}},
    }


def _operation(method: str, path: str) -> dict[str, Any]:
    refusal = {
        "description": "an error object",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    forms: dict[str, Any] = {
        "application/json": {},
        **({"text/event-stream": {}} if path in _STREAMING else {}),
    }
    operation: dict[str, Any] = {
        "operationId": f"{method.lower()}{path}",
        "responses": {"200": {"description": "the answer", "content": forms}, "default": refusal},
    }
    names = [each.strip("{}") for each in path.split("/") if each.startswith("{")]
    if names:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in names
        ]
    known = ROUTES.get(_SAME_FIELDS.get(path, path))
    if known is not None:
        schema = _body(known, _REQUIRED.get(path, ()))
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema}},
        }
    return operation


def _body(known: KnownFields, required: Iterable[str]) -> dict[str, Any]:
    honoured = {name: _field(name) for name in sorted(known.honoured - known.refused_here)}
    harmless = {name: {"description": "without effect"} for name in sorted(known.harmless)}
    return {
        "type": "object",
        "required": list(required),
        "properties": {**honoured, **harmless},
        "additionalProperties": False,
    }


def _field(name: str) -> dict[str, Any]:
    kind = type_of(name)
    return {} if kind is None else {"type": [kind, "null"]}
