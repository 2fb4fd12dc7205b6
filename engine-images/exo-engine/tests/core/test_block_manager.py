"""The block manager's promises, by example and against a random workload."""

from __future__ import annotations

from functools import partial

import pytest
from exo_engine.attention.cache_plan import plan_cache
from exo_engine.attention.kv_format import KV_FORMATS
from exo_engine.attention.layer import AttentionLayer, Reach
from exo_engine.core.block_demand import BlockDemand
from exo_engine.core.block_manager import (
    GIVEN_BACK,
    ROOT_HASH,
    BlockCopy,
    BlockManager,
    prefix_root,
)
from exo_engine.errors import InternalError


@pytest.fixture
def blocks():
    manager = BlockManager(8, 4, enable_prefix_caching=True)
    yield manager
    manager.check_integrity()


def compute(manager: BlockManager, name: str, tokens: list[int]) -> list[BlockCopy]:
    """Hold and register all tokens of a sequence, as a run of steps would."""
    prefix = manager.find_prefix(tokens)
    manager.open(name, prefix)
    start = min(len(prefix) * manager.block_size, len(tokens) - 1)
    copies = manager.prepare_write(name, start, len(tokens))
    manager.commit(name, tokens, len(tokens))
    return copies


def test_blocks_are_taken_as_tokens_arrive_and_given_back_at_the_end(blocks):
    blocks.open("a")
    blocks.prepare_write("a", 0, 5)
    assert len(blocks.tables("a")[0]) == 2
    blocks.prepare_write("a", 5, 8)
    assert len(blocks.tables("a")[0]) == 2
    blocks.prepare_write("a", 8, 9)
    assert len(blocks.tables("a")[0]) == 3
    assert blocks.num_free_blocks == 5
    blocks.close("a")
    assert blocks.num_free_blocks == 8
    assert not blocks.holds("a")


def test_forgotten_prefixes_are_not_found_and_who_holds_them_goes_on(blocks):
    tokens = list(range(9))
    compute(blocks, "ended", tokens)
    blocks.close("ended")
    compute(blocks, "running", tokens)
    blocks.forget_prefixes()
    assert blocks.num_cached_blocks == 0
    assert blocks.find_prefix(tokens) == []
    blocks.prepare_write("running", 9, 13)
    blocks.commit("running", [*tokens, 9, 10, 11, 12], 13)
    assert blocks.find_prefix(tokens) == [], "its beginning was forgotten"
    blocks.close("running")
    compute(blocks, "again", tokens)
    assert len(blocks.find_prefix(tokens)) == 2


def test_a_finished_prefix_is_found_and_shared(blocks):
    tokens = list(range(10))
    compute(blocks, "a", tokens)
    prefix = blocks.find_prefix(tokens)
    assert len(prefix) == 2  # the third block is not full
    blocks.open("b", prefix)
    assert blocks.tables("b")[0] == blocks.tables("a")[0][:2]
    blocks.close("a")
    blocks.check_integrity()
    assert blocks.num_free_blocks == 6


def test_equal_blocks_after_different_beginnings_are_not_confused(blocks):
    compute(blocks, "a", [1, 1, 1, 1, 2, 2, 2, 2])
    assert blocks.find_prefix([2, 2, 2, 2]) == []
    assert len(blocks.find_prefix([1, 1, 1, 1, 3, 3, 3, 3])) == 1


def test_cached_blocks_are_reclaimed_least_recently_used_first_and_empty_ones_before(blocks):
    compute(blocks, "old", [1, 1, 1, 1])
    compute(blocks, "new", [2, 2, 2, 2])
    blocks.close("old")
    blocks.close("new")
    blocks.open("big")
    blocks.prepare_write("big", 0, 6 * 4)
    assert blocks.find_prefix([1, 1, 1, 1])
    assert blocks.find_prefix([2, 2, 2, 2])
    blocks.prepare_write("big", 6 * 4, 7 * 4)
    assert not blocks.find_prefix([1, 1, 1, 1])
    assert blocks.find_prefix([2, 2, 2, 2])


