"""One HTTP request's answer while it is being written: sequences, text, stop strings, usage.

A request may ask for several prompts and several choices of each; every one is a `Sequence` of its
own in the engine core. `Generation` submits them together, turns the tokens of each step into text
and yields what is new. Formats of the API are the routes' business.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from exo_engine.core.request import EngineRequest, RequestOutput, TokenLogprobs
from exo_engine.server.api_errors import from_refusal
from exo_engine.server.core_link import NOTHING, CoreLink, Held
from exo_engine.server.sampling import Sampling
from exo_engine.server.telemetry.metrics import Metrics
from exo_engine.server.telemetry.times import Times
from exo_engine.server.telemetry.tracing import RequestFacts, Tracing
from exo_engine.tokenizer import StopStrings, Tokenizer

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Delta:
    """What is new in one sequence."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    text_ends: list[int] = field(default_factory=list)
    """For each token, up to where the text was there after it."""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    """The stop string or stop token that ended the sequence; None for the model's own end."""


@dataclass(slots=True)
class Usage:
    """Token counts of one request."""

    num_prompt_tokens: int
    num_cached_tokens: int = 0
    num_completion_tokens: int = 0
    num_reasoning_tokens: int | None = None
    """Of the completion; None: nothing marks them."""


class Sequence:
    """One choice of one prompt: its text so far and how it ended."""

    def __init__(
        self, index: int, request: EngineRequest, sampling: Sampling, tokenizer: Tokenizer
    ) -> None:
        self.index = index
        self.request = request
        self.num_tokens = 0
        self.num_cached_tokens = 0
        self.is_finished = False
        self.num_preemptions = 0
        self.end_reason = ""
        self.times = Times(time.monotonic())
        self._is_stop_included = sampling.is_stop_included
        self._eos_token_ids = tokenizer.eos_token_ids
        self._detokenizer = tokenizer.detokenizer(skip_special_tokens=sampling.skips_special_tokens)
        self._stops = StopStrings(sampling.stop, is_included=sampling.is_stop_included)

    def take(self, output: RequestOutput, delta: Delta) -> None:
        """Add one step's output to `delta`; nothing of what follows a stop string."""
        self.num_cached_tokens = max(self.num_cached_tokens, output.num_cached_tokens)
        self.num_preemptions = output.num_preemptions
        if output.scheduled_at is not None:
            self.times.scheduled = output.scheduled_at
        if output.prompt_logprobs is not None:
            delta.prompt_logprobs = output.prompt_logprobs
        for position, token_id in enumerate(output.token_ids):
            self.num_tokens += 1
            delta.token_ids.append(token_id)
            if output.logprobs:
                delta.logprobs.append(output.logprobs[position])
            is_end_token = (
                output.stop_token_id is not None and position == len(output.token_ids) - 1
            )
            if not is_end_token or self._is_stop_included:
                self._show(self._detokenizer.feed(token_id), delta)
            delta.text_ends.append(len(delta.text))
            if self.is_finished:
                return
        if output.finish_reason is not None:
            self._end(output, delta)

    def _show(self, text: str, delta: Delta) -> None:
        if self.num_tokens <= self.request.params.min_tokens:
            delta.text += self._stops.skip(text)
            return
        shown, match = self._stops.feed(text)
        delta.text += shown
        if match is not None:
            self.is_finished = True
            delta.finish_reason, delta.stop_reason = "stop", match.stop

    def _end(self, output: RequestOutput, delta: Delta) -> None:
        self._show(self._detokenizer.flush(), delta)
        if self.is_finished:
            return
        delta.text += self._stops.flush()
        self.is_finished = True
        delta.finish_reason = output.finish_reason
        if output.stop_token_id not in self._eos_token_ids:
            delta.stop_reason = output.stop_token_id


