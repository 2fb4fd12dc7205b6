"""How fast exo-engine would be on a processor: reads lie beside products or before them, and the host is the device.

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

from exo_inference.planner.model.architecture import DTYPE_BYTES
from exo_inference.planner.model.requantize import has_int8_head
from exo_inference.planner.speed.constants import SpeedConstants
from exo_inference.planner.speed.estimate import (
    PROMPT_LENGTHS,
    batch_times,
    decoded_at_once,
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
        read_share: of the bandwidth that was measured at best, at which a step reads weights.
        cache_share: of the bandwidth, at which keys and values are read.
        prompt_share: of the rate of products with many rows, of those of a prompt's step.
        exposed: share of the shorter of reading and multiplying that is not hidden behind the other.
        layer: what a layer's half takes whatever its size, as waiting for all threads.
        number: norms, heads and gates, per layer, token and number of its hidden state.
        input: quantizing one number of the few rows that a matrix of INT8 or INT4 is multiplied by.
        step: scheduling and sampling one step. sequence: the same for each request in it.
        prompt: taking a request in.
        band: nine in ten of the measured times lie between the estimate by this and times this.
    """

    read_share: float
    cache_share: float
    prompt_share: float
    exposed: float
    layer: float
    number: float
    input: float
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
    """Return the estimate; None where nobody measured what computes, or a model drafts, which no engine does there."""
    if inputs.drafting is not None or inputs.why_not_estimated:
        return None
    constants = constants or load_processor_constants()
    lengths = [n for n in PROMPT_LENGTHS if n < inputs.max_model_len] or [inputs.max_model_len]
    context = max(1, min(inputs.max_model_len, 2048))
    prompts = tuple(processor_prompt(inputs, constants, n) for n in lengths if n > 0)
    sizes = decoded_at_once(inputs, context)
    batches = tuple(processor_batch(inputs, constants, size, context) for size in sizes)
    kind = products_of(inputs)[0]
    return Speed(prompts, batches, kind, _SOURCE.format(source=inputs.gpu.source))


def processor_prompt(
    inputs: SpeedInputs, constants: ProcessorConstants, length: int
) -> PromptSpeed:
    """Return the time to the first token of a prompt of any length."""
    parts = prompt_parts(inputs, constants, length, products_of(inputs)[1])
    seconds, bound = sum(parts.values()), max(parts, key=lambda name: parts[name])
    band = _band(inputs, constants)
    return PromptSpeed(length, seconds, bound, seconds / band, seconds * band)


def processor_batch(
    inputs: SpeedInputs, constants: ProcessorConstants, size: int, context: int
) -> BatchSpeed:
    """Return the speed of decoding `size` requests."""
    parts = step_parts(inputs, constants, size, context, products_of(inputs)[1])
    seconds, bound = sum(parts.values()), max(parts, key=lambda name: parts[name])
    band = _band(inputs, constants)
    low, high = seconds / band, seconds * band
    return BatchSpeed(size, context, seconds, size / seconds, bound, None, low, high)


def _band(inputs: SpeedInputs, constants: ProcessorConstants) -> float:
    return constants.band if inputs.gpu.is_measured else _ASSUMED_BAND


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
    head_reads, head_products = _head_seconds(inputs, constants, size, rate)
    reads = parts["weights read"] / constants.read_share - head_reads
    products = parts["compute"] - logits_operations(inputs.model, size) / rate
    rows_of_head = 2 * size if has_int8_head(inputs.model) else size
    of_head = _seconds_beside(head_reads, head_products, rows_of_head, constants)
    of_layers = _seconds_beside(max(0.0, reads), products, size, constants)
    scheduling = constants.step + constants.sequence * size
    small = _small_seconds(inputs, constants, 1, size) + _quantizing_seconds(
        inputs, constants, size
    )
    return {
        _READS: of_layers[0] + of_head[0],
        _CACHE: parts["cache read"] / constants.cache_share,
        _PRODUCTS: of_layers[1] + of_head[1],
        _REST: small + scheduling,
    }


