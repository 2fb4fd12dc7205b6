"""What the routes share: the core, the tokenizer, the settings, and which phase the server is in.

One `Service` per process, made by `lifecycle` and handed to the application. It answers the
questions that come before any route's own work: may this request in, for which model, with how many
tokens.
"""

from __future__ import annotations

import asyncio
import hmac
import importlib.util
import itertools
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from exo_engine.arguments import ServerOptions
from exo_engine.server.answer_parsing.formats import AnswerFormat, choose_format
from exo_engine.server.api_errors import DRAINING_HEADER, STARTING_HEADER, ApiError, bad_request
from exo_engine.server.constraints import Constraint
from exo_engine.server.core_link import CoreLink
from exo_engine.server.fields import Fields
from exo_engine.server.generation import Generation
from exo_engine.server.listener import Room
from exo_engine.server.pools.grammar_pool import GrammarPool
from exo_engine.server.pools.template_pool import TemplatePool
from exo_engine.server.pools.tokenizer_pool import TokenizerPool
from exo_engine.server.prompts.encoding import Encoder
from exo_engine.server.prompts.truncation import Truncation
from exo_engine.server.readers import Readers
from exo_engine.server.request_size import check_copies, check_num_prompts, check_num_tokens
from exo_engine.server.sampling import Sampling, SamplingDefaults, load_defaults
from exo_engine.server.telemetry.metrics import Metrics
from exo_engine.server.telemetry.tracing import Tracing
from exo_engine.structured_output.compiler import import_llguidance
from exo_engine.structured_output.vocabulary import vocabulary_of
from exo_engine.tokenizer import Tokenizer
from exo_engine.tokenizer.template_sources import find_templates
from exo_engine.tokenizer.tokenizer import is_own

Phase = Literal["starting", "ready", "draining"]
_NO_TEMPLATE = (
    "this model has no chat template; use /v1/completions, or start the engine with --chat-template"
)
_NO_JINJA = (
    "conversations need jinja2, which is not installed beside this engine; use /v1/completions"
)


@dataclass(frozen=True, slots=True)
class TextTools:
    """What turns requests into tokens and tokens into text."""

    tokenizer: Tokenizer
    chat_template: TemplatePool | None
    defaults: SamplingDefaults
    format: AnswerFormat
    why_no_chat: str
    """What a conversation is told when there is no template to render it."""
    templates: Mapping[str, str]
    """The text of the chat templates, by name."""


def load_text_tools(options: ServerOptions) -> TextTools:
    """Read the tokenizer, the chat template and the sampling defaults of the model.

    Raises:
        ConfigurationError: one of the files is missing or wrong.
    """
    tokenizer = Tokenizer(options.tokenizer_dir, model_dir=options.model_dir)
    sources = find_templates(tokenizer, options.tokenizer_dir, override=options.chat_template)
    template = None
    if sources and importlib.util.find_spec("jinja2"):
        template = TemplatePool(
            sources,
            special_tokens=tokenizer.special_tokens,
            content_format=options.chat_template_content_format,
            variables=options.chat_template_variables,
        )
    form = choose_format(
        sources, tools=options.tool_call_parser, reasoning=options.reasoning_parser
    )
    why_no_chat = _NO_JINJA if sources else _NO_TEMPLATE
    return TextTools(tokenizer, template, load_defaults(options), form, why_no_chat, sources)


