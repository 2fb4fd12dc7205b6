"""What a cache holds: blocks at hand, and those that one request of full length takes. `planning.py` asks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from exo_inference.planner.resolved_setting import Setting, Stage


@dataclass(frozen=True, slots=True)
class Room:
    """What the cache holds: blocks at hand (and at worst and best), and what is asked of them."""

    blocks: int
    low_blocks: int
    high_blocks: int
    needed_blocks: int
    length: int
    largest: int
    safe: int
    adapts: bool = False
    """The engine takes a shorter context where this one does not fit."""


def find_room(setting: Setting, stages: Sequence[Stage], limiting: Stage) -> Room:
    """Return what the blocks of all stages hold; `limiting` is the stage with room for the fewest."""
    blocks, low, high = (
        min((num_blocks(setting, stage, amount) for stage in stages), default=0)
        for amount in ("available", "low", "high")
    )
    layout, tokens, length = limiting.layout, setting.max_num_batched_tokens, setting.max_model_len
    if layout is None:
        longest = min(length, setting.model.max_model_len or length)
        return Room(blocks, low, high, 0, length, longest, longest)
    model = setting.model
    own = model.max_model_len or length
    own = max(own, min(length, model.longest_model_len or own))  # LongRoPE may be asked for more
    largest = layout.longest_request(blocks, tokens, own)
    safe = layout.longest_request(low, tokens, own)
    static = setting.rules.static_share  # which answers longer requests alone with an error
    shrinks = setting.rules.shrinks_length and setting.parameters.max_model_len is None
    adapts = setting.asks_auto or shrinks or static is not None
    if adapts:
        length = max(1, min(length, largest))
    needed = layout.blocks_for(length, tokens)
    return Room(blocks, low, high, needed, length, largest, safe, adapts)


def num_blocks(setting: Setting, stage: Stage, amount: str) -> int:
    """Return the blocks that a stage's cache has of an amount of memory: `available`, `low` or `high`."""
    if stage.layout is None:
        return 2**40
    blocks = int(getattr(stage, amount)) // stage.layout.bytes_per_block
    return max(0, blocks - (1 if setting.rules.reserves_null_block else 0))