def test_a_sequences_tail_is_reclaimed_before_its_beginning(blocks):
    tokens = list(range(16))
    compute(blocks, "a", tokens)
    blocks.close("a")
    blocks.open("b")
    blocks.prepare_write("b", 0, 5 * 4)
    assert len(blocks.find_prefix(tokens)) == 3


def test_using_a_cached_block_again_makes_it_recent(blocks):
    compute(blocks, "a", [1, 1, 1, 1])
    compute(blocks, "b", [2, 2, 2, 2])
    blocks.close("a")
    blocks.close("b")
    blocks.open("a again", blocks.find_prefix([1, 1, 1, 1]))
    blocks.close("a again")
    blocks.open("big")
    blocks.prepare_write("big", 0, 7 * 4)
    assert blocks.find_prefix([1, 1, 1, 1])
    assert not blocks.find_prefix([2, 2, 2, 2])


def test_writing_into_a_shared_block_copies_it_first(blocks):
    blocks.open("a")
    blocks.prepare_write("a", 0, 6)
    assert blocks.can_fork("a", 6)
    blocks.fork("a", "b", 6)
    before = list(blocks.tables("a")[0])
    copies = blocks.prepare_write("b", 6, 7)
    assert blocks.tables("a")[0] == before
    assert copies == [BlockCopy(before[1], blocks.tables("b")[0][1])]
    assert blocks.tables("b")[0][0] == before[0]
    # Now each has its own: no more copies.
    assert blocks.prepare_write("a", 6, 7) == []
    assert blocks.prepare_write("b", 7, 8) == []


def test_what_a_fork_shares_behind_what_is_written_is_copied_when_it_is_written(blocks):
    """So it is where tokens were taken back."""
    blocks.open("a")
    blocks.prepare_write("a", 0, 8)
    first, second = blocks.tables("a")[0]
    blocks.fork("a", "b", 8)
    (copy,) = blocks.prepare_write("a", 3, 4)
    assert (copy.source, blocks.tables("a")[0]) == (first, [copy.target, second])
    (copy,) = blocks.prepare_write("a", 4, 5)
    assert (copy.source, blocks.tables("a")[0][1]) == (second, copy.target)
    assert blocks.tables("b")[0] == [first, second]


def test_a_wholly_cached_prompt_recomputes_its_last_token_in_a_copy(blocks):
    tokens = list(range(8))
    compute(blocks, "a", tokens)
    copies = compute(blocks, "b", tokens)
    assert copies == [BlockCopy(blocks.tables("a")[0][1], blocks.tables("b")[0][1])]
    assert blocks.find_prefix(tokens)  # the original is still what the cache finds


def test_a_wholly_cached_prompt_nobody_holds_is_written_in_place(blocks):
    tokens = list(range(8))
    compute(blocks, "a", tokens)
    table = list(blocks.tables("a")[0])
    blocks.close("a")
    assert compute(blocks, "b", tokens) == []
    assert blocks.tables("b")[0] == table
    assert len(blocks.find_prefix(tokens)) == 2


def test_without_prefix_caching_nothing_is_found():
    manager = BlockManager(4, 4, enable_prefix_caching=False)
    compute(manager, "a", list(range(8)))
    assert manager.find_prefix(list(range(8))) == []
    assert manager.num_cached_blocks == 0


def test_taking_more_than_is_free_is_an_error_and_changes_nothing(blocks):
    blocks.open("a")
    with pytest.raises(InternalError, match="needs 9 blocks, 8 are free"):
        blocks.prepare_write("a", 0, 33)
    assert blocks.num_free_blocks == 8


def test_broken_contents_are_never_found_again(blocks):
    compute(blocks, "a", list(range(8)))
    blocks.distrust("a")
    blocks.check_integrity()
    assert blocks.find_prefix(list(range(8))) == []
    blocks.close("a")
    assert blocks.find_prefix(list(range(8))) == []
    assert blocks.num_free_blocks == 8


