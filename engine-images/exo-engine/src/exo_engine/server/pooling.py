"""One HTTP request's texts on their way through a model that embeds or scores: read, cut, computed, counted.

The routes say which fields texts are in and what the answer looks like.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from exo_engine.core.pooling.requests import PoolingRequest
from exo_engine.core.request import RequestOutput
from exo_engine.server.api_errors import bad_request, from_refusal
from exo_engine.server.core_link import CoreLink
from exo_engine.server.fields import Fields, check_token_ids
from exo_engine.server.messages import PoolingInfo
from exo_engine.server.prompts.truncation import Truncation
from exo_engine.server.request_size import check_num_tokens
from exo_engine.server.service import Service
from exo_engine.server.telemetry.metrics import Metrics
from exo_engine.server.telemetry.times import Times
from exo_engine.tokenizer.wrapping import Side, cut

MAX_TEXTS = 2048
"""Of a request, as in OpenAI's API."""
_LATER = Truncation(2**31, keeps_end=False)
"""A text may be too long: it is cut together with what comes around it."""
_MAX_PRIORITY = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Cutting:
    """What becomes of a text that is too long."""

    most: int | None
    """Tokens that are kept, marks included; None: it is refused."""
    side: Side


@dataclass(frozen=True, slots=True)
class Text:
    """What one vector or score is made of."""

    token_ids: list[int]
    second_from: int | None = None


def pooling_of(service: Service) -> PoolingInfo:
    """Return what the model is, for a route that only such models serve."""
    info = service.link.info
    assert info is not None, "`check_task` saw to it"
    assert info.pooling is not None, "`check_task` saw to it"
    return info.pooling


def read_cutting(fields: Fields, service: Service) -> Cutting:
    """Read `truncate_prompt_tokens` and `truncation_side`.

    Raises:
        ApiError: one of them is none.
    """
    name, longest = "truncate_prompt_tokens", service.max_model_len
    most = fields.integer(name, minimum=-1, maximum=longest)
    if most == -1:
        most = longest
    least = service.text.tokenizer.wrapping.num_marks + 1
    if most is not None and most < least:
        raise fields.wrong(name, f"-1, or an integer from {least} (one and what surrounds it)")
    side = fields.string("truncation_side")
    if side not in (None, "left", "right"):
        raise fields.wrong("truncation_side", "left or right")
    return Cutting(most, "left" if side == "left" else "right")


async def tokenize(
    texts: Sequence[str], cutting: Cutting, service: Service, param: str
) -> list[list[int]]:
    """Return the tokens of bare texts, without marks.

    Raises:
        ApiError: one is too long to be cut, or its tokenizer refuses it.
    """
    if pooling_of(service).lowers_case:
        texts = [each.lower() for each in texts]
    truncation = None if cutting.most is None else _LATER
    return await service.encode_all(
        texts, add_special_tokens=False, param=param, truncation=truncation
    )


async def read_texts(fields: Fields, cutting: Cutting, service: Service) -> list[Text]:
    """Read `input`: a text, token ids, or a list of either.

    Raises:
        ApiError: it is none of these, or one of them does not fit.
    """
    value = fields.values.get("input")
    if isinstance(value, str):
        value = [value]
    if isinstance(value, list) and value and all(type(each) is int for each in value):
        value = [value]
    if not isinstance(value, list) or not value:
        raise _wrong_input(fields)
    check_num_texts(len(value), "input")
    if all(isinstance(each, str) for each in value):
        is_marked = fields.boolean("add_special_tokens", True)
        wrapping = service.text.tokenizer.wrapping
        found = await tokenize(value, cutting, service, "input")
        most, side = cutting.most, cutting.side
        texts = [
            wrapping.one(each, most, side) if is_marked else list(_cut(each, cutting))
            for each in found
        ]
    elif all(isinstance(each, list) for each in value):
        if not all(type(each) is int for ids in value for each in ids):
            raise _wrong_input(fields)
        check_token_ids(value, service.vocabulary_size, fields.name("input"))
        texts = [list(_cut(each, cutting)) for each in value]
    else:
        raise _wrong_input(fields)
    check_num_tokens(sum(map(len, texts)), "input")
    for index, each in enumerate(texts):
        check_length(len(each), service, f"input[{index}]" if len(texts) > 1 else "input")
    return [Text(each) for each in texts]


def check_num_texts(number: int, param: str) -> None:
    """Refuse too many texts.

    Raises:
        ApiError: there are more than `MAX_TEXTS`.
    """
    if number > MAX_TEXTS:
        raise bad_request(f"{param} must be at most {MAX_TEXTS} texts, got {number}", param)


