"""The pessimistic end of a plan's speed, for prompts and batches of any size rather than those of its table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from exo_inference.planner.speed.estimate import batch_speed, prompt_speed
from exo_inference.planner.speed.inputs import SpeedInputs, arithmetic
from exo_inference.planner.speed.processor import (
    load_processor_constants,
    processor_batch,
    processor_prompt,
)

if TYPE_CHECKING:
    from exo_inference.planner.verdict import Plan


@dataclass(frozen=True, slots=True)
class Clock:
    """Says how long what a plan would serve takes; of each of its data ranks."""

    inputs: SpeedInputs

    def first_token(self, length: int) -> float:
        """Return the seconds to the first token of a prompt."""
        if self.inputs.gpu.vendor == "cpu":
            constants = load_processor_constants()
            return processor_prompt(self.inputs, constants, length).ttft_seconds_high
        _, flops = arithmetic(self.inputs)
        return prompt_speed(self.inputs, length, flops).ttft_seconds_high

    def between_tokens(self, size: int, context: int) -> float:
        """Return the seconds between the tokens of each of `size` requests of `context` tokens."""
        if self.inputs.gpu.vendor == "cpu":
            constants = load_processor_constants()
            speed = processor_batch(self.inputs, constants, size, context)
        else:
            _, flops = arithmetic(self.inputs)
            speed = batch_speed(self.inputs, size, context, flops)
        return speed.inter_token_seconds_high


def clock_of(plan: Plan | None) -> Clock | None:
    """Return the clock of a plan; None where its speed is not estimated."""
    if plan is None or plan.speed is None or plan.basis is None:
        return None
    return Clock(plan.basis.speed)