def test_what_follows_another_last_token_is_not_found_behind_the_one_that_was_taken_back(blocks):
    """Although a second sequence has a full block with that one, which is the one that is found."""
    taken_back, kept, after = [1, 1, 1, 1], [1, 1, 1, 2], [5, 5, 5, 5]
    compute(blocks, "first", taken_back)
    compute(blocks, "second", taken_back)
    blocks.prepare_write("second", 3, 4)
    blocks.commit("second", kept, 4)
    blocks.prepare_write("second", 4, 8)
    blocks.commit("second", kept + after, 8)
    assert len(blocks.find_prefix(taken_back + after)) == 1
    assert len(blocks.find_prefix(kept + after)) == 2


def test_a_waiting_sequence_is_hashed_once(blocks):
    tokens = list(range(10))
    memo: list[bytes] = []
    assert blocks.find_prefix(tokens, memo) == []
    compute(blocks, "a", tokens)
    assert blocks.find_prefix(tokens, memo) == blocks.find_prefix(tokens) == memo
    assert blocks.find_prefix(tokens[:5], memo) == memo[:1]
    tokens += [10, 11, 12]
    assert blocks.find_prefix(tokens, memo) == memo[:2]
    assert len(memo) == 3


@pytest.fixture
def windows():
    """One group that sees all, and one with a window of six tokens."""
    manager = BlockManager(40, 4, enable_prefix_caching=True, reaches=(Reach(), Reach(window=6)))
    yield manager
    manager.check_integrity()


def test_blocks_behind_a_window_are_given_back_while_the_request_runs(windows):
    windows.open("a")
    windows.prepare_write("a", 0, 16)
    assert windows.num_free_blocks == 32
    # The token at 16 sees from 11 on: the first two blocks are behind it.
    assert windows.num_blocks_to_write("a", 16, 17) == 0  # two taken, two given back
    windows.prepare_write("a", 16, 17)
    full, window = windows.tables("a")
    assert GIVEN_BACK not in full
    assert [block == GIVEN_BACK for block in window] == [True, True, False, False, False]
    assert windows.num_free_blocks == 40 - 5 - 3
    windows.close("a")
    assert windows.num_free_blocks == 40


