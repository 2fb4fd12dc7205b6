"""No field of OpenAI's or vLLM's requests is ignored silently."""

from __future__ import annotations

import importlib
import json
import re
import typing
from pathlib import Path

import pytest
from exo_engine.server import inner_fields as inner
from exo_engine.server import known_fields
from exo_engine.server.api_errors import ApiError
from exo_engine.server.fields import Fields
from exo_engine.server.inner_fields import MESSAGE_REFUSED, OBJECTS
from exo_engine.server.known_fields import (
    CHAT,
    CLASSIFY,
    COMPLETIONS,
    DETOKENIZE,
    EMBEDDINGS,
    HARMLESS,
    MESSAGES,
    POOLING,
    RERANK,
    RESPONSES,
    SCORE,
    TOKENIZE,
    KnownFields,
    check_fields,
)
from exo_engine.server.routes.responses_request import INCLUDED

DATA = json.loads(Path(__file__).with_name("data").joinpath("vllm_fields.json").read_text())
"""Of vLLM's request types, read from its distribution; the date is in it."""

WALKED: dict[str, tuple[KnownFields, list[str]]] = {
    "chat": (CHAT, ["openai.types.chat.completion_create_params"]),
    "completions": (COMPLETIONS, ["openai.types.completion_create_params"]),
    "responses": (RESPONSES, ["openai.types.responses.response_create_params"]),
    "messages": (
        MESSAGES,
        [
            "anthropic.types.message_create_params",
            "anthropic.types.message_count_tokens_params",
        ],
    ),
    "embeddings": (EMBEDDINGS, ["openai.types.embedding_create_params"]),
    "score": (SCORE, []),
    "rerank": (RERANK, []),
    "pooling": (POOLING, []),
    "classify": (CLASSIFY, []),
    "tokenize": (TOKENIZE, []),
    "detokenize": (DETOKENIZE, []),
}
"""By route: its fields, and the modules of client packages that have its request types, which take seconds to import."""
INNER: list[tuple[KnownFields, str, str]] = [
    (inner.STREAM_OPTIONS, "openai.types.chat", "ChatCompletionStreamOptionsParam"),
    (inner.RESPONSE_FORMAT, "openai.types.shared_params", "ResponseFormatJSONObject"),
    (inner.RESPONSE_FORMAT, "openai.types.shared_params", "ResponseFormatText"),
    (inner.JSON_FORMAT, "openai.types.shared_params", "ResponseFormatJSONSchema"),
    (inner.JSON_SCHEMA, "openai.types.shared_params.response_format_json_schema", "JSONSchema"),
    (inner.TEXT_PART, "openai.types.chat", "ChatCompletionContentPartTextParam"),
    (inner.TOOL_CHOICE, "openai.types.chat", "ChatCompletionNamedToolChoiceParam"),
    (
        inner.TOOL_CHOICE_FUNCTION,
        "openai.types.chat.chat_completion_named_tool_choice_param",
        "Function",
    ),
    (inner.ALLOWED_CHOICE, "openai.types.chat", "ChatCompletionAllowedToolChoiceParam"),
    (inner.ALLOWED_TOOLS, "openai.types.chat", "ChatCompletionAllowedToolsParam"),
    (inner.RESPONSES_STREAM, "openai.types.responses.response_create_params", "StreamOptions"),
    (inner.RESPONSES_TEXT, "openai.types.responses", "ResponseTextConfigParam"),
    (inner.RESPONSES_FORMAT, "openai.types.responses", "ResponseFormatTextJSONSchemaConfigParam"),
    (inner.RESPONSES_REASONING, "openai.types.shared_params", "Reasoning"),
    (inner.RESPONSES_TOOL, "openai.types.responses", "FunctionToolParam"),
    (inner.RESPONSES_CHOICE, "openai.types.responses", "ToolChoiceFunctionParam"),
    (inner.RESPONSES_ALLOWED, "openai.types.responses", "ToolChoiceAllowedParam"),
    (inner.RESPONSES_MESSAGE, "openai.types.responses", "EasyInputMessageParam"),
    (inner.RESPONSES_MESSAGE, "openai.types.responses", "ResponseOutputMessageParam"),
    (inner.RESPONSES_MESSAGE, "openai.types.responses.response_input_item_param", "Message"),
    (inner.RESPONSES_REASONING_ITEM, "openai.types.responses", "ResponseReasoningItemParam"),
    (
        inner.RESPONSES_REASONING_PART,
        "openai.types.responses.response_reasoning_item_param",
        "Content",
    ),
    (
        inner.RESPONSES_REASONING_PART,
        "openai.types.responses.response_reasoning_item_param",
        "Summary",
    ),
    (inner.RESPONSES_CALL, "openai.types.responses", "ResponseFunctionToolCallParam"),
    (
        inner.RESPONSES_RESULT,
        "openai.types.responses.response_input_item_param",
        "FunctionCallOutput",
    ),
    (inner.TEXT_PART, "openai.types.responses", "ResponseInputTextParam"),
    (inner.TEXT_PART, "openai.types.responses", "ResponseInputTextContentParam"),
    (inner.TEXT_PART, "openai.types.responses", "ResponseOutputTextParam"),
    (inner.MESSAGES_MESSAGE, "anthropic.types", "UserMessageParam"),
    (inner.MESSAGES_MESSAGE, "anthropic.types", "AssistantMessageParam"),
    (inner.MESSAGES_MESSAGE, "anthropic.types", "SystemMessageParam"),
    (inner.TEXT_PART, "anthropic.types", "TextBlockParam"),
    (inner.MESSAGES_CALL, "anthropic.types", "ToolUseBlockParam"),
    (inner.MESSAGES_RESULT, "anthropic.types", "ToolResultBlockParam"),
    (inner.MESSAGES_THOUGHT, "anthropic.types", "ThinkingBlockParam"),
    (inner.MESSAGES_TOOL, "anthropic.types", "ToolParam"),
    (inner.MESSAGES_CHOICE, "anthropic.types", "ToolChoiceAutoParam"),
    (inner.MESSAGES_CHOICE, "anthropic.types", "ToolChoiceAnyParam"),
    (inner.MESSAGES_CHOICE, "anthropic.types", "ToolChoiceNoneParam"),
    (inner.MESSAGES_NAMED_CHOICE, "anthropic.types", "ToolChoiceToolParam"),
    (inner.MESSAGES_THINKING, "anthropic.types", "ThinkingConfigEnabledParam"),
    (inner.MESSAGES_THINKING, "anthropic.types", "ThinkingConfigAdaptiveParam"),
    (inner.MESSAGES_THINKING, "anthropic.types", "ThinkingConfigDisabledParam"),
    (inner.MESSAGES_OUTPUT, "anthropic.types", "OutputConfigParam"),
    (inner.MESSAGES_FORMAT, "anthropic.types", "JSONOutputFormatParam"),
]
"""Objects within requests: their fields, and the types that client packages have for them."""
TAKEN_TYPES = {
    ("openai.types.responses.response_input_item_param", "ResponseInputItemParam"): {
        "EasyInputMessageParam",
        "Message",
        "ResponseOutputMessageParam",
        "ResponseReasoningItemParam",
        "ResponseFunctionToolCallParam",
        "FunctionCallOutput",
    },
    ("anthropic.types", "ContentBlockParam"): {
        "TextBlockParam",
        "ToolUseBlockParam",
        "ToolResultBlockParam",
        "ThinkingBlockParam",
    },
    ("anthropic.types", "ToolChoiceParam"): {
        "ToolChoiceAutoParam",
        "ToolChoiceAnyParam",
        "ToolChoiceNoneParam",
        "ToolChoiceToolParam",
    },
    ("anthropic.types", "MessageParam"): {
        "UserMessageParam",
        "AssistantMessageParam",
        "SystemMessageParam",
    },
}
"""Of each union of a client package, the types that are taken; others are refused by their `type`."""
TO_THE_TEMPLATE = {"role", "content", "name", "tool_calls", "tool_call_id"}
"""What messages of chat have for the template to write."""


