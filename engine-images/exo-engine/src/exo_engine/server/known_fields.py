"""Which fields a request may have: honoured, harmless, or refused by name. No field is ignored silently.

Every route that computes calls `check_fields` before it reads anything. A field that a client sets and
that nobody here knows is refused too, as OpenAI does it: it may ask for what the client then relies on.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from exo_engine.server.api_errors import bad_request, not_supported
from exo_engine.server.fields import Fields

_SAMPLING = frozenset(
    [
        "model",
        "n",
        "best_of",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "seed",
        "min_tokens",
        "max_tokens",
        "stop",
        "stop_token_ids",
        "allowed_token_ids",
        "bad_words",
        "response_format",
        "structured_outputs",
        "structural_tag",
        "guided_json",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
        "guided_decoding_backend",
        "guided_whitespace_pattern",
        "ignore_eos",
        "logprobs",
        "logit_bias",
        "include_stop_str_in_output",
        "skip_special_tokens",
        "priority",
        "cache_salt",
        "stream",
        "stream_options",
        "echo",
        "add_special_tokens",
        "prompt_logprobs",
        "truncate_prompt_tokens",
        "truncation_side",
        "return_token_ids",
        "return_tokens_as_token_ids",
    ]
)
_CONVERSATION = frozenset(
    [
        "messages",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "functions",
        "function_call",
        "chat_template",
        "chat_template_kwargs",
        "documents",
        "reasoning_effort",
        "continue_final_message",
        "add_generation_prompt",
    ]
)

HARMLESS = frozenset(
    # What OpenAI keeps, bills, caches or traces by. Nothing is kept, billed or shared here.
    [
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "prediction",
        "mm_processor_kwargs",
        "media_io_kwargs",
        "length_penalty",
        "early_stopping",
        "spaces_between_special_tokens",
        "session_id",
    ]
)
"""Accepted without effect: whatever they say, the answer is what the client may expect."""

UNSUPPORTED: Mapping[str, str] = {
    "use_beam_search": "beam search",
    "prompt_logprobs": "prompt_logprobs (use /v1/chat/completions)",
    "prompt_embeds": "a prompt of embeddings",
    "logits_processors": "a custom logits processor",
    "truncate_prompt_tokens": "truncating prompts",
    "truncation_side": "truncating prompts",
    "return_token_ids": "return_token_ids (use /v1/chat/completions)",
    "return_tokens_as_token_ids": "return_tokens_as_token_ids (start the engine with that flag)",
    "kv_transfer_params": "moving the KV cache to or from another engine",
    "vllm_xargs": "vllm_xargs",
    "request_id": "request_id (use the header X-Request-Id)",
    "thinking_token_budget": "a budget for reasoning",
    "repetition_detection": "repetition_detection",
    "modalities": "output other than text",
    "audio": "output other than text",
    "suffix": "suffix",
    "verbosity": "verbosity",
    "web_search_options": "web search",
    "moderation": "moderation",
    "mm_payload": "input other than text",
    "return_mm_kwargs": "input other than text",
    "watermarking": "watermarks",
    "ec_transfer_params": "moving the encoder cache to or from another engine",
    "logprob_token_ids": "logprob_token_ids (use logprobs)",
    "return_prompt_text": "return_prompt_text (use /tokenize and /detokenize)",
    "return_token_offsets": "return_token_offsets",
    "return_weight_versions": "telling versions of weights",
    "routed_experts_prompt_start": "telling the experts of tokens",
    "stream_interval": "stream_interval",
}
"""What a client may ask OpenAI or vLLM for and not this engine, and how to call it in the refusal."""

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "prompt_logprobs": (),  # 0 asks for those of the prompt's own tokens
    "web_search_options": (),  # {} asks for it
    "verbosity": ("medium",),
    "stream_interval": (1,),
    "context": ("auto",),
    "mode": ("standard",),
    "speed": ("standard",),
    "embed_dtype": ("float32",),
    "endianness": ("native", "little"),
    "padding": ("do_not_pad",),
    "caller": ({"type": "direct"},),
    "allowed_callers": ([], ["direct"]),
    "phase": ("final_answer",),
    "truncation_side": ("left", "right"),  # says nothing without truncate_prompt_tokens
}
"""Values of unsupported fields that ask for nothing, where they are not the empty ones and false."""


@dataclass(frozen=True, slots=True)
class KnownFields:
    """The fields of one route.

    Attributes:
        honoured: what the route reads; some values may still be refused.
        harmless: what has no effect and need not have one.
        refused: what is refused by name, and how to call it.
        refused_here: of what the route reads, that it only says more about than its name when it refuses it.
    """

    honoured: frozenset[str]
    harmless: frozenset[str] = HARMLESS
    refused: Mapping[str, str] = field(default_factory=lambda: UNSUPPORTED)
    refused_here: frozenset[str] = frozenset()


_REFUSED_IN_CONVERSATIONS = frozenset({"chat_template", "functions", "function_call"})
CHAT = KnownFields(
    _SAMPLING
    | _CONVERSATION
    | {
        "max_completion_tokens",
        "top_logprobs",
        "response_format",
        "modalities",
        "audio",
        "include_reasoning",
    },
    refused_here=_REFUSED_IN_CONVERSATIONS | {"audio", "modalities", "best_of", "echo"},
)
COMPLETIONS = KnownFields(_SAMPLING | {"prompt", "suffix"}, refused_here=frozenset({"best_of"}))
TOKENIZE = KnownFields(
    _CONVERSATION | {"model", "prompt", "add_special_tokens", "return_token_strs"},
    refused_here=_REFUSED_IN_CONVERSATIONS,
)
TOKENIZE_TEXT = KnownFields(
    TOKENIZE.honoured - _CONVERSATION,
    refused={**UNSUPPORTED, **dict.fromkeys(_CONVERSATION, "a field of conversations with prompt")},
)
DETOKENIZE = KnownFields(frozenset({"model", "tokens"}))
_RESPONSES_REFUSED = {
    **UNSUPPORTED,
    "background": "answering in the background",
    "background_options": "answering in the background",
    "conversation": "a conversation that is kept (send it in input)",
    "prompt": "a prompt that is kept",
    "context_management": "managing the context",
    "image": "compressing pictures",
    "enable_response_messages": "enable_response_messages",
    "previous_input_messages": "previous_input_messages",
}
RESPONSES_AS_CHAT = frozenset(
    [
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "stop",
        "stop_token_ids",
        "ignore_eos",
        "logit_bias",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "parallel_tool_calls",
        "include_reasoning",
        "include_stop_str_in_output",
        "skip_special_tokens",
        "priority",
        "cache_salt",
        "chat_template_kwargs",
        "structured_outputs",
    ]
)
"""Fields of /v1/responses that mean what they mean in /v1/chat/completions."""
RESPONSES = KnownFields(
    RESPONSES_AS_CHAT
    | {
        "model",
        "input",
        "instructions",
        "max_output_tokens",
        "tools",
        "tool_choice",
        "stream",
        "stream_options",
        "text",
        "reasoning",
        "include",
        "truncation",
        "top_logprobs",
        "previous_response_id",
    },
    # Limits and hints for tools of OpenAI's own, which are refused, and for its stores.
    HARMLESS | {"max_tool_calls", "access_programs"},
    _RESPONSES_REFUSED,
    frozenset({"previous_response_id", "truncation", "top_logprobs"}),
)
_ANTHROPIC_HARMLESS = frozenset(
    # What Anthropic caches, bills or traces by.
    [
        "metadata",
        "service_tier",
        "cache_control",
        "inference_geo",
        "diagnostics",
        "user_profile_id",
        "workspace_id",
    ]
)
_ANTHROPIC_REFUSED = {
    **UNSUPPORTED,
    "container": "a container",
    "context_management": "managing the context",
    "mcp_servers": "MCP servers",
    "speed": "a speed of its own",
}
MESSAGES_AS_CHAT = frozenset(
    {"temperature", "top_p", "top_k", "cache_salt", "chat_template_kwargs"}
)
"""Fields of /v1/messages that mean what they mean in /v1/chat/completions."""
MESSAGES = KnownFields(
    MESSAGES_AS_CHAT
    | {
        "model",
        "messages",
        "max_tokens",
        "system",
        "stop_sequences",
        "stream",
        "tools",
        "tool_choice",
        "thinking",
        "output_config",
    },
    _ANTHROPIC_HARMLESS,
    _ANTHROPIC_REFUSED,
)
_OF_ANSWERS = frozenset(
    ["max_tokens", "temperature", "top_p", "top_k", "stop_sequences", "stream", "cache_salt"]
)
COUNT_TOKENS = KnownFields(
    MESSAGES.honoured - _OF_ANSWERS, MESSAGES.harmless | _OF_ANSWERS, MESSAGES.refused
)
"""Of /v1/messages/count_tokens: a request of /v1/messages may be counted as it is, and there is no answer."""
_POOLING_HARMLESS = HARMLESS | {"cache_salt"}  # nothing of a text is cached
_POOLING_REFUSED = {
    **UNSUPPORTED,
    "messages": "a conversation (use input)",
    "chat_template": "a conversation (use input)",
    "chat_template_kwargs": "a conversation (use input)",
    "add_generation_prompt": "a conversation (use input)",
    "continue_final_message": "a conversation (use input)",
    "normalize": "normalize (use use_activation)",
    "task": "another task than the route's",
    "embed_dtype": "numbers other than float32",
    "endianness": "big-endian numbers",
    "padding": "padding texts",
    "instruction": "an instruction (put it into the query)",
    "rank_fields": "documents with fields",
    "max_chunks_per_doc": "documents in chunks",
    "truncation": "truncation (use truncate_prompt_tokens)",
}
_POOLING = frozenset(
    ["model", "priority", "use_activation", "truncate_prompt_tokens", "truncation_side"]
)
EMBEDDINGS = KnownFields(
    _POOLING | {"input", "dimensions", "encoding_format", "add_special_tokens"},
    _POOLING_HARMLESS,
    _POOLING_REFUSED,
)
POOLING = KnownFields(
    _POOLING | {"input", "encoding_format", "add_special_tokens", "task"},
    _POOLING_HARMLESS,
    {
        **_POOLING_REFUSED,
        "dimensions": "cutting vectors (use /v1/embeddings)",
        "data": "data for a plugin",
    },
)
CLASSIFY = KnownFields(
    _POOLING | {"input", "add_special_tokens"}, _POOLING_HARMLESS, _POOLING_REFUSED
)
_PAIRS = _POOLING | {"documents", "max_tokens_per_query", "max_tokens_per_doc"}
SCORE = KnownFields(
    _PAIRS | {"text_1", "text_2", "queries", "items", "data_1", "data_2"},
    _POOLING_HARMLESS,
    _POOLING_REFUSED,
)
RERANK = KnownFields(
    _PAIRS | {"query", "top_n", "return_documents"},
    _POOLING_HARMLESS,
    _POOLING_REFUSED,
)

ROUTES: Mapping[str, KnownFields] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETIONS,
    "/v1/responses": RESPONSES,
    "/v1/messages": MESSAGES,
    "/v1/embeddings": EMBEDDINGS,
    "/v1/score": SCORE,
    "/v1/rerank": RERANK,
    "/pooling": POOLING,
    "/classify": CLASSIFY,
    "/tokenize": TOKENIZE,
    "/detokenize": DETOKENIZE,
}
"""By the paths that take them."""


def check_fields(fields: Fields, known: KnownFields) -> None:
    """Refuse the first field that would be ignored although it asks for something.

    Raises:
        ApiError: there is one; `param` names it.
    """
    for name, value in fields.values.items():
        if value is None or name in known.honoured or name in known.harmless:
            continue
        what = known.refused.get(name)
        if what is None:
            raise _unknown(fields, name, known)
        if not _is_neutral(name, value):
            raise not_supported(fields.name(name), what)


def _is_neutral(name: str, value: Any) -> bool:
    own = _NEUTRAL.get(name)
    if own is not None:
        return any(type(value) is type(each) and value == each for each in own)
    return value is False or (isinstance(value, str | list | dict) and not value)


def _unknown(fields: Fields, name: str, known: KnownFields) -> Exception:
    shown = name[:64]
    close = difflib.get_close_matches(shown, known.honoured, n=1, cutoff=0.8)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return bad_request(
        f"unknown field {shown!r}: this engine would ignore it{hint}",
        fields.name(shown),
        "unknown_parameter",
    )