def test_a_prefix_must_be_whole_in_every_group_as_far_as_the_next_token_reaches(windows):
    tokens = list(range(24))
    windows.open("a")
    for start in range(0, 24, 4):
        windows.prepare_write("a", start, start + 4)
        windows.commit("a", tokens, start + 4)
    windows.close("a")
    assert len(windows.find_prefix(tokens)) == 6
    windows.open("b", windows.find_prefix(tokens))
    full, window = windows.tables("b")
    assert GIVEN_BACK not in full
    # The last token is computed anew and sees from 18 on.
    assert window[:4] == [GIVEN_BACK] * 4
    assert len(window) == 6
    # Take what nobody holds, the blocks behind the window: a hit in the middle needs them.
    windows.open("c")
    windows.prepare_write("c", 0, windows.num_free_blocks // 2 * 4)
    assert windows.find_prefix(tokens) == windows.find_prefix([*tokens, 1, 2])
    assert len(windows.find_prefix(tokens)) == 6
    assert windows.find_prefix(tokens[:8]) == []


def test_a_prefix_that_one_window_cuts_short_is_what_the_other_one_has_the_end_of():
    """The wide one has what the whole needs, not what a shorter prefix needs that the narrow one allows."""
    reaches = (Reach(), Reach(window=6), Reach(window=1))
    manager = BlockManager(40, 4, enable_prefix_caching=True, reaches=reaches)
    tokens = list(range(24))
    compute(manager, "a", tokens)
    _, wide, narrow = manager.tables("a")
    for lost in (wide[3], narrow[5]):
        manager._pool.forget(lost)
    prefix = manager.find_prefix(tokens)
    assert len(prefix) == 3
    manager.open("b", prefix)
    manager.check_integrity()


def test_a_chunk_of_attention_gives_back_the_chunks_before():
    manager = BlockManager(8, 2, enable_prefix_caching=True, reaches=(Reach(chunk=4),))
    manager.open("a")
    manager.prepare_write("a", 0, 4)
    manager.prepare_write("a", 4, 5)
    assert manager.tables("a")[0][:2] == [GIVEN_BACK] * 2
    assert manager.num_free_blocks == 7


@pytest.mark.parametrize("block_size", [1, 4, 16, 32])
def test_a_shape_of_five_windows_to_one_takes_a_quarter_of_full_attention(block_size):
    """32k tokens in chunks of 1,024 with a window of 1,024, the peak of the prefill included."""
    layer = partial(AttentionLayer, num_heads=8, num_kv_heads=2, head_dim=64, scale=1.0)
    layers = [layer(reach=Reach(None if i % 6 == 5 else 1024)) for i in range(24)]
    plan = plan_cache(layers, block_size, KV_FORMATS["bfloat16"])
    full = plan_cache([layer()] * 24, block_size, KV_FORMATS["bfloat16"])
    manager = BlockManager(10**6, block_size, enable_prefix_caching=False, reaches=plan.reaches)
    manager.open("a")
    peak = 0
    for start in range(0, 2**15, 1024):
        manager.prepare_write("a", start, start + 1024)
        peak = max(peak, manager.num_blocks - manager.num_free_blocks)
    assert peak * plan.block_bytes <= 0.25 * (2**15 // block_size) * full.block_bytes
    demand = BlockDemand(plan.reaches, block_size, 1024)
    # A chunk may begin within a block, which costs each window one more.
    assert peak <= demand.most_blocks(2**15) <= peak + len(plan.groups)
    most = demand.most_blocks(2**15)
    assert demand.most_blocks(demand.longest(most)) <= most < demand.most_blocks(2**15 + block_size)


def test_a_state_is_found_where_a_step_has_ended_with_its_block():
    manager = BlockManager(
        12, 4, enable_prefix_caching=True, reaches=(Reach(), Reach(is_state=True))
    )
    tokens = list(range(20))
    manager.open("a")
    for start, end in ((0, 8), (8, 14), (14, 16), (16, 18)):
        manager.prepare_write("a", start, end)
        manager.commit("a", tokens, end)
        manager.check_integrity()
        held = [block for block in manager.tables("a")[1] if block != GIVEN_BACK]
        assert len(held) <= 2
    # After 4 nobody kept the state; and the token after a hit must be there to be computed.
    lengths = {count: len(manager.find_prefix(tokens[:count])) for count in (7, 8, 9, 12, 16, 17)}
    assert lengths == {7: 0, 8: 0, 9: 2, 12: 2, 16: 2, 17: 4}
    assert not manager.can_fork("a", 9)
    manager.open("b", manager.find_prefix(tokens[:9]))
    full, states = manager.tables("b")
    assert full == manager.tables("a")[0][:2]
    assert states[0] == GIVEN_BACK
    manager.prepare_write("b", 8, 9)
    assert len(set(manager.tables("b")[1])) == 3, "the state that others find is not written to"


def test_salts_and_adapters_make_roots_of_their_own():
    named = ["", "x", "None", "x', None", "\udc80"]
    roots = [prefix_root(salt, name) for salt in (None, *named) for name in (None, *named)]
    assert len(set(roots)) == 36
    assert prefix_root() == ROOT_HASH


def test_other_roots_share_nothing(blocks):
    tokens = list(range(8))
    blocks.open("a", root=b"one")
    blocks.prepare_write("a", 0, 8)
    blocks.commit("a", tokens, 8)
    assert blocks.find_prefix(tokens) == blocks.find_prefix(tokens, root=b"two") == []
    assert len(blocks.find_prefix(tokens, root=b"one")) == 2
