"""Steps that a start rehearses for nobody, so that what serving launches is compiled by then.

Sequences of such a step have no context and no slot: nothing is read or stored.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from exo_engine.attention.layout import StepArrays, StepLayout


def step_of_nobody(
    num_sequences: int, max_context: int, *, num_groups: int, device: torch.device
) -> StepLayout:
    """Return a step of single tokens.

    Args:
        num_sequences: how many.
        max_context: the tokens of the longest, as backends are told.
        num_groups: block tables of a sequence.
        device: where the model is.
    """
    nothing = np.zeros(0, dtype=np.int32)
    starts = torch.arange(num_sequences + 1, dtype=torch.int32, device=device)
    contexts = torch.zeros(num_sequences, dtype=torch.int32, device=device)
    return StepLayout(
        host=StepArrays(nothing, nothing, ()),
        query_starts=starts,
        context_lens=contexts,
        block_tables=(contexts[:, None],) * num_groups,
        slots=(contexts.long() - 1,) * num_groups,
        fresh_blocks=starts[:0].long(),
        num_decodes=num_sequences,
        max_query_len=1,
        max_context_len=max_context,
    )


def lengths_up_to(most: int) -> Iterator[int]:
    """Yield powers of two and the longest: what a launch depends on changes there, or one later."""
    length = 1
    while length < most:
        yield length
        length *= 2
    yield most