def names_of(module: str) -> set[str]:
    """Return the fields of all request types in a module of a client package."""
    types = [
        each
        for name, each in vars(importlib.import_module(module)).items()
        if re.fullmatch(r"\w+Params(Base|\w*Streaming)?", name)
    ]
    return {name for each in types for name in getattr(each, "__annotations__", ())}


def all_names(route: str) -> set[str]:
    _, modules = WALKED[route]
    return set(DATA["fields"][route]).union(*map(names_of, modules))


def refusal(known: KnownFields, **values: object) -> ApiError | None:
    try:
        check_fields(Fields(values), known)
    except ApiError as exc:
        return exc
    return None


def is_listed(name: str, known: KnownFields) -> bool:
    return name in known.honoured | known.harmless or name in known.refused


@pytest.mark.parametrize("route", WALKED)
def test_every_field_of_every_client_and_of_vllm_is_in_a_list(route: str) -> None:
    """A new release of a client package shows here what it has that this engine does not know."""
    names = all_names(route)
    assert len(names) > (1 if route == "detokenize" else 5)
    missing = sorted(name for name in names if not is_listed(name, WALKED[route][0]))
    assert missing == [], "honour it, refuse it by name, or say why it is harmless"


@pytest.mark.parametrize(("known", "module", "form"), INNER)
def test_every_field_within_is_in_a_list(known: KnownFields, module: str, form: str) -> None:
    fields = typing.get_type_hints(getattr(importlib.import_module(module), form))
    assert len(fields) > 0
    assert [name for name in fields if not is_listed(name, known)] == []


