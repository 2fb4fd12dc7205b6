"""How long prompts and steps of any size take: of a plan made here exactly, of another by its table of speeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from exo_inference.wire import DeploymentPlan


class Times(Protocol):
    """The pessimistic end of a plan's speed, of each of its data ranks."""

    def first_token(self, length: int) -> float:
        """Return the seconds to the first token of a prompt."""

    def between_tokens(self, size: int, context: int) -> float:
        """Return the seconds between the tokens of each of `size` requests of `context` tokens."""


LEAST_LENGTH = 2048
"""The shortest context whose table has a prompt long enough to reckon others from."""


@dataclass(frozen=True)
class TableTimes:
    """Reads between the lines of a plan's table: what is known of a plan that the control plane made."""

    plan: DeploymentPlan

    def first_token(self, length: int) -> float:
        """Return the seconds to the first token of a prompt."""
        assert self.plan.speed is not None
        prompts = self.plan.speed.prompts
        points = [(p.num_tokens, p.ttft_seconds_high or p.ttft_seconds) for p in prompts]
        return _between(points, length)

    def between_tokens(self, size: int, context: int) -> float:
        """Return the seconds between tokens, at the table's context."""
        assert self.plan.speed is not None
        batches, ranks = self.plan.speed.batches, self.plan.data_parallel_size
        points = [
            (b.batch // ranks, b.inter_token_seconds_high or b.inter_token_seconds) for b in batches
        ]
        return _between(points, size)


def _between(points: Sequence[tuple[int, float]], size: int) -> float:
    """Return the value at a size, on the line between its neighbours; beyond the last in proportion to it."""
    below = [point for point in points if point[0] <= size]
    above = [point for point in points if point[0] >= size]
    if not below or not above:
        known, seconds = (above or below)[0 if above else -1]
        return seconds * max(1.0, size / known)
    (low, first), (high, last) = below[-1], above[0]
    return first if high == low else first + (last - first) * (size - low) / (high - low)