def prompt_parts(
    inputs: SpeedInputs, constants: ProcessorConstants, length: int, rate: float
) -> Mapping[str, float]:
    """Return the seconds to the first token of a prompt; they add up."""
    parts = prompt_times(_measured(inputs), length, rate)
    head_products = _head_seconds(inputs, constants, 1, rate)[1]
    products = parts["compute"] + head_products - logits_operations(inputs.model, 1) / rate
    products /= constants.prompt_share
    reads = parts["memory bandwidth"] / constants.read_share
    reads, products = _seconds_beside(reads, products, length, constants)
    steps = -(-length // max(1, inputs.max_num_batched_tokens))
    small = _small_seconds(inputs, constants, steps, length) + steps * constants.step
    return {_READS: reads, _PRODUCTS: products, _REST: small + constants.prompt}


_ROWS_OF_A_PASS = 6
"""Those that exo-engine's products with AVX-512 multiply by a block of weights at once (`kernels/csrc/store.h`). One
pass multiplies while it waits for the block, and three read the next one ahead; two can do neither (`next_block.h`)."""


def _seconds_beside(
    reads: float, products: float, rows: int, constants: ProcessorConstants
) -> tuple[float, float]:
    """Return the seconds of reading and of multiplying that add up: what one hides of the other is left out."""
    two_passes = 2 * _ROWS_OF_A_PASS
    if _ROWS_OF_A_PASS < rows <= two_passes:
        return reads, products
    hidden = (1 - constants.exposed) * min(reads, products)
    if rows > two_passes:  # and more rows are never quicker
        hidden = min(hidden, products * (1 - two_passes / rows))
    return (reads, products - hidden) if reads > products else (reads - hidden, products)


def _head_seconds(
    inputs: SpeedInputs, constants: ProcessorConstants, num_tokens: int, rate: float
) -> tuple[float, float]:
    """Return the seconds in which the output head is read, and so many tokens' logits are multiplied."""
    model, tflops = inputs.model, inputs.gpu.tflops
    operations = logits_operations(model, num_tokens)
    read = model.vocab_size * model.hidden_size / inputs.gpu.bandwidth / constants.read_share
    if not has_int8_head(model):
        return DTYPE_BYTES.get(inputs.dtype, 2) * read, operations / rate
    # Each hidden state is two rows of a product in INT8.
    return read, 2 * operations / (tflops.get("int8", tflops["bf16"]) * 1e12)


def _small_seconds(
    inputs: SpeedInputs, constants: ProcessorConstants, steps: int, num_tokens: int
) -> float:
    """Return what lies between the products of so many steps and tokens."""
    numbers = num_tokens * inputs.model.hidden_size
    return len(inputs.model.layers) * (2 * steps * constants.layer + numbers * constants.number)


def _quantizing_seconds(inputs: SpeedInputs, constants: ProcessorConstants, rows: int) -> float:
    """Return what making 8-bit numbers of the inputs of a decoding step's products takes.

    Of a prompt's many rows it is part of the rate of products, in which the engine measures it with them.
    """
    if products_of(inputs)[0] not in ("int8", "int4"):
        return 0.0
    chosen = inputs.model.moe.experts_per_token if inputs.model.moe is not None else 1
    numbers = sum(
        count * weight.in_features * (chosen if weight.part == "routed_experts" else 1)
        for layer, count in inputs.model.layer_counts
        for weight in layer.weights
        if weight.path.endswith(_OWN_INPUTS)
    )
    return rows * numbers * constants.input


_OWN_INPUTS = ("q_proj", "o_proj", "gate_proj", "down_proj")
"""Matrices whose inputs are quantized; `k_proj`, `v_proj` and `up_proj` have those of one of them."""


def _looked_up_bytes(inputs: SpeedInputs) -> float:
    """Return the bytes of embeddings of which a step reads its tokens' rows alone: those that are no head as well."""
    outer = inputs.model.outer_weights
    has_head = any(weight.part == "lm_head" for weight in outer)
    parts = ("embedding", "per_layer_embedding") if has_head else ("per_layer_embedding",)
    own_bits = 8 * DTYPE_BYTES.get(inputs.dtype, 2)
    return sum(
        weight.num_elements * (own_bits if weight.format is None else weight.format.bits) / 8
        for weight in outer
        if weight.part in parts
    )


def _measured(inputs: SpeedInputs) -> SpeedInputs:
    """Return the same with the weights that a step reads, and the machine's figures as the engine reached them."""
    constants = SpeedConstants(
        memory_share=1.0, compute_share=1.0, compute_loss=0.0, grouped_width=0.0
    )
    read = inputs.weights_bytes - int(_looked_up_bytes(inputs))
    return replace(inputs, constants=constants, weights_bytes=max(0, read))
