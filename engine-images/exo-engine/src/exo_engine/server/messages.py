"""Dataclasses of the engine as plain values for a frame, and back.

Only field order matters, and both ends run the same code; so values travel as lists, not as maps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exo_engine.config import EngineConfig
from exo_engine.core.pooling.requests import PoolingRequest
from exo_engine.core.request import EngineRequest, EngineStats, RequestOutput, TokenLogprobs
from exo_engine.sampling_params import SamplingParams
from exo_engine.simulation import parse_simulation


@dataclass(frozen=True, slots=True)
class PoolingInfo:
    """What a model that embeds or scores is, as far as requests go."""

    task: str
    """`embed`, `score` or `classify`."""
    num_dimensions: int
    """Of a vector; 1 of a score; how many labels there are."""
    dimensions: tuple[int, ...] | None
    """To which a vector may be cut; None: to any."""
    is_activated: bool
    """Unless a request says otherwise: vectors have length 1, scores pass a sigmoid."""
    lowers_case: bool
    """Texts are made lower case before they are tokenized."""
    labels: tuple[str, ...] = ()
    """Of a model with a head."""


@dataclass(frozen=True, slots=True)
class CoreInfo:
    """What the core turned out to be once the model was loaded."""

    vocabulary_size: int
    """Token ids of the model are below; the tokenizer may know fewer, or more."""
    max_model_len: int
    max_num_seqs: int
    num_blocks: int
    block_size: int
    dtype: str
    device: str
    gpu_memory_utilization: float
    is_prefix_caching_on: bool
    measurements: dict[str, Any] = field(default_factory=dict)
    """What the start has measured, as `GET /measurements` shows it."""
    pooling: PoolingInfo | None = None
    """None: the model generates."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why one request failed."""

    message: str
    code: str
    param: str | None = None
    is_internal: bool = False


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What one step did for one request."""

    output: RequestOutput
    refusal: Refusal | None = None
    """Set with finish_reason "error"."""


def pack(value: Any) -> list[Any]:
    """Return the fields of a flat dataclass, in order."""
    return [getattr(value, each.name) for each in dataclasses.fields(value)]


def pack_config(config: EngineConfig) -> dict[str, Any]:
    """Return the engine's configuration as plain values."""
    return {**dataclasses.asdict(config), "model_dir": str(config.model_dir)}


def unpack_config(values: dict[str, Any]) -> EngineConfig:
    """Invert `pack_config`."""
    simulation = values["simulation"] and parse_simulation(values["simulation"])
    return EngineConfig(
        **{**values, "model_dir": Path(values["model_dir"]), "simulation": simulation}
    )


def pack_request(request: EngineRequest) -> list[Any]:
    """Return a request as plain values; one that follows a sibling without the prompt, which it came with."""
    params = pack(request.params)
    return [
        request.request_id,
        None if request.sibling_of else request.prompt_token_ids,
        params,
        request.priority,
        request.cache_salt,
        request.sibling_of,
    ]


def unpack_request(values: Sequence[Any], prompt: tuple[int, ...] | None = None) -> EngineRequest:
    """Invert `pack_request`.

    Args:
        values: of the request.
        prompt: the last one that came, where it is unpacked already; a sibling comes without.

    Raises:
        InvalidSamplingParams: a value is out of range.
    """
    request_id, prompt_token_ids, params, *others = values
    names = [each.name for each in dataclasses.fields(SamplingParams)]
    fields = dict(zip(names, params, strict=True))
    fields["stop_token_ids"] = tuple(fields["stop_token_ids"])
    allowed = fields["allowed_token_ids"]
    fields["allowed_token_ids"] = None if allowed is None else tuple(allowed)
    fields["bad_words"] = tuple(map(tuple, fields["bad_words"]))
    prompt = tuple(prompt_token_ids) if prompt is None else prompt
    return EngineRequest(request_id, prompt, SamplingParams(**fields), *others)


def pack_pooling(request: PoolingRequest) -> list[Any]:
    """Return a text to embed or score as plain values."""
    return pack(request)


def unpack_pooling(values: Sequence[Any]) -> PoolingRequest:
    """Invert `pack_pooling`."""
    request_id, token_ids, *others = values
    return PoolingRequest(request_id, tuple(token_ids), *others)


def pack_output(output: RequestOutput, refusal: Refusal | None = None) -> list[Any]:
    """Return one request's part of a step as plain values."""
    return [
        output.request_id,
        output.token_ids,
        _pack_logprobs(output.logprobs),
        output.finish_reason,
        output.num_cached_tokens,
        output.stop_token_id,
        _pack_logprobs(output.prompt_logprobs),
        pack(refusal) if refusal else None,
        output.pooled,
        output.scheduled_at,
        output.num_preemptions,
    ]


def unpack_output(values: Sequence[Any]) -> StepOutput:
    """Invert `pack_output`."""
    request_id, token_ids, logprobs, finish_reason, cached, stop_token_id, prompt, *rest = values
    refusal, pooled, scheduled_at, num_preemptions = rest
    output = RequestOutput(
        request_id=request_id,
        token_ids=tuple(token_ids),
        logprobs=None
        if logprobs is None
        else tuple(_unpack_logprobs(each) for each in logprobs if each is not None),
        finish_reason=finish_reason,
        num_cached_tokens=cached,
        stop_token_id=stop_token_id,
        prompt_logprobs=None
        if prompt is None
        else tuple(None if each is None else _unpack_logprobs(each) for each in prompt),
        pooled=pooled,
        scheduled_at=scheduled_at,
        num_preemptions=num_preemptions,
    )
    return StepOutput(output, Refusal(*refusal) if refusal else None)


def unpack_stats(values: Sequence[Any]) -> EngineStats:
    """Invert `pack` for statistics."""
    return EngineStats(*values)


def pack_info(info: CoreInfo) -> list[Any]:
    """Return what the core turned out to be as plain values."""
    pooling = None if info.pooling is None else pack(info.pooling)
    return [*pack(info)[:-1], pooling]


def unpack_info(values: Sequence[Any]) -> CoreInfo:
    """Invert `pack_info`."""
    *plain, pooling = values
    found = None if pooling is None else PoolingInfo(*pooling)
    return dataclasses.replace(CoreInfo(*plain), pooling=found)


def _pack_logprobs(entries: Sequence[TokenLogprobs | None] | None) -> list[Any] | None:
    if entries is None:
        return None
    return [None if each is None else pack(each) for each in entries]


def _unpack_logprobs(values: Sequence[Any]) -> TokenLogprobs:
    token_id, logprob, rank, top = values
    return TokenLogprobs(token_id, logprob, rank, tuple((each[0], each[1]) for each in top))
