"""How fast exo-engine would be on a processor: reads and products follow one another, and the host is the device.

What the machine gives, bytes of weights per second and products with many rows, is the engine's own measurement of
it (`exo_engine/machine.py`) or an assumption; `Gpu.source` says which. `catalog/processor-speeds.json` has what lies
between those and a step: `make planner-calibrate` sets it on one model of `docs/benchmarks/cpu.json`
(`scripts/calibrate_processor.py`), and the page grades it on the others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

from exo_inference.planner.model.requantize import has_int8_head
from exo_inference.planner.speed.constants import SpeedConstants
from exo_inference.planner.speed.estimate import (
    PROMPT_LENGTHS,
    batch_sizes,
    batch_times,
    estimate_speed,
    prompt_times,
)
from exo_inference.planner.speed.figures import BatchSpeed, PromptSpeed, Speed
from exo_inference.planner.speed.inputs import SpeedInputs
from exo_inference.planner.speed.operations import logits_operations

_SOURCE = "reads and products: {source}; and what exo-engine takes beside them"
_ASSUMED_BAND = 2.5
"""Times and divided by: how far a machine may be from the assumed one. Assumed, too."""
_READS, _CACHE, _PRODUCTS, _REST = (
    "weights read",
    "cache read",
    "compute",
    "small kernels and scheduling",
)


@dataclass(frozen=True, slots=True)
class ProcessorConstants:
    """What was measured of steps; seconds, and shares of what the machine gives.

    Attributes:
        cache_share: of the bandwidth of weights, at which keys and values are read.
        few_rows_share: of the rate of products with many rows, of those of a decoding step.
        prompt_share: the same of a prompt's step.
        layer: what a layer's half takes whatever its size, as waiting for all threads.
        number: norms, heads and gates, per layer, token and number of its hidden state.
        step: scheduling and sampling one step. sequence: the same for each request in it.
        prompt: taking a request in.
        band: nine in ten of the measured times lie between the estimate by this and times this.
    """

    cache_share: float
    few_rows_share: float
    prompt_share: float
    layer: float
    number: float
    step: float
    sequence: float
    prompt: float
    band: float


@cache
def load_processor_constants() -> ProcessorConstants:
    """Return the measured constants."""
    text = files("exo_inference.planner").joinpath("catalog", "processor-speeds.json")
    return ProcessorConstants(**json.loads(text.read_text("utf-8")))


def speed_of(inputs: SpeedInputs) -> Speed | None:
    """Return the estimate for whatever computes; None: it cannot be estimated."""
    is_processor = inputs.gpu.vendor == "cpu"
    return estimate_on_processor(inputs) if is_processor else estimate_speed(inputs)


def estimate_on_processor(
    inputs: SpeedInputs, constants: ProcessorConstants | None = None
) -> Speed | None:
    """Return the estimate; None for a model that drafts, which no engine does on a processor."""
    if inputs.drafting is not None:
        return None
    constants = constants or load_processor_constants()
    kind, rate = products_of(inputs)
    lengths = [n for n in PROMPT_LENGTHS if n < inputs.max_model_len] or [inputs.max_model_len]
    context = max(1, min(inputs.max_model_len, 2048))
    most = max(1, min(inputs.max_num_seqs, inputs.capacity_tokens // context))
    band = constants.band if inputs.gpu.is_measured else _ASSUMED_BAND

    def prompt(length: int) -> PromptSpeed:
        parts = prompt_parts(inputs, constants, length, rate)
        seconds, bound = sum(parts.values()), max(parts, key=lambda name: parts[name])
        return PromptSpeed(length, seconds, bound, seconds / band, seconds * band)

    def batch(size: int) -> BatchSpeed:
        parts = step_parts(inputs, constants, size, context, rate)
        seconds, bound = sum(parts.values()), max(parts, key=lambda name: parts[name])
        low, high = seconds / band, seconds * band
        return BatchSpeed(size, context, seconds, size / seconds, bound, None, low, high)

    prompts = tuple(prompt(n) for n in lengths if n > 0)
    batches = tuple(batch(size) for size in batch_sizes(most))
    return Speed(prompts, batches, kind, _SOURCE.format(source=inputs.gpu.source))


def products_of(inputs: SpeedInputs) -> tuple[str, float]:
    """Return the format that the matrices are multiplied in, and its operations per second with many rows."""
    tflops, quantization = inputs.gpu.tflops, inputs.model.quantization
    name = quantization.default.name if quantization is not None else ""
    for kind in ("int8", "int4"):
        if name.startswith(kind) and kind in tflops:
            return kind, tflops[kind] * 1e12
    return ("fp32" if inputs.dtype == "float32" else "bf16"), tflops["bf16"] * 1e12


def step_parts(
    inputs: SpeedInputs, constants: ProcessorConstants, size: int, context: int, rate: float
) -> Mapping[str, float]:
    """Return the seconds of a step that decodes `size` sequences of `context` tokens; they add up."""
    parts = batch_times(_measured(inputs), size, context, rate)
    return {
        _READS: parts["weights read"],
        _CACHE: parts["cache read"] / constants.cache_share,
        _PRODUCTS: (parts["compute"] + _int8_head_seconds(inputs, size)) / constants.few_rows_share,
        _REST: _small_seconds(inputs, constants, 1, size)
        + constants.step
        + constants.sequence * size,
    }


def prompt_parts(
    inputs: SpeedInputs, constants: ProcessorConstants, length: int, rate: float
) -> Mapping[str, float]:
    """Return the seconds to the first token of a prompt; they add up."""
    parts = prompt_times(_measured(inputs), length, rate)
    steps = -(-length // max(1, inputs.max_num_batched_tokens))
    small = _small_seconds(inputs, constants, steps, length) + steps * constants.step
    return {
        _READS: parts["memory bandwidth"],
        _PRODUCTS: (parts["compute"] + _int8_head_seconds(inputs, 1)) / constants.prompt_share,
        _REST: small + constants.prompt,
    }


def _int8_head_seconds(inputs: SpeedInputs, num_tokens: int) -> float:
    """Return the further seconds of logits from a head in INT8, for which each hidden state is two rows of a product."""
    if not has_int8_head(inputs.model):
        return 0.0
    tflops = inputs.gpu.tflops
    return logits_operations(inputs.model, num_tokens) / (tflops.get("int8", tflops["bf16"]) * 1e12)


def _small_seconds(
    inputs: SpeedInputs, constants: ProcessorConstants, steps: int, num_tokens: int
) -> float:
    """Return what lies between the products of so many steps and tokens."""
    numbers = num_tokens * inputs.model.hidden_size
    return len(inputs.model.layers) * (2 * steps * constants.layer + numbers * constants.number)


def _measured(inputs: SpeedInputs) -> SpeedInputs:
    """Return the same with the machine's figures as they are: they are what the engine reached."""
    constants = SpeedConstants(
        memory_share=1.0, compute_share=1.0, compute_loss=0.0, grouped_width=0.0
    )
    return replace(inputs, constants=constants)