def test_every_object_within_is_walked() -> None:
    walked = [id(known) for known, *_ in INNER]
    missing = [
        (route, where)
        for route, objects in OBJECTS.items()
        for where, known in objects.items()
        if id(known) not in walked
    ]
    assert missing == []


@pytest.mark.parametrize(("module", "union"), TAKEN_TYPES)
def test_types_that_are_taken_are_walked(module: str, union: str) -> None:
    """A type of a new release is refused by its `type`, and one that is renamed shows here."""
    members = typing.get_args(getattr(importlib.import_module(module), union))
    names = {each.__name__ for each in members}
    taken = TAKEN_TYPES[module, union]
    assert taken <= names & {form for _, _, form in INNER}


def test_everything_that_an_answer_may_include_is_known() -> None:
    from openai.types.responses import ResponseIncludable

    logprobs = "message.output_text.logprobs"  # refused by name
    assert set(typing.get_args(ResponseIncludable)) == INCLUDED | {logprobs}


@pytest.mark.parametrize("role", ["Developer", "System", "User", "Assistant", "Tool", "Function"])
def test_every_field_of_a_message_is_for_the_template_or_refused(role: str) -> None:
    form = getattr(
        importlib.import_module("openai.types.chat"), f"ChatCompletion{role}MessageParam"
    )
    assert set(form.__annotations__) <= TO_THE_TEMPLATE | MESSAGE_REFUSED.keys()


@pytest.mark.parametrize("page", ["engine-images/exo-engine/README.md", "docs/concepts/engine.md"])
def test_pages_say_when_the_list_was_read(page: str) -> None:
    text = (Path(__file__).parents[4] / page).read_text("utf-8")
    assert (
        f"vLLM 0.33, read on {DATA['read']}" in text
        or f"vLLM 0.33 were read on {DATA['read']}" in text
    )
    assert "vllm 0.33.0" in DATA["source"]


def test_types_of_clients_are_found() -> None:
    """Renamed types would leave nothing to walk."""
    assert {"messages", "tools", "stream"} <= names_of(WALKED["chat"][1][0])
    assert {"prompt", "suffix", "stream"} <= names_of(WALKED["completions"][1][0])
    assert {"input", "previous_response_id", "stream"} <= names_of(WALKED["responses"][1][0])
    assert {"messages", "thinking", "stream"} <= names_of(WALKED["messages"][1][0])
    assert {"input", "dimensions", "encoding_format"} <= names_of(WALKED["embeddings"][1][0])


@pytest.mark.parametrize(
    "known",
    [
        *[each for each, _ in WALKED.values()],
        *[each for objects in OBJECTS.values() for each in objects.values()],
    ],
)
def test_lists_do_not_contradict_each_other(known: KnownFields) -> None:
    assert not known.honoured & known.harmless
    assert not known.harmless & set(known.refused)
    assert known.refused_here <= known.honoured


def test_neutral_values_are_those_of_refused_fields() -> None:
    within = [known for objects in OBJECTS.values() for known in objects.values()]
    all_known = [*(known for known, _ in WALKED.values()), *within]
    refused = set().union(*(known.refused for known in all_known))
    assert set(known_fields._NEUTRAL) <= refused


@pytest.mark.parametrize("known", [CHAT, COMPLETIONS], ids=["chat", "completions"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kv_transfer_params", {"do_remote_decode": True}),
        ("return_token_offsets", True),
        ("web_search_options", {}),
        ("verbosity", "low"),
        ("thinking_token_budget", 0),
        ("use_beam_search", True),
    ],
)
def test_field_that_asks_for_what_there_is_not_is_refused_by_name(
    known: KnownFields, name: str, value: object
) -> None:
    error = refusal(known, model="m", **{name: value})
    assert error is not None
    assert (error.status, error.param, error.code) == (400, name, "unsupported_parameter")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cache_salt", None),
        ("return_token_ids", False),
        ("use_beam_search", False),
        ("guided_choice", []),
        ("include_reasoning", True),
        ("verbosity", "medium"),
    ],
)
def test_value_that_asks_for_nothing_passes(name: str, value: object) -> None:
    assert refusal(CHAT, **{name: value}) is None


def test_what_real_clients_send_along_passes() -> None:
    assert refusal(CHAT, **dict.fromkeys(HARMLESS, "x")) is None


def test_unknown_field_is_refused_with_a_suggestion() -> None:
    error = refusal(CHAT, model="m", temprature=0.5)
    assert error is not None
    assert (error.status, error.param, error.code) == (400, "temprature", "unknown_parameter")
    assert "did you mean 'temperature'?" in error.message


def test_long_name_is_cut() -> None:
    error = refusal(CHAT, **{"x" * 100_000: 1})
    assert error is not None
    assert len(error.message) < 200
    assert len(error.param) == 64


def test_unknown_field_without_a_value_passes() -> None:
    assert refusal(CHAT, anything=None) is None
