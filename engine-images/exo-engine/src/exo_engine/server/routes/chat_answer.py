"""From a chat request to an answer that comes in pieces, for every route with conversations.

`chat.py` writes the pieces as OpenAI's chat completions; other routes translate their requests into one of
those, and write the same pieces in their own form.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace

from exo_engine.core.request import TokenLogprobs
from exo_engine.server.answer_parsing.pieces import (
    AnswerParser,
    Arguments,
    Call,
    Content,
    Piece,
    Reasoning,
)
from exo_engine.server.api_errors import bad_request, not_supported
from exo_engine.server.constraints import read_constraint, schema_constraint
from exo_engine.server.fields import Fields
from exo_engine.server.generation import Delta, Generation, Usage
from exo_engine.server.known_fields import CHAT, check_fields
from exo_engine.server.prompts.truncation import read_truncation
from exo_engine.server.routes.conversation import Conversation, read_conversation
from exo_engine.server.routes.formats import TokenReports, read_token_reports
from exo_engine.server.sampling import Sampling, read_sampling
from exo_engine.server.service import Service
from exo_engine.server.token_limits import with_bad_words
from exo_engine.structured_output.reasoning import behind_reasoning


@dataclass(slots=True)
class AnswerDelta:
    """What is new in one choice."""

    index: int
    pieces: list[Piece] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    """Only where the request asks for them."""
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    @property
    def is_worth_showing(self) -> bool:
        """Whether a client can see any of it."""
        return bool(self.pieces or self.logprobs or self.token_ids or self.finish_reason)


class ChatAnswer:
    """All choices of one request."""

    def __init__(
        self,
        service: Service,
        generation: Generation,
        conversation: Conversation,
        *,
        num_top_logprobs: int | None,
        reports: TokenReports,
        has_reasoning: bool,
    ) -> None:
        """Prepare.

        Args:
            service: of this process.
            generation: of the request.
            conversation: its prompt and tools.
            num_top_logprobs: how many alternatives to report per token; None: no log probabilities.
            reports: what else the client wants to see of tokens.
            has_reasoning: the client wants to see it.
        """
        self._format = service.text.format
        self._generation = generation
        self.num_top_logprobs = num_top_logprobs
        self.reports = reports
        self.prompt_token_ids = conversation.tokens
        self.prompt_logprobs: Sequence[TokenLogprobs | None] = ()
        """Once the answer has begun, if the request asks for them."""
        self._readers = [
            _ChoiceReader(service, conversation, has_reasoning=has_reasoning)
            for _ in generation.sequences
        ]

    @property
    def num_choices(self) -> int:
        """How many answers there are to the one prompt."""
        return len(self._readers)

    @property
    def usage(self) -> Usage:
        """Token counts so far."""
        usage = self._generation.usage
        if self._format.marks_reasoning:
            usage.num_reasoning_tokens = sum(each.num_reasoning_tokens for each in self._readers)
        return usage

    async def run(self) -> AsyncIterator[list[AnswerDelta]]:
        """Yield what is new, step by step, until all choices have ended.

        Raises:
            ApiError: the core refused the request, or died.
        """
        async for deltas in self._generation.run():
            for each in deltas:
                self.prompt_logprobs = self.prompt_logprobs or each.prompt_logprobs or ()
                if not self.reports.has_token_ids:
                    each.token_ids = []
            yield [self._readers[each.index].take(each) for each in deltas]


async def begin_chat(fields: Fields, service: Service) -> ChatAnswer:
    """Read a chat request and prepare its answer.

    Raises:
        ApiError: something in it is wrong, or asks for what this engine does not offer.
    """
    check_fields(fields, CHAT)
    _refuse_unsupported(fields)
    limit_name = "max_completion_tokens" if fields.has("max_completion_tokens") else "max_tokens"
    num_top_logprobs = _read_logprobs(fields, service.options.max_logprobs)
    reports = read_token_reports(fields, service.options)
    # The newer name wins, as in vLLM; the older one is held to its type all the same.
    older = fields.integer("max_tokens", minimum=1)
    max_tokens = fields.integer("max_completion_tokens", older, minimum=1)
    sampling = read_sampling(
        fields,
        service.text.defaults,
        logprobs=num_top_logprobs,
        prompt_logprobs=reports.num_prompt_logprobs,
        max_tokens=max_tokens,
        tokenizer=service.text.tokenizer,
        vocabulary_size=service.vocabulary_size,
    )
    has_reasoning = fields.boolean("include_reasoning", True)
    truncation = read_truncation(fields, max_model_len=service.max_model_len, max_tokens=max_tokens)
    conversation = await read_conversation(fields, service, truncation)
    sampling = await _constrained(fields, sampling, conversation, service)
    sampling = _with_markers(sampling, conversation, service)
    generation = service.begin(
        [conversation.tokens], sampling, prompt_name="messages", limit_name=limit_name
    )
    return ChatAnswer(
        service,
        generation,
        conversation,
        num_top_logprobs=num_top_logprobs,
        reports=reports,
        has_reasoning=has_reasoning,
    )


def _refuse_unsupported(fields: Fields) -> None:
    if fields.has("audio") or fields.values.get("modalities") not in (None, ["text"]):
        raise not_supported("modalities", "output other than text")
    if fields.values.get("echo"):
        raise not_supported("echo", "echo on chat completions")


async def _constrained(
    fields: Fields, sampling: Sampling, conversation: Conversation, service: Service
) -> Sampling:
    """Keep the answer to a schema: of the tool that it must call, or what the request asks for."""
    sampling = await with_bad_words(fields, sampling, service)
    constraint = read_constraint(fields)
    if conversation.tools.schema is not None:
        if constraint is not None:
            text = f"{constraint.param} is only possible without a forced tool call"
            raise bad_request(text, constraint.param)
        constraint = schema_constraint("tools", conversation.tools.schema)
    constrained = await service.constrain(sampling, constraint)
    return _after_thinking(constrained, conversation, service)


def _after_thinking(sampling: Sampling, conversation: Conversation, service: Service) -> Sampling:
    """Let the model think first, where it does and the prompt has not closed that."""
    markers = service.text.format.reasoning_markers
    grammar = sampling.params.structured_outputs
    if grammar is None or markers is None or conversation.end.rstrip().endswith(markers.ends):
        return sampling
    tokenizer = service.text.tokenizer

    def mark(text: str) -> tuple[str, int | None]:
        token_id = tokenizer.token_id(text)
        is_special = token_id is not None and tokenizer.is_special(token_id)
        return text, token_id if is_special else None

    whole = behind_reasoning(
        grammar,
        [mark(text) for text in markers.starts],
        [mark(text) for text in markers.ends],
        is_open=markers.is_open_after(conversation.end),
    )
    return replace(sampling, params=replace(sampling.params, structured_outputs=whole))


def _read_logprobs(fields: Fields, maximum: int) -> int | None:
    """Return how many alternatives to report, or None for no log probabilities."""
    is_wanted = fields.boolean("logprobs")
    num_top = fields.integer("top_logprobs", minimum=0, maximum=maximum)
    if num_top and not is_wanted:
        raise bad_request("top_logprobs is only allowed with logprobs: true", "top_logprobs")
    return (num_top or 0) if is_wanted else None


def _with_markers(sampling: Sampling, conversation: Conversation, service: Service) -> Sampling:
    """Leave special tokens in the text where calls or reasoning are marked by such."""
    tokenizer = service.text.tokenizer
    marks = service.text.format.marks(has_tools=bool(conversation.tools.tools))
    ids = [tokenizer.token_id(mark) for mark in marks]
    is_marked = any(each is not None and tokenizer.is_special(each) for each in ids)
    return replace(sampling, skips_special_tokens=False) if is_marked else sampling


class _ChoiceReader:
    """Takes the text of one choice apart, and counts what of it was reasoning."""

    def __init__(
        self, service: Service, conversation: Conversation, *, has_reasoning: bool
    ) -> None:
        form, tools = service.text.format, conversation.tools
        self._parser: AnswerParser | None = form.parser(
            prompt=conversation.end, tools=tools.tools, forced=tools.forced_parser()
        )
        self._marks_reasoning = form.marks_reasoning
        self._tools = tools
        self._has_reasoning = has_reasoning
        self._num_calls = 0
        self.num_reasoning_tokens = 0

    def take(self, delta: Delta) -> AnswerDelta:
        """Return what is new, in pieces."""
        pieces = [piece for piece in self._read(delta) if self._is_wanted(piece)]
        is_calling = self._num_calls > 0 and self._tools.choice != "named"
        reason = delta.finish_reason
        return AnswerDelta(
            delta.index,
            pieces,
            delta.logprobs,
            delta.token_ids,
            "tool_calls" if reason == "stop" and is_calling else reason,
            delta.stop_reason,
        )

    def _read(self, delta: Delta) -> list[Piece]:
        if self._parser is None:
            return [Content(delta.text)] if delta.text else []
        pieces: list[Piece] = []
        begin = 0
        for end in delta.text_ends if self._marks_reasoning else ():
            was_reasoning = self._parser.is_reasoning
            pieces += self._parser.feed(delta.text[begin:end])
            self.num_reasoning_tokens += was_reasoning and self._parser.is_reasoning
            begin = end
        pieces += self._parser.feed(delta.text[begin:])
        if delta.finish_reason is not None:
            pieces += self._parser.finish()
        return pieces

    def _is_wanted(self, piece: Piece) -> bool:
        if isinstance(piece, Call):
            self._num_calls += 1
        if isinstance(piece, Call | Arguments):
            return self._tools.is_parallel or self._num_calls == 1
        return self._has_reasoning or not isinstance(piece, Reasoning)
