"""The block manager's promises, against a random workload."""

from __future__ import annotations

from exo_engine.attention.layer import Reach
from exo_engine.core.block_demand import BlockDemand
from exo_engine.core.block_manager import GIVEN_BACK, BlockManager
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

GROUPS = {
    "full": (Reach(),),
    "window": (Reach(window=3),),
    "both": (Reach(), Reach(window=5), Reach(window=1)),
    "chunk": (Reach(chunk=4), Reach()),
    "state": (Reach(), Reach(is_state=True), Reach(window=3)),
}


STATE = 2
"""Where the model of a block's contents has a state, after those of its two tokens."""


class RandomWorkload(RuleBasedStateMachine):
    """Sequences with few distinct tokens, so that prefixes are shared all the time.

    `contents` models what each block would hold; every prefix hit must find what was written.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tokens: dict[str, list[int]] = {}
        self.computed: dict[str, int] = {}
        self.last_start: dict[str, int] = {}
        """Where the last step began: what came before cannot be taken back."""
        self.contents: dict[tuple[int, int], tuple[int, object]] = {}
        self.count = 0

    @initialize(name=st.sampled_from(sorted(GROUPS)))
    def set_up(self, name: str) -> None:
        self.reaches = GROUPS[name]
        self.num_blocks = 12 * len(self.reaches)
        self.manager = BlockManager(
            self.num_blocks, 2, enable_prefix_caching=True, reaches=self.reaches
        )
        # Tokens at one time in a step are at most five, but the first ones of a sequence.
        self.demand = BlockDemand(self.reaches, 2, 5)

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=12))
    def begin(self, tokens: list[int]) -> None:
        prefix = self.manager.find_prefix(tokens)
        free = self.manager.num_free_after(prefix)
        name = str(self.count)
        self.count += 1
        self.manager.open(name, prefix)
        assert self.manager.num_free_blocks == free
        self.tokens[name] = list(tokens)
        self.computed[name] = self.last_start[name] = min(len(prefix) * 2, len(tokens) - 1)
        self.check_contents(name)

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), num_tokens=st.integers(1, 5), new_token=st.integers(0, 1))
    def advance(self, data, num_tokens: int, new_token: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.tokens)))
        tokens, start = self.tokens[name], self.computed[name]
        if start == len(tokens):
            tokens.append(new_token)
        end = min(start + num_tokens, len(tokens))
        needed, free = self.manager.num_blocks_to_write(name, start, end), self.num_free()
        if needed > free:
            return
        for copy in self.manager.prepare_write(name, start, end):
            for offset in (0, 1, STATE):
                value = self.contents.get((copy.source, offset))
                if value is not None:
                    self.contents[copy.target, offset] = value
        assert self.num_free() == free - needed or (needed == 0 and self.num_free() > free)
        for group, table in enumerate(self.manager.tables(name)):
            first = self.reaches[group].first_seen(start) // 2
            assert table[:first] == [GIVEN_BACK] * first, "what no token reaches is still held"
            if self.reaches[group].is_state:
                self.contents[table[(end - 1) // 2], STATE] = (group, tuple(tokens[:end]))
                continue
            for index in range(start // 2, len(table)):
                owners = sum(
                    table[index] in each
                    for other in self.tokens
                    for each in self.manager.tables(other)
                )
                assert owners == 1, "a block about to be written has several owners"
            for position in range(start, end):
                self.contents[table[position // 2], position % 2] = (group, tokens[position])
        held = sum(block != GIVEN_BACK for table in self.manager.tables(name) for block in table)
        longest = 2 * len(self.manager.tables(name)[0])  # what was taken back included
        assert held <= self.demand.most_blocks(longest)
        self.computed[name], self.last_start[name] = end, start
        self.manager.commit(name, tokens, end)

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def fork(self, data) -> None:
        name = data.draw(st.sampled_from(sorted(self.tokens)))
        child = str(self.count)
        self.count += 1
        count = data.draw(st.integers(1, max(1, self.computed[name])))
        if count > self.computed[name] or not self.manager.can_fork(name, count):
            return
        free = self.manager.num_free_blocks
        self.manager.fork(name, child, count)
        assert self.manager.num_free_blocks == free
        held = sum(b != GIVEN_BACK for table in self.manager.tables(child) for b in table)
        assert held == self.manager.num_forked_blocks(name, count)
        # The last of these tokens is computed anew: it yields the child's own next one.
        self.tokens[child] = self.tokens[name][:count]
        self.computed[child] = self.last_start[child] = count - 1

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def take_back(self, data) -> None:
        """The last token turns out not to be kept: it is computed anew, and may be another one."""
        if self.manager.has_states:
            return  # they cannot
        name = data.draw(st.sampled_from(sorted(self.tokens)))
        if self.computed[name] <= self.last_start[name]:
            return
        self.computed[name] -= 1
        del self.tokens[name][self.computed[name] :]
        self.tokens[name].append(data.draw(st.integers(0, 1)))

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), is_broken=st.booleans())
    def end(self, data, is_broken: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.tokens)))
        if is_broken:
            self.manager.distrust(name)
        self.manager.close(name)
        del self.tokens[name], self.computed[name]

    def num_free(self) -> int:
        return self.manager.num_free_blocks

    def check_contents(self, name: str) -> None:
        """What the next token reaches is there, in every group."""
        for group, table in enumerate(self.manager.tables(name)):
            count = self.computed[name]
            if self.reaches[group].is_state:
                state = (group, tuple(self.tokens[name][:count]))
                assert count == 0 or self.contents[table[(count - 1) // 2], STATE] == state
                continue
            first = self.reaches[group].first_seen(count)
            for position in range(first, self.computed[name]):
                held = self.contents[table[position // 2], position % 2]
                assert held == (group, self.tokens[name][position])

    @invariant()
    def everything_adds_up(self) -> None:
        self.manager.check_integrity()
        for name in self.tokens:
            self.check_contents(name)

    def teardown(self) -> None:
        for name in list(self.tokens):
            self.manager.close(name)
        if hasattr(self, "manager"):
            self.manager.check_integrity()
            assert self.num_free() == self.num_blocks


TestRandomWorkload = RandomWorkload.TestCase
TestRandomWorkload.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
