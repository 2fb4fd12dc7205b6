"""`/openapi.json`: routes and fields as the engine keeps to them, made from the tables that it reads.

Of which JSON types a field may be stands here; a test holds the engine to it, field by field and type by type. Within
these, what a value may be is told by the refusal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from exo_engine import __version__
from exo_engine.server.keys import OTHER_HEADER, needs_key
from exo_engine.server.known_fields import COUNT_TOKENS, ROUTES, KnownFields
from exo_engine.server.routes.scores import PAIRS

_TYPES: Final[dict[str, str]] = {
    "integer": """
        dimensions max_completion_tokens max_output_tokens max_tokens max_tokens_per_doc max_tokens_per_query
        min_tokens n priority prompt_logprobs seed top_k top_logprobs top_n truncate_prompt_tokens
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
        cache_salt encoding_format guided_decoding_backend guided_grammar guided_regex guided_whitespace_pattern
        instructions model query reasoning_effort suffix task truncation_side
    """,
    "array": """
        allowed_token_ids bad_words guided_choice include messages stop_sequences stop_token_ids tokens tools
    """,
    "object": """
        chat_template_kwargs logit_bias output_config reasoning response_format stream_options structured_outputs
        text thinking
    """,
    "string array": "input prompt stop system",
    "string object": "structural_tag tool_choice",
    "string array object": "data_1 data_2 documents items queries text_1 text_2",
    "string object boolean": "guided_json",
}
"""Fields that have the same types on every route that reads them."""
_TYPES_OF: Final = {
    name: tuple(kinds.split()) for kinds, names in _TYPES.items() for name in names.split()
}
_TYPES_HERE: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "/v1/chat/completions": {"logprobs": ("boolean",), "documents": ("array",)},
    "/v1/completions": {"logprobs": ("integer",)},
    "/v1/messages": {"tool_choice": ("object",)},
    "/tokenize": {"prompt": ("string",), "documents": ("array",)},
}
"""Fields that have other types on one route."""
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
_ONE_OF: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "/v1/score": PAIRS,
    "/score": PAIRS,
    "/tokenize": (("prompt",), ("messages",)),
}
"""Fields of which one set must be there, and no field of another."""
_SAME_FIELDS: Final[Mapping[str, str]] = {
    "/v1/messages/count_tokens": "/v1/messages",
    "/score": "/v1/score",
    "/rerank": "/v1/rerank",
    "/v2/rerank": "/v1/rerank",
}
"""Fields are of the same types there as on another route."""
_KNOWN: Final[Mapping[str, KnownFields]] = {
    **ROUTES,
    **{path: ROUTES[other] for path, other in _SAME_FIELDS.items()},
    "/v1/messages/count_tokens": COUNT_TOKENS,
}
_QUERIES: Final[Mapping[str, Mapping[str, Any]]] = {
    "/server_info": {"config_format": {"enum": ["text", "json"], "default": "text"}},
}
_STREAMING: Final = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"}
)
_ANSWERS: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(_STREAMING, ("application/json", "text/event-stream")),
    "/metrics": ("text/plain",),
    "/reset_prefix_cache": (),
}
"""Which media types the answer has, where it is not JSON alone."""
_HEALTH: Final = frozenset({"/health", "/ping"})
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
_STATE: Final = {
    "type": "object",
    "required": ["status"],
    "properties": {
        "status": {"enum": ["ok", "starting", "draining", "failed", "stalled"]},
        "detail": {"type": "string"},
    },
}
_KEYS: Final = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": OTHER_HEADER},
}


def types_of(path: str, name: str) -> tuple[str, ...]:
    """Return the JSON types that a field may be of on a route.

    Raises:
        KeyError: the route does not read the field.
    """
    here = _TYPES_HERE.get(_SAME_FIELDS.get(path, path), {})
    return here.get(name) or _TYPES_OF[name]


def describe(routes: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return the OpenAPI document of these routes, each a method and a path."""
    paths: dict[str, dict[str, Any]] = {}
    for method, path in routes:
        paths.setdefault(path, {})[method.lower()] = _operation(method, path)
    return {
        "openapi": "3.1.0",
        "info": {"title": "exo-engine", "version": __version__},
        # Behind a gateway the paths begin where this document lies, not at the host's root.
        "servers": [{"url": "."}],
        "paths": paths,
        "components": {"schemas": {"Error": _ERROR, "State": _STATE}, "securitySchemes": _KEYS},
    }


def _operation(method: str, path: str) -> dict[str, Any]:
    parameters = [*_of_path(path), *_of_query(path)]
    known = _KNOWN.get(path)
    body = {} if known is None else {"required": True, "content": _json(_body(path, known))}
    return {
        "operationId": f"{method.lower()}{path}",
        **({"parameters": parameters} if parameters else {}),
        **({"requestBody": body} if body else {}),
        "responses": _responses(path),
        # An engine without keys answers everybody.
        **({"security": [*({name: []} for name in _KEYS), {}]} if needs_key(path) else {}),
    }


def _of_path(path: str) -> list[dict[str, Any]]:
    names = [each.strip("{}") for each in path.split("/") if each.startswith("{")]
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in names
    ]


def _of_query(path: str) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "query", "schema": schema}
        for name, schema in _QUERIES.get(path, {}).items()
    ]


def _responses(path: str) -> dict[str, Any]:
    if path in _HEALTH:
        state = _json({"$ref": "#/components/schemas/State"})
        return {
            "200": {"description": "it serves", "content": state},
            "503": {"description": "it does not serve now", "content": state},
        }
    forms: dict[str, Any] = {each: {} for each in _ANSWERS.get(path, ("application/json",))}
    return {
        "200": {"description": "the answer", **({"content": forms} if forms else {})},
        "default": {
            "description": "an error object",
            "content": _json({"$ref": "#/components/schemas/Error"}),
        },
    }


def _json(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _body(path: str, known: KnownFields) -> dict[str, Any]:
    required = _REQUIRED.get(path, ())
    honoured = {
        name: _field(path, name, is_required=name in required)
        for name in sorted(known.honoured - known.refused_here)
    }
    harmless = {name: {"description": "without effect"} for name in sorted(known.harmless)}
    sets = _ONE_OF.get(path, ())
    return {
        "type": "object",
        "required": list(required),
        **({"oneOf": [_only(each, sets) for each in sets]} if sets else {}),
        "properties": {**honoured, **harmless},
        "additionalProperties": False,
    }


def _field(path: str, name: str, *, is_required: bool) -> dict[str, Any]:
    kinds = list(types_of(path, name))
    return {"type": kinds if is_required else [*kinds, "null"]}


def _only(wanted: tuple[str, ...], sets: Iterable[tuple[str, ...]]) -> dict[str, Any]:
    """Return the schema of bodies that have these of several sets of fields, and none of the others."""
    others = sorted({name for each in sets for name in each} - {*wanted})
    return {
        "required": list(wanted),
        "properties": {
            **{name: {"not": {"type": "null"}} for name in wanted},
            **{name: {"type": "null"} for name in others},
        },
    }
