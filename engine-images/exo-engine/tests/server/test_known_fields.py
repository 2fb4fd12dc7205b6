"""No field of OpenAI's or vLLM's requests is ignored silently."""

from __future__ import annotations

import pytest
from exo_engine.server import known_fields
from exo_engine.server.api_errors import ApiError
from exo_engine.server.fields import Fields
from exo_engine.server.known_fields import (
    CHAT,
    COMPLETIONS,
    DETOKENIZE,
    HARMLESS,
    STREAM_OPTIONS,
    TOKENIZE,
    UNSUPPORTED,
    KnownFields,
    check_fields,
)
from openai.types import completion_create_params
from openai.types.chat import chat_completion_stream_options_param
from openai.types.chat import completion_create_params as chat_create_params

# Of vLLM 0.28's ChatCompletionRequest and CompletionRequest, beyond OpenAI's own.
VLLM = [
    "add_generation_prompt",
    "add_special_tokens",
    "allowed_token_ids",
    "bad_words",
    "cache_salt",
    "chat_template",
    "chat_template_kwargs",
    "continue_final_message",
    "documents",
    "echo",
    "ignore_eos",
    "include_reasoning",
    "include_stop_str_in_output",
    "kv_transfer_params",
    "length_penalty",
    "logits_processors",
    "media_io_kwargs",
    "min_p",
    "min_tokens",
    "mm_processor_kwargs",
    "priority",
    "prompt_logprobs",
    "repetition_detection",
    "repetition_penalty",
    "request_id",
    "return_token_ids",
    "return_tokens_as_token_ids",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "stop_token_ids",
    "structural_tag",
    "structured_outputs",
    "thinking_token_budget",
    "top_k",
    "truncate_prompt_tokens",
    "truncation_side",
    "use_beam_search",
    "vllm_xargs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "guided_decoding_backend",
    "guided_whitespace_pattern",
]

CHAT_ONLY = {
    "add_generation_prompt",
    "chat_template",
    "chat_template_kwargs",
    "continue_final_message",
    "documents",
    "include_reasoning",
}


def names_of(params: object) -> set[str]:
    base = params.CompletionCreateParamsBase.__annotations__
    return set(base) | set(params.CompletionCreateParamsStreaming.__annotations__)


def refusal(known: KnownFields, **values: object) -> ApiError | None:
    try:
        check_fields(Fields(values), known)
    except ApiError as exc:
        return exc
    return None


def is_listed(name: str, known: KnownFields) -> bool:
    return name in known.honoured | known.harmless or name in UNSUPPORTED


@pytest.mark.parametrize("name", sorted(names_of(chat_create_params) | set(VLLM)))
def test_every_field_of_a_chat_is_in_a_list(name: str) -> None:
    assert is_listed(name, CHAT), "honour it, refuse it by name, or say why it is harmless"


@pytest.mark.parametrize("name", sorted(names_of(completion_create_params) | set(VLLM)))
def test_every_field_of_a_completion_is_in_a_list(name: str) -> None:
    assert is_listed(name, COMPLETIONS) or name in CHAT_ONLY


def test_every_stream_option_is_in_a_list() -> None:
    options = chat_completion_stream_options_param.ChatCompletionStreamOptionsParam
    for name in options.__annotations__:
        assert is_listed(name, STREAM_OPTIONS)


@pytest.mark.parametrize("known", [CHAT, COMPLETIONS, TOKENIZE, DETOKENIZE, STREAM_OPTIONS])
def test_lists_do_not_contradict_each_other(known: KnownFields) -> None:
    assert not known.honoured & known.harmless
    assert not known.harmless & set(UNSUPPORTED)
    assert set(known_fields._NEUTRAL) <= set(UNSUPPORTED)


@pytest.mark.parametrize("known", [CHAT, COMPLETIONS], ids=["chat", "completions"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("return_token_ids", True),
        ("kv_transfer_params", {"do_remote_decode": True}),
        ("prompt_logprobs", 0),
        ("prompt_logprobs", 1),
        ("web_search_options", {}),
        ("verbosity", "low"),
        ("truncate_prompt_tokens", -1),
        ("truncate_prompt_tokens", 0),
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
