"""Parts of answers that completions and chat share: usage, log probabilities, stream options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from exo_engine.arguments import ServerOptions
from exo_engine.core.request import TokenLogprobs
from exo_engine.server.api_errors import bad_request
from exo_engine.server.fields import Fields
from exo_engine.server.generation import Usage
from exo_engine.server.inner_fields import STREAM_OPTIONS
from exo_engine.server.known_fields import check_fields
from exo_engine.tokenizer import Tokenizer

_LEAST_LOGPROB = -9999.0
"""What stands for minus infinity, which JSON cannot say; OpenAI's and vLLM's value."""


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """How a stream is to be written."""

    is_streaming: bool
    has_usage: bool = False
    """One last event with the token counts."""
    has_running_usage: bool = False
    """Token counts in every event; an extension of vLLM's."""


def read_stream_options(fields: Fields, options: ServerOptions) -> StreamOptions:
    """Read `stream` and `stream_options`.

    Raises:
        ApiError: one of them is wrong, or options came without a stream.
    """
    is_streaming = fields.boolean("stream")
    if fields.has("stream_options") and not is_streaming:
        raise bad_request("stream_options is only allowed with stream: true", "stream_options")
    inner = Fields(fields.mapping("stream_options"), prefix="stream_options.")
    check_fields(inner, STREAM_OPTIONS)
    has_running_usage = inner.boolean("continuous_usage_stats")
    return StreamOptions(
        is_streaming,
        has_usage=inner.boolean("include_usage") or options.is_usage_forced,
        has_running_usage=has_running_usage,
    )


def add_usage(
    events: list[dict[str, Any]], stream: StreamOptions, usage: Callable[[], dict[str, Any]]
) -> None:
    """Give the events of a stream what its options say about token counts, in place."""
    for event in events:
        if stream.has_running_usage:
            event["usage"] = usage()
        elif stream.has_usage:
            event["usage"] = None


def format_usage(usage: Usage, options: ServerOptions) -> dict[str, Any]:
    """Return the usage object."""
    body: dict[str, Any] = {
        "prompt_tokens": usage.num_prompt_tokens,
        "completion_tokens": usage.num_completion_tokens,
        "total_tokens": usage.num_prompt_tokens + usage.num_completion_tokens,
    }
    if options.has_prompt_tokens_details:
        body["prompt_tokens_details"] = {"cached_tokens": usage.num_cached_tokens}
    if usage.num_reasoning_tokens is not None:
        body["completion_tokens_details"] = {"reasoning_tokens": usage.num_reasoning_tokens}
    return body


@dataclass(frozen=True, slots=True)
class TokenReports:
    """What beside its text a request wants to see of the tokens."""

    has_token_ids: bool
    are_named_by_id: bool
    """Tokens in log probabilities are written `token_id:<id>`."""
    num_prompt_logprobs: int | None
    """Alternatives to report for each token of the prompt; None: no report."""


def read_token_reports(fields: Fields, options: ServerOptions) -> TokenReports:
    """Read the fields of vLLM's that ask for them.

    Raises:
        ApiError: one of them is wrong, or the prompt is to be reported on in a stream.
    """
    asked = fields.integer("prompt_logprobs", minimum=0, maximum=options.max_logprobs)
    if asked is not None and fields.boolean("stream"):
        raise bad_request("prompt_logprobs is only possible without stream", "prompt_logprobs")
    by_id = fields.boolean("return_tokens_as_token_ids", options.are_tokens_named_by_id)
    return TokenReports(fields.boolean("return_token_ids"), by_id, asked)


class LogprobFormat:
    """Log probabilities as the two routes show them."""

    def __init__(self, tokenizer: Tokenizer, *, is_by_id: bool) -> None:
        self._tokenizer = tokenizer
        self._is_by_id = is_by_id

    def prompt(
        self, entries: Sequence[TokenLogprobs | None], num_top: int
    ) -> list[dict[str, dict[str, Any]] | None]:
        """Return `prompt_logprobs`: for each token of the prompt it and the likeliest, by id."""
        return [None if entry is None else self._ranked(entry, num_top) for entry in entries]

    def _ranked(self, entry: TokenLogprobs, num_top: int) -> dict[str, dict[str, Any]]:
        likeliest = [(*pair, rank) for rank, pair in enumerate(entry.top[:num_top], 1)]
        found = [(entry.token_id, entry.logprob, entry.rank), *likeliest]
        return {
            str(token_id): {
                "logprob": _finite(logprob),
                "rank": rank,
                "decoded_token": self._tokenizer.token_text(token_id),
            }
            for token_id, logprob, rank in found
        }

    def chat(self, entries: Sequence[TokenLogprobs], num_top: int) -> dict[str, Any]:
        """Return the `logprobs` object of a chat choice."""
        content = []
        for entry in entries:
            top = [self._chat_entry(*pair) for pair in entry.top[:num_top]]
            content.append({**self._chat_entry(entry.token_id, entry.logprob), "top_logprobs": top})
        return {"content": content, "refusal": None}

    def completion(
        self,
        entries: Sequence[TokenLogprobs | None],
        token_ids: Sequence[int],
        num_top: int,
        offset: int,
    ) -> tuple[dict[str, Any], int]:
        """Return the `logprobs` object of a completion choice, and the next text offset.

        Args:
            entries: one per token; None where there is none (the first token of a prompt).
            token_ids: the tokens.
            num_top: alternatives to show for each.
            offset: characters of text before the first token.
        """
        body: dict[str, Any] = {
            "tokens": [],
            "token_logprobs": [],
            "top_logprobs": [],
            "text_offset": [],
        }
        for entry, token_id in zip(entries, token_ids, strict=True):
            body["tokens"].append(self._name(token_id))
            body["token_logprobs"].append(None if entry is None else _finite(entry.logprob))
            body["top_logprobs"].append(None if entry is None else self._top(entry, num_top))
            body["text_offset"].append(offset)
            offset += len(self._tokenizer.token_text(token_id))
        return body, offset

    def _top(self, entry: TokenLogprobs, num_top: int) -> dict[str, float]:
        # The chosen token is always among them, as in OpenAI's and vLLM's answers.
        pairs = [*entry.top[:num_top], (entry.token_id, entry.logprob)]
        return {self._name(token_id): _finite(logprob) for token_id, logprob in pairs}

    def _chat_entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        token_bytes = self._tokenizer.token_bytes(token_id)
        return {
            "token": self._name(token_id),
            "logprob": _finite(logprob),
            "bytes": list(token_bytes),
        }

    def _name(self, token_id: int) -> str:
        if self._is_by_id:
            return f"token_id:{token_id}"
        return self._tokenizer.token_text(token_id)


def _finite(logprob: float) -> float:
    return max(logprob, _LEAST_LOGPROB)