class Service:
    """State of one server process."""

    def __init__(self, options: ServerOptions, link: CoreLink, metrics: Metrics) -> None:
        self.options, self.link, self.metrics = options, link, metrics
        self.tracing: Tracing | None = None  # where spans go
        self.phase: Phase = "starting"
        self.created = self.now()
        self._text: TextTools | None = None
        self._num_active = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._prefix = secrets.token_hex(8)
        self._numbers = itertools.count(1)
        self._encoding = asyncio.Semaphore(1)
        self.readers = Readers()
        self.room = Room()  # for connections
        self._tokenizer_pool: TokenizerPool | None = None
        self._grammar_pool: GrammarPool | None = None

    @property
    def text(self) -> TextTools:
        """Tokenizer and templates; only once the server is ready."""
        assert self._text is not None, "asked for the tokenizer before the server was ready"
        return self._text

    @property
    def max_model_len(self) -> int:
        """Longest sequence in tokens; only once the server is ready."""
        assert self.link.info is not None, "asked for the model length before the server was ready"
        return self.link.info.max_model_len

    @property
    def vocabulary_size(self) -> int:
        """Token ids are below this; only once the server is ready."""
        assert self.link.info is not None, "asked for the vocabulary before the server was ready"
        return self.link.info.vocabulary_size

    @property
    def progress(self) -> str:
        """Where a start stands, in words."""
        return self.link.progress if self.link.info is None else "loading the tokenizer"

    @property
    def measurements(self) -> dict[str, Any]:
        """What the start has measured; only once the core is ready."""
        assert self.link.info is not None, "asked for measurements before the core was ready"
        return self.link.info.measurements

    async def load_text_tools(self) -> None:
        """Read what the model's files say about text; the templates open, and close with this object.

        A stranger's tokenizer is read in a process with limits first.

        Raises:
            ConfigurationError: one of the files is missing or wrong.
        """
        options = self.options
        if not await asyncio.to_thread(is_own, options.tokenizer_dir):
            self._tokenizer_pool = TokenizerPool(options.tokenizer_dir, model_dir=options.model_dir)
            await self._tokenizer_pool.open()
        self._text = text = await asyncio.to_thread(load_text_tools, options)
        if self._tokenizer_pool is not None:
            self._tokenizer_pool.check(text.tokenizer)
        if text.chat_template is not None:
            await text.chat_template.open()

    def become_ready(self) -> None:
        """Open the doors."""
        assert self._text is not None, "the tokenizer must be loaded first"
        assert self.link.info is not None, "the core must be ready first"
        self.metrics.set_info(self.link.info)
        if self.phase == "starting":
            self.phase = "ready"

    async def close(self) -> None:
        """End what this process started for tokenizer and template."""
        for pool in (self._tokenizer_pool, self._grammar_pool):
            if pool is not None:
                await pool.close()
        if self._text is not None and self._text.chat_template is not None:
            await self._text.chat_template.close()

    def begin_drain(self) -> None:
        """Take no new requests, and wait less long for clients that do not read."""
        self.phase = "draining"
        self.readers.hurry()

    def check_open(self) -> None:
        """Refuse a request that needs the model while there is none.

        Raises:
            ApiError: 503 while starting, draining or after the core has failed.
        """
        if self.phase == "draining":
            raise ApiError(
                503,
                "this replica is shutting down and takes no new requests",
                code="draining",
                headers={DRAINING_HEADER: "1", "Connection": "close"},
            )
        if self.link.failure is not None:
            raise ApiError(
                503,
                "the engine has failed and is ending",
                code="engine_stopped",
                headers={DRAINING_HEADER: "1", "Connection": "close"},
            )
        if self.phase == "starting":
            raise ApiError(
                503,
                f"the model is not loaded yet: {self.progress}",
                code="model_loading",
                headers={STARTING_HEADER: "1", "Retry-After": "5"},
            )

    def check_key(self, authorization: str | None) -> None:
        """Hold a request's key against --api-key, if that was given.

        Raises:
            ApiError: 401 if the key is missing or wrong.
        """
        if not self.options.api_keys:
            return
        scheme, _, named = (authorization or "").partition(" ")
        given = named.strip().encode(errors="surrogateescape")
        # Every key is compared, so that the time taken says nothing about which one was close.
        keys = [each.encode(errors="surrogateescape") for each in self.options.api_keys]
        matches = [hmac.compare_digest(given, key) for key in keys]
        if scheme.lower() != "bearer" or not any(matches):
            raise ApiError(401, "the API key is missing or wrong", code="invalid_api_key")

    def check_model(self, fields: Fields) -> str:
        """Return the name under which the model was asked for.

        Raises:
            ApiError: 404 if it is not served here.
        """
        names = self.options.served_model_names
        model = fields.string("model")
        if model is None:
            return names[0]
        if model not in names:
            raise ApiError(
                404,
                f"the model {model[:256]!r} does not exist here; this server has "
                + ", ".join(repr(name) for name in names),
                code="model_not_found",
                param="model",
            )
        return model

    def now(self) -> int:
        """Return the time as answers carry it."""
        return int(time.time())

    def new_id(self) -> str:
        """Return an id that no other request of this server has, nor one before a restart."""
        return f"{self._prefix}{next(self._numbers):08x}"

    @property
    def num_active(self) -> int:
        """Requests that are being answered."""
        return self._num_active

    def enter(self) -> None:
        """Count a request in, so that a shutdown waits for it."""
        self._num_active += 1
        self._is_idle.clear()

    def leave(self) -> None:
        """Count it out."""
        self._num_active -= 1
        if self._num_active == 0:
            self._is_idle.set()

    async def wait_idle(self) -> None:
        """Wait until no request is being answered."""
        await self._is_idle.wait()

    async def encode(
        self,
        text: str,
        *,
        add_special_tokens: bool,
        param: str = "prompt",
        truncation: Truncation | None = None,
    ) -> list[int]:
        """Tokenize a text.

        Raises:
            ApiError: 400 if it is no text, too long for the model, or too much for its tokenizer.
        """
        (tokens,) = await self.encode_all(
            [text], add_special_tokens=add_special_tokens, param=param, truncation=truncation
        )
        return tokens

    async def encode_all(
        self,
        texts: Sequence[str],
        *,
        add_special_tokens: bool,
        param: str = "prompt",
        truncation: Truncation | None = None,
    ) -> list[list[int]]:
        """Tokenize texts, off the event loop if there is much of them.

        Args:
            texts: what to tokenize.
            add_special_tokens: with BOS or the like, if the model wants it.
            param: the field that the texts came from, for messages.
            truncation: how long texts are cut.

        Raises:
            ApiError: 400 if one of them is no text, too long for the model, or too much for its
                tokenizer.
        """
        encoder = Encoder(
            self.text.tokenizer, self.max_model_len, self._encoding, self._tokenizer_pool
        )
        return await encoder.encode(
            texts, add_special_tokens=add_special_tokens, param=param, truncation=truncation
        )

    async def constrain(self, sampling: Sampling, constraint: Constraint | None) -> Sampling:
        """Have an answer keep to a constraint.

        Raises:
            ApiError: 400 if the constraint cannot be kept to.
        """
        if constraint is None:
            return sampling
        if self._grammar_pool is None:
            import_llguidance()
            options = self.options
            self._grammar_pool = GrammarPool(
                options.tokenizer_dir,
                options.model_dir,
                self.vocabulary_size,
                self.metrics.observe_grammar,
            )
        grammar = await self._grammar_pool.check(constraint)
        if not self.link.is_vocabulary_told:
            tokenizer, size = self.text.tokenizer, self.vocabulary_size
            self.link.use_vocabulary(await asyncio.to_thread(vocabulary_of, tokenizer, size))
        params = replace(sampling.params, structured_outputs=grammar)
        return replace(sampling, params=params, constrained_by=constraint.param)

    def check_prompt_length(self, num_tokens: int, param: str = "prompt") -> None:
        """Refuse a prompt that leaves no room for an answer.

        Raises:
            ApiError: 400 if it is too long.
        """
        if num_tokens >= self.max_model_len:
            raise bad_request(
                f"This model's maximum context length is {self.max_model_len} tokens, but "
                f"{num_tokens} for the prompt and at least 1 for the answer were requested. "
                "Shorten the prompt.",
                param,
                "context_length_exceeded",
            )

    def begin(
        self,
        prompts: Sequence[list[int]],
        sampling: Sampling,
        *,
        prompt_name: str = "prompt",
        limit_name: str = "max_tokens",
        default_max_tokens: int | None = None,
    ) -> Generation:
        """Check lengths and room, and prepare the answer.

        Args:
            prompts: token ids of each prompt.
            sampling: how to answer.
            prompt_name: the field that the prompts came from, for messages.
            limit_name: the field that limits the answer, for messages.
            default_max_tokens: the limit of a request without one; None: what is left.

        Raises:
            ApiError: 400 if a prompt is empty or too long, or there is too much; 429 if too many requests wait.
        """
        max_tokens = [
            self._limit(
                len(prompt),
                sampling.params.max_tokens,
                names=(prompt_name, limit_name),
                default=default_max_tokens,
            )
            for prompt in prompts
        ]
        check_num_prompts(len(prompts), sampling.num_choices)
        num_sequences = len(prompts) * sampling.num_choices
        if num_sequences > 1:  # one is as long as the model takes
            check_num_tokens(sum(map(len, prompts)) * sampling.num_choices, prompt_name)
        held = check_copies(prompts, sampling, self.link)
        self.check_queue(num_sequences)
        self.metrics.observe_request(sampling.num_choices)
        return Generation(
            self.link,
            self.metrics,
            self.text.tokenizer,
            request_id=self.new_id(),
            prompts=list(prompts),
            sampling=sampling,
            max_tokens=max_tokens,
            held=held,
            tracing=self.tracing,
        )

    def _limit(
        self,
        num_prompt_tokens: int,
        asked: int | None,
        *,
        names: tuple[str, str],
        default: int | None,
    ) -> int:
        """Return how many tokens may follow a prompt."""
        prompt_name, limit_name = names
        if not num_prompt_tokens:
            raise bad_request("the prompt has no tokens", prompt_name)
        room = self.max_model_len - num_prompt_tokens
        if room < (asked or 1):
            wanted = f"{asked} for the answer" if asked else "at least 1 for the answer"
            raise bad_request(
                f"This model's maximum context length is {self.max_model_len} tokens, but "
                f"{num_prompt_tokens} for the prompt and {wanted} were requested. Shorten the prompt"
                + (f" or lower {limit_name}." if asked else "."),
                limit_name if asked and room > 0 else prompt_name,
                "context_length_exceeded",
            )
        limit = asked or min(room, default or room)
        cap = self.text.defaults.max_tokens
        return limit if cap is None else min(limit, cap)

    def check_queue(self, num_new: int) -> None:
        """Refuse what would wait behind too many others.

        Raises:
            ApiError: 429 if too many requests wait.
        """
        info, limit = self.link.info, self.options.max_num_queued_requests
        if limit is None or info is None:
            return
        num_waiting = max(0, self.link.num_unfinished + num_new - info.max_num_seqs)
        if num_waiting > limit:
            raise ApiError(
                429,
                f"too many requests: {self.link.num_unfinished} are being served or wait, and "
                f"{info.max_num_seqs} + {limit} is the limit",
                code="queue_full",
                headers={"Retry-After": "1"},
            )
