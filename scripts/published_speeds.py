"""Grades the planner's speeds against figures that were published, each with its address.

`docs/benchmarks/planner-published-speeds.json` has the figures, each an object: model, GPU, flags, how many requests at once,
their lengths, and what was measured. `scripts/calibrate_speeds.py` sets the constants on one half of them and writes
both halves to the page. A figure is one quantity of one run: the time to the first token of a request alone, the time
between tokens, the seconds of a batch, or the output of requests that follow one another.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from exo_inference.errors import UsageError
from exo_inference.planner.accuracy.cases import stated_gpu
from exo_inference.planner.catalog_models import find_model
from exo_inference.planner.parameters import LATEST_VLLM, EngineParameters
from exo_inference.planner.planning import plan
from exo_inference.planner.speed.constants import SpeedConstants, load_speed_constants
from exo_inference.planner.speed.estimate import (
    communication_seconds,
    joining_seconds,
    prompt_seconds,
    prompt_times,
    token_seconds,
)
from exo_inference.planner.speed.inputs import SpeedInputs, arithmetic

QUANTITIES: Mapping[str, str] = {
    "ttft_ms": "first token",
    "itl_ms": "between tokens",
    "seconds": "a whole batch",
    "tokens_per_second": "requests that follow one another",
}


_DECISIVE = frozenset({"gpu", "gpu_count", "tensor_parallel_size"})
_ANOTHER = frozenset({"power_limit_watts", "patched"})
"""What only a record has whose GPU or engine was changed."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One published figure.

    Attributes:
        case: the record's id. quantity: a key of `QUANTITIES`.
        requests: at once. input, output: tokens of each.
        seconds: printed, per token but for a first token.
        inputs: of the planner's estimate.
        record: as it stands in the file.
    """

    case: str
    quantity: str
    requests: int
    input: int
    output: int
    seconds: float
    inputs: SpeedInputs
    record: Mapping[str, Any]

    def predict(self, constants: SpeedConstants | None = None) -> float:
        """Return the estimate in the unit of `seconds`."""
        inputs = self.inputs if constants is None else replace(self.inputs, constants=constants)
        _, flops = arithmetic(inputs)
        if self.quantity == "ttft_ms":
            return _prompt(inputs, self.input, flops)
        # A cache that holds fewer requests than are sent decodes fewer at once, for all of the output.
        length, sent = self.input + self.output, self.requests
        batch = max(1, min(sent, inputs.max_num_seqs, inputs.capacity_tokens // length))
        context = self.input + self.output // 2
        token = token_seconds(inputs, batch, context, flops)
        if self.quantity == "itl_ms" and sent == 1:
            return token
        # Each request's tokens wait for the prompts of those that are decoded beside it.
        if self.quantity == "seconds":
            each = token + _prompts_at_once(inputs, self.input, batch, flops) / self.output
            # They are sent at once, and none starts before the API has parsed all of their templates.
            return each * sent / batch + sent * inputs.parsing / self.output
        each = token + batch * joining_seconds(inputs, self.input, batch, flops) / self.output
        return each * sent / batch if self.quantity != "itl_ms" else each

    def is_in_band(self, constants: SpeedConstants) -> bool:
        """Whether the printed time lies in the estimate's band."""
        low, high = constants.low, constants.high
        if self.quantity == "ttft_ms":
            low, high = constants.prompt_low, constants.prompt_high
        return low <= self.seconds / self.predict(constants) <= high

    @property
    def is_stated(self) -> bool:
        """Whether the source states the kind of GPU, and how the model was split: another kind has another speed.

        A GPU that is held to less power than its own is another kind, and an engine that was patched another engine, as
        are those that are not vLLM: figures are estimated by its rules.
        """
        inferred = self.record.get("inferred") or ()
        is_own = self.record.get("engine", "vllm") == "vllm" and _ANOTHER.isdisjoint(self.record)
        return is_own and _DECISIVE.isdisjoint(inferred)

    @property
    def is_cached(self) -> bool:
        """Whether a first token came sooner than the GPU can compute its prompt: then some of it was cached."""
        _, flops = arithmetic(self.inputs)
        ranks = self.inputs.ranks.tensor
        least = 2 * self.inputs.model.num_active_parameters * self.input / ranks / flops
        return self.quantity == "ttft_ms" and self.seconds < least


def _prompt(inputs: SpeedInputs, length: int, flops: float) -> float:
    return prompt_seconds(inputs, prompt_times(inputs, length, flops), length)


