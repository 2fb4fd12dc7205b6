"""The arithmetic of a plan's speed, step by step, with the functions that estimated it.

`planner/explain.py` appends these steps to those of memory. Pure text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from exo_inference.planner.draft_acceptance import ACCEPTANCE
from exo_inference.planner.explain_step import Step
from exo_inference.planner.speed.estimate import (
    batch_times,
    prompt_times,
)
from exo_inference.planner.speed.figures import BatchSpeed, PromptSpeed, Speed
from exo_inference.planner.speed.inputs import SpeedInputs, arithmetic
from exo_inference.planner.speed.processor import (
    load_processor_constants,
    products_of,
    prompt_parts,
    step_parts,
)


def speed_steps(speed: Speed | None, inputs: SpeedInputs) -> Iterator[Step]:
    """Yield what the GPU reaches, then prompts and the smallest and largest batch."""
    if speed is None:
        return
    if inputs.gpu.vendor == "cpu":
        yield from _processor_steps(speed, inputs)
        return
    kind, flops = arithmetic(inputs)
    constants, gpu = inputs.constants, inputs.gpu
    share = f"{gpu.bandwidth / 1e9:,.0f} GB/s x {constants.memory_reached(gpu):.0%}"
    rate = f"{flops / 1e12:,.0f} TFLOP/s in {kind} x {constants.compute_reached(gpu):.0%}"
    yield Step("What the GPU reaches", share, rate, inputs.gpu.source or "the GPU catalogue")
    for prompt in speed.prompts:
        yield _prompt_step(prompt, inputs, flops)
    for batch in dict.fromkeys((*speed.batches[:1], *speed.batches[-1:])):
        yield _batch_step(batch, inputs, flops)


def _processor_steps(speed: Speed, inputs: SpeedInputs) -> Iterator[Step]:
    constants, (kind, rate) = load_processor_constants(), products_of(inputs)
    machine = f"{inputs.gpu.bandwidth / 1e9:,.1f} GB/s of weights"
    result = f"{rate / 1e9:,.0f} GFLOP/s in products of {kind} with many rows"
    yield Step("What the processor gives", machine, result, inputs.gpu.source)
    for prompt in speed.prompts:
        parts = prompt_parts(inputs, constants, prompt.num_tokens, rate)
        title = f"First token of a prompt of {prompt.num_tokens:,} tokens"
        yield Step(title, _sum_text(parts), _ms(prompt.ttft_seconds), _SUM)
    for batch in dict.fromkeys((*speed.batches[:1], *speed.batches[-1:])):
        parts = step_parts(inputs, constants, batch.batch, batch.context, rate)
        noun = "request" if batch.batch == 1 else "requests"
        title = f"Between tokens, {batch.batch:,} {noun} of {batch.context:,} tokens"
        tokens = f"{batch.tokens_per_second:,.0f} tokens per second"
        result = f"{_ms(batch.inter_token_seconds)}, {tokens}, bound by {batch.bound_by}"
        yield Step(title, _sum_text(parts), result, _SUM)


def _sum_text(parts: Mapping[str, float]) -> str:
    return " + ".join(f"{_ms(seconds)} of {name}" for name, seconds in parts.items())


def _prompt_step(prompt: PromptSpeed, inputs: SpeedInputs, flops: float) -> Step:
    parts = prompt_times(inputs, prompt.num_tokens, flops)
    formula = (
        f"computing {_ms(parts['compute'])} + reading {_ms(parts['memory bandwidth'])}"
        f"{_host_text(parts, inputs)}, or launching kernels {_ms(parts['kernel launches'])} where that takes longer, "
        f"+ {_ms(parts['communication'])} between GPUs + {_ms(inputs.step(1))} per step "
        f"+ {_ms(inputs.taking_in)} for taking the request in"
    )
    title = f"First token of a prompt of {prompt.num_tokens:,} tokens"
    return Step(
        title, formula, f"{_ms(prompt.ttft_seconds)}, bound by {prompt.bound_by}", _ROOFLINE
    )


def _batch_step(batch: BatchSpeed, inputs: SpeedInputs, flops: float) -> Step:
    size = batch.batch // max(1, inputs.ranks.data)
    parts = batch_times(inputs, size, batch.context, flops)
    formula = (
        f"the larger of reading {_ms(parts['weights read'])} of weights + {_ms(parts['cache read'])} of cache"
        f"{_host_text(parts, inputs)} and computing {_ms(parts['compute'])}{_launch_text(parts, inputs)}, "
        f"+ {_ms(parts['small kernels'])} of small kernels + {_ms(parts['communication'])} between GPUs "
        f"+ {_ms(inputs.step(size))} per step{_least_text(inputs, size)}{_draft_text(parts, inputs)}"
    )
    noun = "request" if batch.batch == 1 else "requests"
    title = f"Between tokens, {batch.batch:,} {noun} of {batch.context:,} tokens"
    rate = f"{_ms(batch.inter_token_seconds)}, {batch.tokens_per_second:,.0f} tokens per second"
    return Step(title, formula, f"{rate}, bound by {batch.bound_by}", _ROOFLINE)


def _host_text(parts: Mapping[str, float], inputs: SpeedInputs) -> str:
    if not parts["offloaded weights"]:
        return ""
    link = f"{inputs.gpu.host_bandwidth / 1e9:,.0f} GB/s x {inputs.constants.memory_share:.0%}"
    return f" + {_ms(parts['offloaded weights'])} of offloaded weights from the host at {link}"


def _launch_text(parts: Mapping[str, float], inputs: SpeedInputs) -> str:
    if not parts["kernel launches"]:
        return ""
    each = f"{_ms(inputs.host * inputs.constants.launch)} per layer without CUDA graphs"
    return f" and launching kernels {_ms(parts['kernel launches'])} ({each})"


def _least_text(inputs: SpeedInputs, size: int) -> str:
    least = inputs.least_step(size)
    return f", but no less than the {_ms(least)} in which the host schedules one" if least else ""


def _draft_text(parts: Mapping[str, float], inputs: SpeedInputs) -> str:
    draft = inputs.drafting
    if draft is None:
        return ""
    rate = ACCEPTANCE[draft.method].rate
    tokens = f"(1 - {rate:g}^{draft.num_tokens + 1}) / (1 - {rate:g}) = {draft.expected_tokens:.4g} tokens"
    work = f"+ {_ms(parts['drafting'])} drafting {draft.num_tokens}, which are verified together"
    return f" {work}; divided by {tokens} that a step yields at an assumed acceptance of {rate:g}"


_SUM = "what is hidden behind reading or behind multiplying is left out; shares of the machine's rates are measured (docs/benchmarks)"
_ROOFLINE = "roofline: bytes over bandwidth, operations over arithmetic"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.4g} ms" if seconds < 1 else f"{seconds:,.2f} s"