def check_length(num_tokens: int, service: Service, param: str) -> None:
    """Refuse a text of no tokens, or of more than the model takes.

    Raises:
        ApiError: it is one.
    """
    if not num_tokens:
        raise bad_request("the text has no tokens", param)
    if num_tokens > service.max_model_len:
        raise bad_request(
            f"This model's maximum context length is {service.max_model_len} tokens, but the text has "
            f"{num_tokens}. Shorten it, or set truncate_prompt_tokens.",
            param,
            "context_length_exceeded",
        )


@dataclass(frozen=True, slots=True)
class PoolingOptions:
    """How texts are computed."""

    is_activated: bool
    num_dimensions: int | None = None
    priority: int = 0


def read_options(fields: Fields, service: Service) -> PoolingOptions:
    """Read what all routes of such models have.

    Raises:
        ApiError: a field is none.
    """
    info = pooling_of(service)
    size = fields.integer("dimensions", minimum=1, maximum=info.num_dimensions)
    if size is not None and info.dimensions is not None and size not in info.dimensions:
        known = ", ".join(map(str, sorted(set(info.dimensions))))
        raise fields.wrong("dimensions", f"one of {known}, which this model was made for")
    priority = fields.integer("priority", 0, minimum=-_MAX_PRIORITY, maximum=_MAX_PRIORITY)
    is_activated = fields.boolean("use_activation", info.is_activated)
    return PoolingOptions(is_activated, size, priority or 0)


class Pooling:
    """All texts of one request.

    Args:
        service: the server.
        texts: what to compute.
        options: how.

    Raises:
        ApiError: 429 if too many requests wait.
    """

    def __init__(self, service: Service, texts: Sequence[Text], options: PoolingOptions) -> None:
        service.check_queue(len(texts))
        service.metrics.observe_request(1)
        self._link: CoreLink = service.link
        self._metrics: Metrics = service.metrics
        begun = time.monotonic()
        prefix = service.new_id()
        self._requests = {
            f"{prefix}-{index}": PoolingRequest(
                f"{prefix}-{index}",
                tuple(text.token_ids),
                text.second_from,
                options.num_dimensions,
                options.is_activated,
                options.priority,
                prefix,
            )
            for index, text in enumerate(texts)
        }
        self._times = {request_id: Times(begun) for request_id in self._requests}
        self._done: dict[str, bytes] = {}

    def usage(self) -> dict[str, Any]:
        """Return the token counts."""
        total = sum(len(each.token_ids) for each in self._requests.values())
        return {"prompt_tokens": total, "total_tokens": total}

    async def run(self) -> list[array[float]]:
        """Compute and return a vector per text, of float32; leaving early drops what waits.

        Raises:
            ApiError: the core refused a text, or failed.
        """
        stream = self._link.submit(list(self._requests.values()))
        reason = "abort"
        try:
            while not stream.is_finished:
                for step in await stream.next_outputs():
                    if step.output.finish_reason == "error":
                        reason = "error"
                        if step.refusal is None:
                            self._metrics.observe_broken_output()
                        raise from_refusal(step.refusal)
                    self._take(step.output)
        finally:
            stream.abort()
            for request_id in self._requests.keys() - self._done.keys():
                self._record_end(request_id, reason)
        return [_numbers(self._done.pop(request_id)) for request_id in self._requests]

    def _take(self, output: RequestOutput) -> None:
        assert output.pooled is not None, "a text that ended well has a vector"
        self._done[output.request_id] = output.pooled
        times = self._times[output.request_id]
        times.scheduled = output.scheduled_at
        times.note_tokens(time.monotonic())
        self._record_end(output.request_id, "stop")

    def _record_end(self, request_id: str, reason: str) -> None:
        self._metrics.observe_end(
            reason=reason,
            seconds=time.monotonic() - self._times[request_id].arrival,
            times=self._times[request_id],
            num_prompt_tokens=len(self._requests[request_id].token_ids),
            num_cached_tokens=0,
            num_generation_tokens=0,
            num_preemptions=0,
            max_tokens=None,
        )


def _numbers(pooled: bytes) -> array[float]:
    found = array("f")
    found.frombytes(pooled)
    return found


def _cut(tokens: list[int], cutting: Cutting) -> Sequence[int]:
    return tokens if cutting.most is None else cut(tokens, cutting.most, cutting.side)


def _wrong_input(fields: Fields) -> Exception:
    return fields.wrong(
        "input", "a string, a list of strings, a list of token ids, or a list of such lists"
    )