def _prompts_at_once(inputs: SpeedInputs, length: int, count: int, flops: float) -> float:
    """Return the seconds of prompts that fill steps together."""
    parts, tokens = prompt_times(inputs, length, flops), inputs.max_num_batched_tokens
    steps, own = -(-count * length // tokens), -(-length // tokens)
    reads, launches = (
        steps * parts[name] / own for name in ("memory bandwidth", "kernel launches")
    )
    work = max(count * parts["compute"] + reads, launches)
    sent = communication_seconds(inputs, count * length, steps)
    return work + sent + steps * inputs.step(1)


def parse_figures(text: str, name: str) -> list[Mapping[str, Any]]:
    """Return the records of a file.

    Raises:
        UsageError: it is not JSON of that form, or a record lacks its address, date, model, GPU or a figure.
    """
    try:
        records = json.loads(text)["figures"]
    except (ValueError, KeyError, TypeError, RecursionError) as exc:
        raise UsageError(f"{name} holds no figures: {exc}") from exc
    for index, record in enumerate(records):
        for key in ("id", "source", "date", "model", "gpu", "requests", "input", "output"):
            if not record.get(key):
                raise UsageError(f"{name}: figures[{index}].{key} is missing")
        if not any(_is_time(record.get(key)) for key in QUANTITIES):
            raise UsageError(
                f"{name}: figures[{index}] has none of {', '.join(QUANTITIES)} above 0"
            )
    return list(records)


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value > 0


def read_figures(records: Iterable[Mapping[str, Any]]) -> list[Figure]:
    """Return the figures of records, each with what the planner needs to estimate it.

    Raises:
        UsageError: a model or a GPU is not in the catalogue.
    """
    return [figure for record in records for figure in _figures(record)]


def _figures(record: Mapping[str, Any]) -> list[Figure]:
    inputs = _speed_inputs(record)
    requests, output = int(record["requests"]), int(record["output"])
    found = []
    for quantity in QUANTITIES:
        value = record.get(quantity)
        if value is None:
            continue
        seconds = {
            "ttft_ms": value / 1000,
            "itl_ms": value / 1000,
            "seconds": value / output,
            "tokens_per_second": requests / value,
        }[quantity]
        found.append(
            Figure(
                record["id"], quantity, requests, int(record["input"]), output, seconds, inputs, record
            )
        )  # fmt: skip
    return found


def _speed_inputs(record: Mapping[str, Any]) -> SpeedInputs:
    gpu = stated_gpu(record)
    if gpu is None:
        raise UsageError(f"{record['id']}: the GPU {record['gpu']!r} is not in the catalogue")
    version = record.get("engine_version") or LATEST_VLLM
    parameters = EngineParameters.of(dict(record.get("flags") or {}), engine_version=version)
    gpu = replace(gpu, processor=record.get("processor", ""))
    result = plan(find_model(record["model"]), gpu, int(record.get("gpu_count") or 1), parameters)
    if result.basis is None:
        raise UsageError(f"{record['id']}: {result.problems[0].detail}")
    return replace(result.basis.speed, through_chat=record.get("api") == "chat")


@dataclass(frozen=True, slots=True)
class SpeedSummary:
    """How a set of figures fares; errors are absolute, as shares of the printed time."""

    count: int
    median: float
    within: float
    """The share that lies within 1.5 times of the printed figure."""
    bias: float
    """The median of predicted over printed."""
    in_band: float


def summarise_speeds(
    figures: Sequence[Figure], constants: SpeedConstants | None = None
) -> SpeedSummary:
    """Return the summary of at least one figure, by these constants or the bundled ones."""
    constants = constants or load_speed_constants()
    ratios = sorted(each.predict(constants) / each.seconds for each in figures)
    errors = sorted(abs(ratio - 1) for ratio in ratios)
    near = sum(1 / 1.5 <= ratio <= 1.5 for ratio in ratios)
    inside = sum(each.is_in_band(constants) for each in figures)
    middle = len(ratios) // 2
    return SpeedSummary(
        len(ratios), errors[middle], near / len(ratios), ratios[middle], inside / len(ratios)
    )


def ran_starts(figures: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one case of each start of vLLM whose release and flags its source states.

    Each ran, so its verdict should not be that it cannot. They print no memory, and none was refused: they tell
    of plans that are too pessimistic alone.

    Args:
        figures: published speeds; several may be of one start, whose case then has the first one's id.
    """
    found: dict[str, dict[str, Any]] = {}
    for each in figures:
        inferred = each.get("inferred") or ()
        if each["engine"] != "vllm" or "engine_version" in inferred or "flags" in inferred:
            continue
        facts = {
            name: each[name]
            for name in ("engine", "engine_version", "model", "gpu", "gpu_count", "flags")
        }
        ranks = each["flags"].get("tensor_parallel_size")
        others = [each["flags"].get(f"{kind}_parallel_size") or 1 for kind in ("pipeline", "data")]
        facts["tp"] = ranks or max(1, each["gpu_count"] // (others[0] * others[1]))
        key = json.dumps(facts, sort_keys=True)
        found.setdefault(
            key,
            {"id": each["id"], "source": each["source"], **facts, "observed": {"outcome": "fits"}},
        )
    return list(found.values())
