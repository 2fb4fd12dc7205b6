"""The block manager's promises, by example and against a random workload."""

from __future__ import annotations

import pytest
from exo_engine.core.block_manager import BlockCopy, BlockManager
from exo_engine.errors import InternalError
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule


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
    assert len(blocks.table("a")) == 2
    blocks.prepare_write("a", 5, 8)
    assert len(blocks.table("a")) == 2
    blocks.prepare_write("a", 8, 9)
    assert len(blocks.table("a")) == 3
    assert blocks.num_free_blocks == 5
    blocks.close("a")
    assert blocks.num_free_blocks == 8
    assert not blocks.holds("a")


def test_a_finished_prefix_is_found_and_shared(blocks):
    tokens = list(range(10))
    compute(blocks, "a", tokens)
    prefix = blocks.find_prefix(tokens)
    assert len(prefix) == 2  # the third block is not full
    blocks.open("b", prefix)
    assert blocks.table("b") == blocks.table("a")[:2]
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
    blocks.fork("a", "b")
    before = list(blocks.table("a"))
    copies = blocks.prepare_write("b", 6, 7)
    assert blocks.table("a") == before
    assert copies == [BlockCopy(before[1], blocks.table("b")[1])]
    assert blocks.table("b")[0] == before[0]
    # Now each has its own: no more copies.
    assert blocks.prepare_write("a", 6, 7) == []
    assert blocks.prepare_write("b", 7, 8) == []


def test_a_wholly_cached_prompt_recomputes_its_last_token_in_a_copy(blocks):
    tokens = list(range(8))
    compute(blocks, "a", tokens)
    copies = compute(blocks, "b", tokens)
    assert copies == [BlockCopy(blocks.table("a")[1], blocks.table("b")[1])]
    assert blocks.find_prefix(tokens)  # the original is still what the cache finds


def test_a_wholly_cached_prompt_nobody_holds_is_written_in_place(blocks):
    tokens = list(range(8))
    compute(blocks, "a", tokens)
    table = list(blocks.table("a"))
    blocks.close("a")
    assert compute(blocks, "b", tokens) == []
    assert blocks.table("b") == table
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


class RandomWorkload(RuleBasedStateMachine):
    """Sequences with few distinct tokens, so that prefixes are shared all the time.

    `contents` models what each block would hold; every prefix hit must find what was written.
    """

    def __init__(self) -> None:
        super().__init__()
        self.manager = BlockManager(12, 2, enable_prefix_caching=True)
        self.tokens: dict[str, list[int]] = {}
        self.computed: dict[str, int] = {}
        self.contents: dict[tuple[int, int], int] = {}
        self.count = 0

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=12))
    def begin(self, tokens: list[int]) -> None:
        prefix = self.manager.find_prefix(tokens)
        name = str(self.count)
        self.count += 1
        self.manager.open(name, prefix)
        self.tokens[name] = list(tokens)
        self.computed[name] = min(len(prefix) * 2, len(tokens) - 1)
        self.check_contents(name)

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), num_tokens=st.integers(1, 5), new_token=st.integers(0, 1))
    def advance(self, data, num_tokens: int, new_token: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.tokens)))
        tokens, start = self.tokens[name], self.computed[name]
        if start == len(tokens):
            tokens.append(new_token)
        end = min(start + num_tokens, len(tokens))
        if self.manager.num_blocks_to_write(name, start, end) > self.manager.num_free_blocks:
            return
        for copy in self.manager.prepare_write(name, start, end):
            for offset in range(2):
                value = self.contents.get((copy.source, offset))
                if value is not None:
                    self.contents[copy.target, offset] = value
        table = self.manager.table(name)
        for position in range(start, end):
            self.contents[table[position // 2], position % 2] = tokens[position]
        self.computed[name] = end
        self.manager.commit(name, tokens, end)

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def fork(self, data) -> None:
        name = data.draw(st.sampled_from(sorted(self.tokens)))
        child = str(self.count)
        self.count += 1
        self.manager.fork(name, child)
        self.tokens[child] = list(self.tokens[name])
        self.computed[child] = self.computed[name]

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def end(self, data) -> None:
        name = data.draw(st.sampled_from(sorted(self.tokens)))
        self.manager.close(name)
        del self.tokens[name], self.computed[name]

    def check_contents(self, name: str) -> None:
        table = self.manager.table(name)
        for position in range(self.computed[name]):
            held = self.contents[table[position // 2], position % 2]
            assert held == self.tokens[name][position]

    @invariant()
    def everything_adds_up(self) -> None:
        self.manager.check_integrity()
        for name in self.tokens:
            self.check_contents(name)

    def teardown(self) -> None:
        for name in list(self.tokens):
            self.manager.close(name)
        self.manager.check_integrity()
        assert self.manager.num_free_blocks == 12


TestRandomWorkload = RandomWorkload.TestCase
TestRandomWorkload.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
