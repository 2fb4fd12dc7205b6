"""Inputs made from arrays over all slots are those that a loop over sequences would make."""

from __future__ import annotations

import numpy as np
import pytest
from exo_engine.core.batch import Batch
from exo_engine.core.step import AddedSequence, StepFrame, TableChange, ints
from exo_engine.errors import InternalError
from exo_engine.sampling_params import SamplingParams
from hypothesis import given, settings
from hypothesis import strategies as st

SIZE = 4


def added(slot: int, token_ids, *, epoch: int = 0, first_seen: int = 0) -> AddedSequence:
    return AddedSequence(
        slot, epoch, ints(token_ids), len(token_ids), SamplingParams(), 0, first_seen
    )


def frame(spans, *, samples=None, tables=(), **more) -> StepFrame:
    """Spans are (slot, start, end); tables (row, first, blocks) of the only group."""
    rows, firsts, blocks = zip(*tables, strict=True) if tables else ((), (), ())
    change = TableChange(
        ints(rows),
        ints(firsts),
        ints([len(b) for b in blocks]),
        (ints([n for b in blocks for n in b]),),
    )
    return StepFrame(
        slots=ints([slot for slot, _, _ in spans]),
        starts=ints([start for _, start, _ in spans]),
        num_tokens=ints([end - start for _, start, end in spans]),
        num_samples=np.array(samples or [1] * len(spans), dtype=np.uint8),
        tables=change,
        **more,
    )


def batch(num_slots: int = 4) -> Batch:
    return Batch(num_slots, num_groups=1, block_size=SIZE)


def fill(state: Batch, *told: tuple[int, int, int, int]) -> None:
    """Each is (slot, epoch, place, token)."""
    state.fill(*np.array(told, dtype=np.int64).T)


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_inputs_are_those_of_a_loop_over_sequences(data):
    """Random sequences over several steps, with chunks, new blocks and slots that change hands."""
    state = batch(5)
    known: dict[int, list[int]] = {}
    tables: dict[int, list[int]] = {}
    computed: dict[int, int] = {}
    numbers = iter(range(10**6))
    for epoch in range(data.draw(st.integers(1, 6))):
        gone = [slot for slot in known if data.draw(st.booleans())]
        for slot in gone:
            del known[slot], tables[slot], computed[slot]
        new = []
        for slot in data.draw(st.lists(st.integers(0, 4), unique=True, min_size=1)):
            if slot not in known:
                known[slot] = [next(numbers) for _ in range(data.draw(st.integers(1, 90)))]
                tables[slot], computed[slot] = [], 0
                new.append(added(slot, known[slot], epoch=epoch))
        spans, changes = [], []
        for row, slot in enumerate(data.draw(st.permutations(sorted(known)))):
            start = min(computed[slot], len(known[slot]) - 1)
            end = data.draw(st.integers(start + 1, len(known[slot])))
            more = [next(numbers) for _ in range(-(-end // SIZE) - len(tables[slot]))]
            if more:
                changes.append((row, len(tables[slot]), more))
                tables[slot] += more
            spans.append((slot, start, end))
            computed[slot] = end
        state.apply(frame(spans, tables=changes, added=tuple(new), removed=ints(gone)))
        found = state.inputs(frame(spans))

        order = sorted(range(len(spans)), key=lambda i: spans[i][2] - spans[i][1] > 1)
        wanted = [spans[i] for i in order]
        assert found.order.tolist() == order
        assert found.slots.tolist() == [slot for slot, _, _ in wanted]
        assert found.token_ids.tolist() == [t for s, a, b in wanted for t in known[s][a:b]]
        assert found.context_lens.tolist() == [end for _, _, end in wanted]
        lengths = [end - start for _, start, end in wanted]
        assert np.diff(found.query_starts).tolist() == lengths
        assert not found.unknown_rows.size
        for row, (slot, _, end) in enumerate(wanted):
            num_blocks = -(-end // SIZE)
            assert found.block_tables[0][row, :num_blocks].tolist() == tables[slot][:num_blocks]


@pytest.mark.parametrize("length", [3, 64, 100])
def test_token_that_is_still_on_the_device_is_marked_until_it_is_told(length):
    state = batch()
    prompt, blocks = list(range(length)), list(range(1 + length // SIZE))
    new = added(2, prompt, epoch=5)
    state.apply(frame([(2, 0, length)], added=(new,), tables=[(0, 0, blocks)]))
    state.expect(np.array([2]))
    following = frame([(2, length, length + 1)])
    state.apply(following)
    found = state.inputs(following)
    assert (found.unknown_rows.tolist(), found.unknown_slots.tolist()) == ([0], [2])
    fill(state, (2, 5, length, 42))
    found = state.inputs(following)
    assert found.token_ids.tolist() == [42]
    assert not found.unknown_rows.size
    assert state.token_ids(2).tolist() == [*prompt, 42]


def test_late_token_of_a_sequence_that_is_gone_changes_nothing():
    state = batch()
    state.apply(frame([(1, 0, 2)], added=(added(1, [7, 8], epoch=5),), tables=[(0, 0, [1])]))
    state.expect(np.array([1]))
    state.apply(
        frame([(1, 0, 1)], added=(added(1, [3], epoch=6),), removed=ints([1]), tables=[(0, 0, [2])])
    )
    fill(state, (1, 5, 2, 99))
    assert state.token_ids(1).tolist() == [3]
    with pytest.raises(InternalError, match="told its token 3, but expects 1"):
        fill(state, (1, 6, 3, 99))


def test_tokens_are_told_to_those_who_are_there():
    state = batch()
    members = tuple(added(slot, range(slot + 1), epoch=slot + 5) for slot in range(3))
    tables = [(row, 0, [row]) for row in range(3)]
    state.apply(frame([(s, 0, s + 1) for s in range(3)], added=members, tables=tables))
    state.expect(np.arange(3))
    fill(state, (2, 7, 3, 40), (1, 4, 9, 41), (0, 5, 1, 42))  # the second one is gone
    assert [state.token_ids(slot).tolist() for slot in range(3)] == [[0, 42], [0, 1], [0, 1, 2, 40]]
    with pytest.raises(InternalError, match="slot 2 was told its token 5, but expects 4"):
        fill(state, (1, 6, 2, 50), (2, 7, 5, 51))


def test_guesses_are_in_the_step_and_do_not_count():
    state = batch()
    state.apply(frame([(0, 0, 2)], added=(added(0, [7, 8]),), tables=[(0, 0, [1, 2])]))
    state.expect(np.array([0]))
    fill(state, (0, 0, 2, 9))
    guessing = frame([(0, 2, 5)], samples=[3], proposed=ints([50, 51]))
    state.apply(guessing)
    found = state.inputs(guessing)
    assert found.token_ids.tolist() == [9, 50, 51]
    assert not found.unknown_rows.size
    assert state.token_ids(0).tolist() == [7, 8, 9]


def test_positions_count_from_the_first_token_that_is_seen():
    state = batch()
    state.apply(frame([(0, 6, 9)], added=(added(0, range(9), first_seen=6),), tables=[(0, 0, [1])]))
    found = state.inputs(frame([(0, 6, 9)]))
    assert found.token_ids.tolist() == [6, 7, 8]
    assert found.context_lens.tolist() == [3]
    assert found.block_tables[0].tolist() == [[1]]
