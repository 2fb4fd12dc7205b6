"""The block manager's promises, against a random workload on each kind of groups."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from exo_engine.attention.layer import Reach
from exo_engine.core.block_demand import BlockDemand
from exo_engine.core.block_manager import GIVEN_BACK, BlockManager
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

GROUPS = {
    "full": (Reach(),),
    "window": (Reach(window=3),),
    "both": (Reach(), Reach(window=5), Reach(window=1)),
    "chunk": (Reach(chunk=4), Reach()),
    "state": (Reach(), Reach(is_state=True), Reach(window=3)),
}
ROOTS = (b"", b"a tenant's")
STATE = 2
"""Where the model of a block's contents has a state, after those of its two tokens."""
MOST_ON_THEIR_WAY = 3
MOST_SEQUENCES = 5


@dataclass(frozen=True)
class Step:
    """One sequence's tokens [start, end) in a step that has no result yet."""

    name: str
    start: int
    end: int
    touched: frozenset[tuple[int, int, int]]
    """Group, place in the table and block of all that it reads and writes."""


class RandomWorkload(RuleBasedStateMachine):
    """Few sequences with few distinct tokens, so that prefixes are shared all the time.

    Steps are dispatched and done in one order, up to three at a time. `contents` models what each block
    would hold once all that were dispatched have run: keys and values of a token are made of all tokens before
    it, too. Every prefix hit must find what was written by a sequence with the same root and the same beginning.
    """

    reaches: tuple[Reach, ...]

    def __init__(self) -> None:
        super().__init__()
        self.tokens: dict[str, list[int]] = {}
        self.roots: dict[str, bytes] = {}
        self.computed: dict[str, int] = {}
        """With those that steps on their way compute."""
        self.done: dict[str, int] = {}
        self.last_start: dict[str, int] = {}
        """Where the last step began: what came before cannot be taken back."""
        self.on_their_way: list[Step] = []
        self.draining: set[str] = set()
        """Ended while a step with them was on its way."""
        self.contents: dict[tuple[int, int], tuple[object, ...]] = {}
        self.count = 0
        self.num_blocks = 12 * len(self.reaches)
        self.manager = BlockManager(
            self.num_blocks, 2, enable_prefix_caching=True, reaches=self.reaches
        )
        # Tokens at one time in a step are at most five, but the first ones of a sequence.
        self.demand = BlockDemand(self.reaches, 2, 5)

    @precondition(lambda self: len(self.tokens) < MOST_SEQUENCES)
    @rule(
        num_equal=st.integers(1, 10),
        rest=st.lists(st.integers(0, 1), max_size=2),
        root=st.sampled_from(ROOTS),
        num_tokens=st.integers(0, 5),
    )
    def begin(self, num_equal: int, rest: list[int], root: bytes, num_tokens: int) -> None:
        """As the scheduler does: with the first step, unless there are no blocks for it."""
        tokens = [0] * num_equal + rest
        prefix = self.manager.find_prefix(tokens, root=root)
        free = self.manager.num_free_after(prefix)
        name = str(self.count)
        self.count += 1
        self.manager.open(name, prefix, root=root)
        assert self.manager.num_free_blocks == free
        self.tokens[name], self.roots[name] = list(tokens), root
        self.computed[name] = self.last_start[name] = min(len(prefix) * 2, len(tokens) - 1)
        self.done[name] = self.computed[name]
        self.check_contents(name)
        if num_tokens:
            self.dispatch(name, min(self.computed[name] + num_tokens, len(tokens)))

    @precondition(lambda self: self.tokens)
    @rule(
        data=st.data(),
        sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4),
        new_token=st.sampled_from((0, 0, 0, 1)),
        is_awaited=st.booleans(),
    )
    def advance(self, data, sizes: list[int], new_token: int, is_awaited: bool) -> None:
        """Some steps of one sequence: of tokens that it has, or of one that was chosen."""
        name = data.draw(st.sampled_from(sorted(self.tokens)))
        tokens = self.tokens[name]
        for size in sizes:
            start = self.computed[name]
            if start == len(tokens):
                tokens.append(new_token)
            self.dispatch(name, min(start + size, len(tokens)))
            while is_awaited and self.on_their_way:
                self.finish_step(0)

    def dispatch(self, name: str, end: int) -> bool:
        """Make a step if there are blocks for it; return whether there are."""
        start, done = self.computed[name], self.done[name]
        needed = self.manager.num_blocks_to_write(name, start, end, num_done=done)
        free = self.num_free()
        if needed > free or len(self.on_their_way) == MOST_ON_THEIR_WAY:
            return False
        for copy in self.manager.prepare_write(name, start, end, num_done=done):
            for offset in (0, 1, STATE):
                value = self.contents.get((copy.source, offset))
                if value is not None:
                    self.contents[copy.target, offset] = value
        assert self.num_free() == free - needed or (needed == 0 and self.num_free() > free)
        touched = set()
        for group, table in enumerate(self.manager.tables(name)):
            first = self.reaches[group].first_seen(done) // 2
            assert table[:first] == [GIVEN_BACK] * first, "what no token reaches is still held"
            if self.reaches[group].is_state:
                self.contents[table[(end - 1) // 2], STATE] = self.made_of(name, group, end)
                read = (start - 1) // 2 if start else (end - 1) // 2
                touched |= {(group, place, table[place]) for place in (read, (end - 1) // 2)}
                continue
            # Behind them may be what a fork shares since it was taken back here: that is copied when it is written.
            for index in range(start // 2, -(-end // 2)):
                owners = sum(
                    table[index] in each
                    for other in [*self.tokens, *self.draining]
                    for each in self.manager.tables(other)
                )
                assert owners == 1, "a block about to be written has several owners"
            for position in range(start, end):
                written = self.made_of(name, group, position + 1)
                self.contents[table[position // 2], position % 2] = written
            seen = range(self.reaches[group].first_seen(start) // 2, (end - 1) // 2 + 1)
            touched |= {(group, place, table[place]) for place in seen}
        held = sum(block != GIVEN_BACK for table in self.manager.tables(name) for block in table)
        longest = 2 * len(self.manager.tables(name)[0])  # what was taken back included
        assert done < start or held <= self.demand.most_blocks(longest)
        self.computed[name] = end
        self.on_their_way.append(Step(name, start, end, frozenset(touched)))
        return True

    @precondition(lambda self: self.on_their_way)
    @rule(num_wrong=st.integers(0, 2), token=st.integers(0, 1))
    def finish(self, num_wrong: int, token: int) -> None:
        step = self.on_their_way[0]
        is_last = all(other.name != step.name for other in self.on_their_way[1:])
        if not is_last or self.manager.has_states:
            num_wrong = 0  # who may have tokens taken back is in no step until that is known
        self.finish_step(min(num_wrong, step.end - step.start - 1), token)

    def finish_step(self, num_wrong: int, token: int = 0) -> None:
        """Take in the oldest step, whose last tokens may have been wrong guesses."""
        step = self.on_their_way.pop(0)
        name = step.name
        if name in self.draining:
            if all(other.name != name for other in self.on_their_way):
                self.draining.remove(name)
                self.manager.close(name)
            return
        end = step.end - num_wrong
        if num_wrong:
            self.computed[name] = end
            self.tokens[name] = [*self.tokens[name][:end], token]
        self.done[name], self.last_start[name] = end, step.start
        self.manager.commit(name, self.tokens[name], end)

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), waits=st.booleans())
    def fork(self, data, waits: bool) -> None:
        """As siblings begin: with the step that computes their last token in a copy, or not at all.

        A sequence of which no step is on its way may go on first: then the copy is its own.
        """
        name = data.draw(st.sampled_from(sorted(self.tokens)))
        child = str(self.count)
        self.count += 1
        count = data.draw(st.integers(1, max(1, self.done[name])))
        if count > self.done[name] or not self.manager.can_fork(name, count):
            return
        free = self.manager.num_free_blocks
        self.manager.fork(name, child, count)
        assert self.manager.num_free_blocks == free
        held = sum(b != GIVEN_BACK for table in self.manager.tables(child) for b in table)
        assert held == self.manager.num_forked_blocks(name, count)
        # The last of these tokens is computed anew: it yields the child's own next one.
        self.tokens[child], self.roots[child] = self.tokens[name][:count], self.roots[name]
        self.computed[child] = self.done[child] = self.last_start[child] = count - 1
        waits = waits and not self.is_on_its_way(name)
        if not waits and not self.dispatch(child, count):
            self.forget(child)

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def take_back(self, data) -> None:
        """The last token turns out not to be kept: it is computed anew, and may be another one."""
        if self.manager.has_states:
            return  # they cannot
        name = data.draw(st.sampled_from(sorted(self.tokens)))
        if self.computed[name] <= self.last_start[name] or self.is_on_its_way(name):
            return
        self.computed[name] -= 1
        self.done[name] = self.computed[name]
        del self.tokens[name][self.computed[name] :]
        self.tokens[name].append(data.draw(st.integers(0, 1)))

    @precondition(lambda self: len(self.tokens) > 1)
    @rule(data=st.data(), outcome=st.sampled_from(("whole", "whole", "whole", "broken")))
    def end(self, data, outcome: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.tokens)))
        if outcome == "broken":
            self.manager.distrust(name)
        self.forget(name)

    def forget(self, name: str) -> None:
        """End a sequence; its blocks stay until no step on its way has them."""
        if self.is_on_its_way(name):
            self.draining.add(name)
        else:
            self.manager.close(name)
        for each in (self.tokens, self.roots, self.computed, self.done, self.last_start):
            del each[name]

    def is_on_its_way(self, name: str) -> bool:
        return any(step.name == name for step in self.on_their_way)

    def made_of(self, name: str, group: int, count: int) -> tuple[object, ...]:
        """What the first tokens of a sequence leave in a group: keys and values of the last one, or a state."""
        return group, self.roots[name], tuple(self.tokens[name][:count])

    def num_free(self) -> int:
        return self.manager.num_free_blocks

    def check_contents(self, name: str) -> None:
        """What the next token reaches is there, in every group."""
        for group, table in enumerate(self.manager.tables(name)):
            count = self.computed[name]
            if self.reaches[group].is_state:
                state = self.made_of(name, group, count)
                assert count == 0 or self.contents[table[(count - 1) // 2], STATE] == state
                continue
            first = self.reaches[group].first_seen(count)
            for position in range(first, self.computed[name]):
                held = self.contents[table[position // 2], position % 2]
                assert held == self.made_of(name, group, position + 1)

    @invariant()
    def everything_adds_up(self) -> None:
        self.manager.check_integrity()
        for name in self.tokens:
            self.check_contents(name)

    @invariant()
    def what_a_step_on_its_way_touches_is_its_own(self) -> None:
        for step in self.on_their_way:
            tables = self.manager.tables(step.name)
            for group, place, block in step.touched:
                assert block != GIVEN_BACK, "a step was made without a block that it reads"
                assert tables[group][place] == block, "a step on its way lost a block"

    def teardown(self) -> None:
        while self.on_their_way:
            self.finish_step(0)
        assert not self.draining
        for name in list(self.tokens):
            self.manager.close(name)
        self.manager.check_integrity()
        assert self.num_free() == self.num_blocks


@pytest.mark.parametrize(
    ("name", "examples"),
    [
        *(("both", 20), ("state", 20)),
        *(pytest.param(name, 60, marks=pytest.mark.slow) for name in GROUPS),
    ],
)
def test_promises_are_kept_whatever_comes(name: str, examples: int) -> None:
    workload = type(f"Workload_{name}", (RandomWorkload,), {"reaches": GROUPS[name]})
    run_state_machine_as_test(
        workload, settings=settings(max_examples=examples, stateful_step_count=40)
    )
