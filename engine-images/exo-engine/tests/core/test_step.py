"""Frames and results cross to another process as they are, and a frame stays small."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from exo_engine.attention.layer import Reach
from exo_engine.core.block_manager import BlockManager
from exo_engine.core.request import EngineRequest, TokenLogprobs
from exo_engine.core.scheduling.scheduler import Scheduler, SchedulerLimits
from exo_engine.core.step import (
    AddedSequence,
    SequenceResult,
    StepFrame,
    StepResult,
    TableChange,
    ints,
    pack_frame,
    pack_result,
    unpack_frame,
    unpack_result,
)
from exo_engine.sampling_params import SamplingParams

EVERYTHING = SamplingParams(
    temperature=0.5,
    top_k=3,
    seed=2**64 - 1,
    max_tokens=9,
    stop_token_ids=(7, 8),
    logprobs=2,
    logit_bias={3: -1.5, 70_000: 100.0},
)


def plain(value):
    """A value whose arrays can be compared."""
    if dataclasses.is_dataclass(value) and not isinstance(value, SamplingParams):
        return {each.name: plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, tuple):
        return tuple(plain(each) for each in value)
    return value


def test_frame_arrives_as_it_was_sent():
    frame = StepFrame(
        slots=ints([3, 0]),
        starts=ints([0, 99]),
        num_tokens=ints([5, 3]),
        num_samples=np.array([0, 3], dtype=np.uint8),
        added=(AddedSequence(3, 17, ints([1, 2, 3]), 2, EVERYTHING, 2**64 - 1, 1),),
        removed=ints([4]),
        tables=TableChange(
            ints([0, 1]), ints([0, 6]), ints([2, 1]), (ints([9, 8, 7]), ints([4, 5, 6]))
        ),
        copies=(ints([1, 2]), ints([])),
        proposed=ints([5, 6]),
    )
    assert plain(unpack_frame(pack_frame(frame))) == plain(frame)


@pytest.mark.parametrize("counts", [[1, 1], [1, 0], [0, 0], [2, 1]])
def test_new_blocks_arrive_however_many_each_sequence_gets(counts):
    blocks = ints(range(sum(counts)))
    frame = StepFrame(
        slots=ints([3, 0]),
        starts=ints([7, 9]),
        num_tokens=ints([1, 1]),
        num_samples=np.ones(2, dtype=np.uint8),
        tables=TableChange(ints([0, 1]), ints([4, 6]), ints(counts), (blocks, blocks + 1)),
    )
    assert plain(unpack_frame(pack_frame(frame))) == plain(frame)


def test_result_arrives_as_it_was_sent():
    report = TokenLogprobs(4, -0.25, 2, ((1, -0.1), (4, -0.25)))
    result = StepResult(
        (
            SequenceResult(0, 5, (4, 9), (report, report)),
            SequenceResult(2, 6, is_valid=False),
            SequenceResult(1, 7, (), None, prompt_logprobs=(report,)),
            SequenceResult(3, 8, (4,), is_ended=True),
            SequenceResult(4, 9, fault="no token goes on"),
        )
    )
    assert unpack_result(pack_result(result)) == result


def frame_sizes(num_seqs: int, context: int, reaches: tuple[Reach, ...] = (Reach(),)) -> list[int]:
    """Bytes of the frames of a prefill and of 19 steps after it, in each of which everybody gets a block."""
    num_blocks = num_seqs * (context + 50) * len(reaches)
    blocks = BlockManager(num_blocks, 1, enable_prefix_caching=False, reaches=reaches)
    scheduler = Scheduler(SchedulerLimits(64, num_seqs * context, context + 50), blocks)
    for index in range(num_seqs):
        params = SamplingParams(max_tokens=40, logit_bias={1: 2.0}, stop_token_ids=(5, 6))
        scheduler.add(EngineRequest(str(index), (1,) * context, params))
    sizes = []
    for _ in range(20):
        step = scheduler.schedule()
        sizes.append(len(pack_frame(step.frame)))
        results = [
            SequenceResult(item.sequence.slot, item.epoch, (1,)) for item in step.items.values()
        ]
        scheduler.update(step, StepResult(tuple(results)))
    return sizes


@pytest.mark.parametrize(
    ("context", "num_seqs"),
    [
        *((10, 1), (10, 64), (1_000, 7), (30_000, 1)),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in ((10, 7), (1_000, 1), (1_000, 64), (30_000, 7), (30_000, 64))
        ),
    ],
)
def test_frame_of_a_decode_step_has_64_bytes_per_sequence_whatever_the_context(num_seqs, context):
    sizes = frame_sizes(num_seqs, context)
    assert sizes[0] > num_seqs * context * 4  # the prompts
    assert max(sizes[1:]) <= 64 * num_seqs


@pytest.mark.parametrize("num_seqs", [1, 2, 7, 64])
@pytest.mark.parametrize("num_windows", [1, 3, 5], ids="beside-{}-windows".format)
def test_so_has_that_of_a_model_with_a_table_per_group(num_seqs, num_windows):
    reaches = (Reach(), *[Reach(window=9)] * num_windows)
    assert max(frame_sizes(num_seqs, 100, reaches)[1:]) <= 64 * num_seqs