class Generation:
    """All sequences of one request."""

    def __init__(
        self,
        link: CoreLink,
        metrics: Metrics,
        tokenizer: Tokenizer,
        *,
        request_id: str,
        prompts: list[list[int]],
        sampling: Sampling,
        max_tokens: list[int],
        held: Held = NOTHING,
        tracing: Tracing | None = None,
    ) -> None:
        """Prepare the sequences; nothing is submitted yet.

        Args:
            link: the engine core.
            metrics: where times and counts go.
            tokenizer: of the model.
            request_id: unique among all requests of this process.
            prompts: token ids of each prompt.
            sampling: how to answer.
            max_tokens: most tokens to generate, for each prompt.
            held: what each sequence has a copy of.
            tracing: where the request's spans go.
        """
        self._tracing = tracing
        self._parent = None if tracing is None else tracing.parent
        self._request_id = request_id
        self._link = link
        self._metrics = metrics
        self._num_choices = sampling.num_choices
        self._held = held
        self._prompts = prompts
        self.sequences = []
        for number, prompt in enumerate(map(tuple, prompts)):
            for choice in range(sampling.num_choices):
                index = number * sampling.num_choices + choice
                request = EngineRequest(
                    request_id=f"{request_id}-{index}",
                    prompt_token_ids=prompt,  # one for all choices
                    params=sampling.params_of(choice, max_tokens[number]),
                    priority=sampling.priority,
                    cache_salt=sampling.cache_salt,
                    sibling_of=f"{request_id}-{index - choice}" if choice else None,
                )
                self.sequences.append(Sequence(index, request, sampling, tokenizer))
        self._by_id = {each.request.request_id: each for each in self.sequences}

    @property
    def usage(self) -> Usage:
        """Token counts so far. A prompt counts once, however many choices it has."""
        firsts = self.sequences[:: self._num_choices]
        return Usage(
            num_prompt_tokens=sum(len(prompt) for prompt in self._prompts),
            num_cached_tokens=sum(each.num_cached_tokens for each in firsts),
            num_completion_tokens=sum(each.num_tokens for each in self.sequences),
        )

    async def run(self) -> AsyncIterator[list[Delta]]:
        """Submit the sequences and yield what is new, step by step, until all have ended.

        Leaving the loop early, or being cancelled, ends the sequences in the core.

        Raises:
            ApiError: the core refused a sequence, or died.
        """
        requests = [each.request for each in self.sequences]
        stream = self._link.submit(requests, held=self._held)
        reason = "abort"
        try:
            while not all(each.is_finished for each in self.sequences):
                deltas: dict[str, Delta] = {}
                for step in await stream.next_outputs():
                    if step.output.finish_reason == "error":
                        reason = "error"
                        if step.refusal is None:
                            self._note_broken_output(step.output.request_id)
                        raise from_refusal(step.refusal)
                    self._take(step.output, deltas)
                stopped = [key for key, each in self._by_id.items() if each.is_finished]
                stream.abort(stopped)  # those that a stop string ended; others are unknown by now
                if deltas:
                    yield list(deltas.values())
        finally:
            stream.abort()
            for each in self.sequences:
                if not each.is_finished:
                    self._record_end(each, reason)
            if self._tracing is not None:
                self._trace(self._tracing, is_failed=reason == "error")

    def _note_broken_output(self, request_id: str) -> None:
        self._metrics.observe_broken_output()
        logger.error(
            "the model's output was not a number; try --dtype float32 or check the weights",
            extra={"id": request_id},
        )

    def _take(self, output: RequestOutput, deltas: dict[str, Delta]) -> None:
        sequence = self._by_id[output.request_id]
        if sequence.is_finished:
            return
        delta = deltas.setdefault(output.request_id, Delta(sequence.index))
        self._record_tokens(sequence, len(output.token_ids))
        sequence.take(output, delta)
        if sequence.is_finished:
            self._record_end(sequence, delta.finish_reason or "stop")

    def _record_tokens(self, sequence: Sequence, num_tokens: int) -> None:
        if not num_tokens:
            return
        now, times = time.monotonic(), sequence.times
        if times.last_token is None:
            self._metrics.observe_first_token(now - times.arrival)
        else:
            self._metrics.observe_inter_token((now - times.last_token) / num_tokens)
        times.note_tokens(now)

    def _trace(self, tracing: Tracing, *, is_failed: bool) -> None:
        usage = self.usage
        facts = RequestFacts(
            request_id=self._request_id,
            params=self.sequences[0].request.params,
            num_choices=self._num_choices,
            num_prompt_tokens=usage.num_prompt_tokens,
            num_completion_tokens=usage.num_completion_tokens,
            num_cached_tokens=usage.num_cached_tokens,
            finish_reasons=tuple(each.end_reason for each in self.sequences),
        )
        times = Times.of_all(each.times for each in self.sequences)
        tracing.record(
            self._parent, times, facts, error="the engine gave an error" if is_failed else None
        )

    def _record_end(self, sequence: Sequence, reason: str) -> None:
        sequence.end_reason = reason
        self._metrics.observe_end(
            reason=reason,
            seconds=time.monotonic() - sequence.times.arrival,
            times=sequence.times,
            num_prompt_tokens=len(sequence.request.prompt_token_ids),
            num_cached_tokens=sequence.num_cached_tokens,
            num_generation_tokens=sequence.num_tokens,
            num_preemptions=sequence.num_preemptions,
            max_tokens=sequence.request.params.max_tokens,
        )
