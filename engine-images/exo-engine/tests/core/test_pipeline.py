"""Steps that are scheduled ahead give what steps one after the other give, whatever happens meanwhile.

The executor here has no model and notices when it is told, or keeps, anything wrong: its cache holds
tokens, poisoned where nothing was written, and the next token is a function of all tokens that a
sequence's blocks hold, or of the states that they have made. A block that was given away too early, or a table that is wrong, changes the
answer. `expected` gives the same answers without slots, blocks and steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np
import pytest
from exo_engine.attention.layer import Reach
from exo_engine.core.batch import Batch
from exo_engine.core.block_manager import GIVEN_BACK, BlockManager
from exo_engine.core.pipeline import Pipeline
from exo_engine.core.request import EngineRequest
from exo_engine.core.scheduling.scheduler import Scheduler, SchedulerLimits
from exo_engine.core.step import SequenceResult, StepFrame, StepResult, pack_frame, unpack_frame
from exo_engine.errors import PromptTooLong
from exo_engine.sampling_params import SamplingParams

STOP = 3
_POISON = -7


def state_after(tokens: Sequence[int], state: int = 0) -> int:
    """What tokens make of the state before them."""
    for token in tokens:
        state = hash((state, token)) % 2**31
    return state


def next_token(tokens: Sequence[int], key: int, reaches: Sequence[Reach]) -> int:
    """What the model says after `tokens`, of which its groups of layers see as many as they reach."""
    last = len(tokens) - 1
    seen = tuple(
        (state_after(tokens),) if reach.is_state else tuple(tokens[reach.first_seen(last) :])
        for reach in reaches
    )
    return hash((seen, key)) % 23


def expected(
    request: EngineRequest, longest: int, reaches: Sequence[Reach] = (Reach(),)
) -> tuple[tuple[int, ...], str]:
    """The whole answer to a request, and why it ends."""
    tokens, params = request.prompt_token_ids, request.params
    num_prompt = len(tokens)
    most = params.max_tokens or longest - num_prompt
    while True:
        tokens = (*tokens, next_token(tokens, params.seed, reaches))
        num_output = len(tokens) - num_prompt
        if tokens[-1] == STOP and num_output >= params.min_tokens:
            return tokens[num_prompt:], "stop"
        if num_output == most:
            return tokens[num_prompt:], "length"


@dataclass
class _Sent:
    """Blocks that a step on its way has, by sequence (slot, epoch)."""

    blocks: dict[tuple[int, int], set[int]] = field(default_factory=dict)


class CheckingExecutor:
    """Computes on submission and tells when asked, as a device would."""

    def __init__(self, num_slots: int, blocks: BlockManager) -> None:
        self._reaches, self._size = blocks.reaches, blocks.block_size
        self._batch = Batch(num_slots, num_groups=len(self._reaches), block_size=self._size)
        self._cache = np.full((blocks.num_blocks, self._size), _POISON)
        self._chosen = np.zeros(num_slots, dtype=np.int64)
        self._sent: deque[tuple[_Sent, list[SequenceResult], list]] = deque()
        self.most_on_their_way = 0

    def submit(self, frame: StepFrame) -> None:
        frame = unpack_frame(pack_frame(frame))
        self._batch.apply(frame)
        for source, target in frame.copies[0].reshape(-1, 2).tolist():
            self._cache[target] = self._cache[source]
        inputs = self._batch.inputs(frame)
        token_ids = inputs.token_ids.copy()
        token_ids[inputs.unknown_rows] = self._chosen[inputs.unknown_slots]
        sent, results, fills = _Sent(), [], []
        for row, place in enumerate(inputs.order):
            slot, context = int(inputs.slots[row]), int(inputs.context_lens[row])
            epoch = int(self._batch.epochs[slot])
            first, end = inputs.query_starts[row : row + 2]
            new, start = token_ids[first:end].tolist(), context - int(end - first)
            tables = [table[row, : -(-context // self._size)] for table in inputs.block_tables]
            self._check_blocks((slot, epoch), tables, start, context)
            sent.blocks[slot, epoch] = self._seen_blocks(tables, start)
            chosen = self._compute(slot, tables, start, new, int(frame.num_samples[place]))
            fills += [(slot, epoch, known, token) for known, token in chosen]
            results.append(SequenceResult(slot, epoch, tuple(token for _, token in chosen)))
        in_order = [results[row] for row in np.argsort(inputs.order)]
        self._sent.append((sent, in_order, fills))
        self.most_on_their_way = max(self.most_on_their_way, len(self._sent))

    def result(self) -> StepResult:
        _, results, fills = self._sent.popleft()
        for fill in fills:
            self._batch.fill(*np.array([fill]).T)
        return StepResult(tuple(results))

    def close(self) -> None:
        self._sent.clear()

    def _seen_blocks(self, tables: list[np.ndarray], start: int) -> set[int]:
        """Blocks that tokens from `start` on read or write."""
        return {
            block
            for reach, table in zip(self._reaches, tables, strict=True)
            for block in table[reach.first_seen(start) // self._size :].tolist()
        } - {GIVEN_BACK}

    def _check_blocks(
        self, owner: tuple[int, int], tables: list[np.ndarray], start: int, context: int
    ) -> None:
        """Nothing is written where another sequence of a step on its way may read or write."""
        written = {
            block
            for reach, table in zip(self._reaches, tables, strict=True)
            for block in table[(context - 1 if reach.is_state else start) // self._size :].tolist()
        }
        for sent, _, _ in self._sent:
            for other, blocks in sent.blocks.items():
                assert owner == other or not blocks & written

    def _compute(
        self, slot: int, tables: list[np.ndarray], start: int, new: list[int], num_samples: int
    ) -> list[tuple[int, int]]:
        """Write tokens, then choose; return each chosen one with its place in the sequence."""
        context = start + len(new)
        for reach, table in zip(self._reaches, tables, strict=True):
            if reach.is_state:
                state = int(self._cache[table[(start - 1) // self._size], 0]) if start else 0
                self._cache[table[(context - 1) // self._size], 0] = state_after(new, state)
                continue
            for place, token in enumerate(new, start):
                self._cache[table[place // self._size], place % self._size] = token
        held = [self._cache[table].ravel()[:context].tolist() for table in tables]
        for reach, tokens in zip(self._reaches, held, strict=True):
            assert reach.is_state or _POISON not in tokens[reach.first_seen(start) :]
        chosen: list[tuple[int, int]] = []
        for length in range(context - num_samples + 1, context + 1):
            seen = tuple(
                (int(self._cache[table[(length - 1) // self._size], 0]),)
                if reach.is_state
                else tuple(tokens[reach.first_seen(length - 1) : length])
                for reach, table, tokens in zip(self._reaches, tables, held, strict=True)
            )
            token = hash((seen, self._batch.sampling_keys[slot])) % 23
            chosen.append((length, token))
            self._chosen[slot] = token
            self._batch.expect(np.array([slot]))
            if length < context and held[0][length] != token:
                break
        return chosen


def make(
    *,
    depth: int = 2,
    num_blocks: int = 32,
    block_size: int = 4,
    max_num_seqs: int = 8,
    budget: int = 32,
    caching: bool = False,
    reaches: Sequence[Reach] = (Reach(),),
    **limits,
) -> Pipeline:
    blocks = BlockManager(num_blocks, block_size, enable_prefix_caching=caching, reaches=reaches)
    scheduler = Scheduler(
        SchedulerLimits(
            max_num_seqs,
            budget,
            num_blocks * block_size,
            eos_token_ids=frozenset({STOP}),
            **limits,
        ),
        blocks,
    )
    executor = CheckingExecutor(max_num_seqs, blocks)
    return Pipeline(scheduler, executor, depth)


def request(name: str, num_prompt: int, max_tokens: int = 6, seed: int = 0, **params):
    prompt = tuple(Random(f"{name}").randrange(50) for _ in range(num_prompt))
    return EngineRequest(name, prompt, SamplingParams(max_tokens=max_tokens, seed=seed, **params))


def finish(pipeline: Pipeline) -> dict[str, tuple[tuple[int, ...], str | None]]:
    answers: dict[str, tuple[tuple[int, ...], str | None]] = {}
    for _ in range(1000):
        if not pipeline.has_unfinished():
            assert pipeline.scheduler.stats().num_used_blocks == 0
            return answers
        for output in pipeline.step():
            tokens, _ = answers.get(output.request_id, ((), None))
            answers[output.request_id] = (*tokens, *output.token_ids), output.finish_reason
        pipeline.scheduler.check_integrity()
    raise AssertionError("did not finish")


def random_requests(numbers: Random) -> list[EngineRequest]:
    """Few distinct tokens and beginnings, so that prefixes are shared all the time."""
    requests: list[EngineRequest] = []
    for index in range(numbers.randint(1, 9)):
        begin = (numbers.randrange(2),) * numbers.randint(1, 14)
        rest = tuple(numbers.randrange(3) for _ in range(numbers.randint(0, 6)))
        prompt, leader = begin + rest, None
        if requests and numbers.random() < 0.3:
            prompt, leader = requests[-1].prompt_token_ids, requests[-1].request_id
        params = SamplingParams(
            max_tokens=numbers.randint(1, 12),
            seed=numbers.randrange(3),
            min_tokens=numbers.choice([0, 1]),
        )
        requests.append(
            EngineRequest(str(index), prompt, params, numbers.randrange(3), sibling_of=leader)
        )
    return requests[::-1]


def run_random_schedule(seed: int) -> Pipeline:
    """Random sizes, arrivals, aborts and guesses; every answer must be the expected one."""
    numbers = Random(seed)
    num_blocks, block_size = numbers.randint(4, 14), numbers.randint(1, 4)
    budget = numbers.randint(1, 16)
    span = numbers.randint(1, 9)
    window, chunk, state = Reach(window=span), Reach(chunk=span), Reach(is_state=True)
    reaches = numbers.choice(
        [(Reach(),), (Reach(),), (window,), (Reach(), window), (Reach(), chunk), (Reach(), state)]
    )
    pipeline = make(
        depth=numbers.choice([1, 2, 2, 2, 3]),
        num_blocks=num_blocks,
        block_size=block_size,
        max_num_seqs=min(budget, numbers.randint(1, 6)),
        budget=budget,
        caching=numbers.random() < 0.6,
        reaches=reaches,
        policy=numbers.choice(["fcfs", "priority"]),
    )
    longest = num_blocks * block_size
    coming = random_requests(numbers)
    wanted: dict[str, tuple[tuple[int, ...], str]] = {}
    found: dict[str, tuple[int, ...]] = {}
    ended: dict[str, str | None] = {}
    for _ in range(2000):
        while coming and numbers.random() < 0.4:
            arrival = coming.pop()
            try:
                pipeline.scheduler.add(arrival)
            except PromptTooLong:
                continue
            wanted[arrival.request_id] = expected(arrival, longest, reaches)
            found[arrival.request_id] = ()
        if not coming and not pipeline.has_unfinished():
            break
        for name in sorted(wanted.keys() - ended.keys()):
            if numbers.random() < 0.02:
                pipeline.abort([name])
                ended[name] = "abort"
            elif numbers.random() < 0.3:
                right = wanted[name][0][len(found[name]) :]
                wrong = tuple(numbers.randrange(23) for _ in range(2))
                pipeline.scheduler.propose(name, (*right[: numbers.randrange(3)], *wrong))
        for output in pipeline.step():
            assert output.request_id not in ended, "an answer after the end"
            found[output.request_id] += output.token_ids
            if output.finish_reason is not None:
                ended[output.request_id] = output.finish_reason
        pipeline.scheduler.check_integrity()
    assert ended.keys() == wanted.keys()
    for name, (tokens, reason) in wanted.items():
        if ended[name] == "abort":
            assert tokens[: len(found[name])] == found[name]
        else:
            assert (found[name], ended[name]) == (tokens, reason)
    assert pipeline.scheduler.stats().num_used_blocks == 0
    return pipeline


@pytest.mark.parametrize(
    "part", [0, 1, *(pytest.param(part, marks=pytest.mark.slow) for part in range(2, 10))]
)
def test_a_thousand_random_schedules_give_the_expected_answers(part):
    pipelines = [run_random_schedule(100 * part + number) for number in range(100)]
    assert sum(p.scheduler.stats().num_preemptions_total for p in pipelines) > 10
    assert sum(p.scheduler.stats().prefix_cache_hits_total for p in pipelines) > 20
    assert sum(p.executor.most_on_their_way >= 2 for p in pipelines) > 40


def test_next_step_is_submitted_before_the_result_of_the_one_before_is_asked_for():
    pipeline = make()
    events = []
    submit, result = pipeline.executor.submit, pipeline.executor.result
    pipeline.executor.submit = lambda frame: (events.append("submit"), submit(frame))[1]
    pipeline.executor.result = lambda: (events.append("result"), result())[1]
    pipeline.scheduler.add(request("a", 5, 4, seed=1))
    finish(pipeline)
    assert events == ["submit", "submit", "result"] + ["submit", "result"] * 2 + ["result"]


def test_tokens_that_must_come_are_not_waited_for_twice():
    """Nothing is computed behind the last token that a request may have."""
    pipeline = make()
    pipeline.scheduler.add(request("a", 5, 4, seed=1))
    assert len(finish(pipeline)["a"][0]) == 4
    assert pipeline.scheduler.stats().num_steps_total == 4


def test_blocks_of_an_aborted_request_are_kept_until_its_steps_are_done():
    pipeline = make()
    for name in ("a", "b"):
        pipeline.scheduler.add(request(name, 9, 20, seed=1))
    pipeline.step()
    assert pipeline.scheduler.num_steps_on_their_way == 1
    used = pipeline.scheduler.stats().num_used_blocks
    pipeline.abort(["a"])
    pipeline.scheduler.check_integrity()
    assert pipeline.scheduler.stats().num_used_blocks == used
    outputs = pipeline.step()
    assert {output.request_id for output in outputs} == {"b"}
    assert pipeline.scheduler.stats().num_used_blocks < used


def test_id_of_an_aborted_request_can_be_taken_again_while_its_steps_run():
    pipeline = make()
    again = request("a", 9, 5, seed=2)
    pipeline.scheduler.add(request("a", 9, 20, seed=1))
    pipeline.scheduler.add(request("b", 2, 20, seed=1))
    pipeline.step()
    pipeline.abort(["a"])
    pipeline.scheduler.add(again)
    assert finish(pipeline)["a"] == expected(again, 128)


def test_abort_of_the_last_request_leaves_nothing_behind():
    pipeline = make()
    pipeline.scheduler.add(request("a", 9, 20, seed=1))
    pipeline.step()
    pipeline.abort(["a"])
    assert not pipeline.has_unfinished()
    assert pipeline.scheduler.stats().num_used_blocks == 0


def test_nobody_is_preempted_while_a_step_is_on_its_way():
    pipeline = make(num_blocks=4, block_size=2, max_num_seqs=2)
    preempt = pipeline.scheduler._preempt

    def watched(*args):
        assert pipeline.scheduler.num_steps_on_their_way == 0
        preempt(*args)

    pipeline.scheduler._preempt = watched
    requests = [request(name, 3, 5, seed=seed) for name, seed in (("a", 1), ("b", 2))]
    for each in requests:
        pipeline.scheduler.add(each)
    answers = finish(pipeline)
    assert pipeline.scheduler.stats().num_preemptions_total > 0
    assert answers == {each.request_id: expected(each, 8) for each in requests}


def test_failed_step_gives_up_all_that_are_on_their_way():
    pipeline = make()
    pipeline.scheduler.add(request("a", 5, 9, seed=1))
    pipeline.step()
    result = pipeline.executor.result

    def fail():
        result()
        raise RuntimeError("broken")

    pipeline.executor.result = fail
    with pytest.raises(RuntimeError, match="broken"):
        pipeline.step()
    pipeline.executor.result = result
    pipeline.scheduler.check_integrity()
    assert pipeline.scheduler.num_steps_on_their_way == 0
    assert pipeline.scheduler.stats().num_used_blocks == 0
    finish(pipeline)
