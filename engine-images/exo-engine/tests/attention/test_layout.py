"""What a step's layout derives, against the same written out token by token."""

from __future__ import annotations

import numpy as np
import torch
from exo_engine.attention.layout import StepArrays, make_inputs, pad_tables
from hypothesis import given
from hypothesis import strategies as st

SHAPES = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 20)), min_size=1, max_size=6)


@given(shapes=SHAPES, block_size=st.integers(1, 5), num_groups=st.integers(1, 3), data=st.data())
def test_positions_and_slots_are_those_of_each_token(shapes, block_size, num_groups, data):
    shapes.sort(key=lambda shape: shape[0] > 1)
    lengths = [new + old for new, old in shapes]
    tables = [
        [
            data.draw(st.lists(st.integers(0, 99), min_size=count, max_size=count))
            for count in (-(-length // block_size) for length in lengths)
        ]
        for _ in range(num_groups)
    ]
    num_tokens = sum(new for new, _ in shapes)
    token_ids = np.arange(num_tokens, dtype=np.int32)
    arrays = StepArrays(
        query_starts=np.cumsum([0, *(new for new, _ in shapes)], dtype=np.int32),
        context_lens=np.array(lengths, dtype=np.int32),
        block_tables=tuple(pad_tables(group) for group in tables),
    )
    inputs = make_inputs(token_ids, arrays, block_size=block_size, device=torch.device("cpu"))
    layout = inputs.layout

    positions = [old + index for new, old in shapes for index in range(new)]
    assert inputs.token_ids.tolist() == token_ids.tolist()
    assert inputs.positions.tolist() == positions
    for group, slots in zip(tables, layout.slots, strict=True):
        owners = [table for table, (new, _) in zip(group, shapes, strict=True) for _ in range(new)]
        assert slots.tolist() == [
            table[position // block_size] * block_size + position % block_size
            for table, position in zip(owners, positions, strict=True)
        ]
    assert layout.query_starts.tolist() == arrays.query_starts.tolist()
    assert layout.context_lens.tolist() == lengths
    for moved, padded in zip(layout.block_tables, arrays.block_tables, strict=True):
        assert moved.tolist() == padded.tolist()
    assert layout.num_decodes == sum(new == 1 for new, _ in shapes)
    assert layout.max_query_len == max(new for new, _ in shapes)
    assert layout.max_context_len == max(lengths)


def test_tables_are_padded_to_the_longest():
    assert pad_tables([[3, 4], [5], []]).tolist() == [[3, 4], [5, 0], [0, 0]]
    assert pad_tables([[], []]).shape == (2, 1)
