"""Preparing and sampling a step takes as much Python for many sequences as for few.

Instructions of Python are counted, and operations of PyTorch: neither depends on the machine or its load.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pytest
from exo_engine import LLM, SamplingParams
from exo_engine.core import runner
from exo_engine.core.graphs import choice_graphs, decode_graphs
from exo_engine.kernels.triton.launch import Launch
from torch.utils._python_dispatch import TorchDispatchMode

from ..cpu_kernels import needs_kernels
from ..fake_gpu import FakeGpu, give_zeros

FEW, MANY = 4, 64
PROMPT_TOKENS, BLOCK_SIZE = 13, 16
PLAIN = SamplingParams(temperature=0.0, max_tokens=7, ignore_eos=True)
ADJUSTED = replace(
    PLAIN,
    min_tokens=7,
    logprobs=2,
    repetition_penalty=1.2,
    presence_penalty=0.1,
    frequency_penalty=0.1,
    logit_bias={3: 2.0},
    bad_words=((1, 2), (5,)),
    allowed_token_ids=tuple(range(2, 90)),
)
PARAMS = {
    "greedy": PLAIN,
    "adjusted": ADJUSTED,
    "top-k": replace(ADJUSTED, temperature=0.7, top_k=7, top_p=0.9, min_p=0.01),
    "top-p": replace(PLAIN, temperature=0.7, top_p=0.9),
    "drawn": replace(PLAIN, temperature=0.7),
}
ON_A_GPU = {"dtype": "float32", "attention_backend": "triton"}
DEVICES = {
    "torch": {"dtype": "float32", "attention_backend": "reference"},
    "kernels": {"dtype": "bfloat16"},
    "graphs": ON_A_GPU,
}
MOST_TO_HAND_OUT = 400
"""Instructions per sequence for its answer, which is an object: 230, and 340 with a report on three tokens."""

Found = TypeVar("Found")


class _Operations(TorchDispatchMode):
    """Counts what PyTorch is told to do."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.number += 1
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class Work:
    """What a part of a step took."""

    instructions: int
    operations: int

    @classmethod
    def of(cls, run: Callable[[], Found]) -> tuple[Found, Work]:
        """Run something under the eyes that a debugger has."""
        number = 0

        def count(frame: Any, event: str, arg: object) -> Any:
            nonlocal number
            number += event == "opcode"
            return count

        def begin(frame: Any, event: str, arg: object) -> Any:
            frame.f_trace_lines, frame.f_trace_opcodes = False, True
            return count

        with _Operations() as operations:
            before = sys.gettrace()
            gc.disable()  # what others left may have something to do when it is found
            sys.settrace(begin)
            try:
                found = run()
            finally:
                sys.settrace(before)
                gc.enable()
        return found, cls(number, operations.number)


@dataclass(frozen=True)
class Step:
    num_sequences: int
    is_of_single_tokens: bool
    prepared: Work
    """Inputs, model, and sampling."""
    handed_out: Work


@pytest.fixture
def steps(monkeypatch) -> list[Step]:
    """Steps that runners compute from now on."""
    found: list[Step] = []
    dispatch = runner.ModelRunner._dispatch

    def watched(self, frame):
        pending, prepared = Work.of(lambda: dispatch(self, frame))

        def wait():
            result, handed_out = Work.of(pending)
            is_single = bool((frame.num_tokens == 1).all())
            found.append(Step(len(frame.slots), is_single, prepared, handed_out))
            return result

        return wait

    monkeypatch.setattr(runner.ModelRunner, "_dispatch", watched)
    return found


def make(model, **options: Any) -> LLM:
    return LLM(
        model.path,
        device="cpu",
        max_num_seqs=MANY + 1,  # a view of all rows would be taken as it is
        max_num_batched_tokens=MANY * PROMPT_TOKENS,
        max_model_len=64,
        block_size=BLOCK_SIZE,
        enable_prefix_caching=False,
        **options,
    )


def single_tokens(llm: LLM, steps: list[Step], number: int, params: SamplingParams) -> list[Step]:
    """Return the steps behind prompts of one length; the first answer ends early, and others take its place."""
    prompts = [tuple((row + place) % 90 for place in range(PROMPT_TOKENS)) for row in range(number)]
    each = [replace(params, seed=row) for row in range(number)]
    each[0] = replace(each[0], max_tokens=3, min_tokens=0)
    steps.clear()
    llm.generate(prompts, each)
    return [step for step in steps if step.is_of_single_tokens]


@pytest.mark.parametrize(
    ("device", "asked"),
    [
        pytest.param(
            device,
            asked,
            marks=[
                *([needs_kernels] if device == "kernels" else []),
                *([pytest.mark.slow] if column else []),
            ],
        )
        for device in DEVICES
        for column, asked in enumerate(PARAMS)
    ],
)
def test_a_step_of_many_sequences_takes_no_more_python_than_one_of_few(
    tiny_model, steps, monkeypatch, device, asked
):
    if device == "graphs":
        monkeypatch.setattr(runner, "device_ops", lambda device: FakeGpu())
        monkeypatch.setattr(Launch, "run", give_zeros)
        # One size each, as a size is looked for.
        monkeypatch.setattr(decode_graphs, "graph_sizes", lambda most: [most])
        monkeypatch.setattr(choice_graphs, "row_counts", lambda most: [most])
    llm = make(tiny_model("qwen3-half-windowed"), **DEVICES[device])
    # The first time some parts of PyTorch are prepared.
    numbers = (FEW, FEW, MANY)
    _, few, many = (single_tokens(llm, steps, number, PARAMS[asked]) for number in numbers)
    # Block tables grow in one of the steps, and one begins without the sequence that has ended.
    assert [step.num_sequences for step in few] == [FEW] * 2 + [FEW - 1] * 4
    assert [step.num_sequences for step in many] == [MANY] * 2 + [MANY - 1] * 4
    for one, other in zip(few, many, strict=True):
        assert other.prepared.operations == one.prepared.operations
        more = other.prepared.instructions - one.prepared.instructions
        assert more < MANY - FEW, "a loop has several instructions for each sequence"
        assert other.handed_out.operations == one.handed_out.operations
        more = other.handed_out.instructions - one.handed_out.instructions
        assert 0 < more <= MOST_TO_HAND_OUT * (MANY - FEW)


def test_a_loop_over_sequences_is_seen(tiny_model, steps, monkeypatch):
    """The test above would notice a line that goes through a step's sequences in Python."""
    inputs = runner.Batch.inputs

    def with_a_loop(self, frame):
        assert all(slot >= 0 for slot in frame.slots)
        return inputs(self, frame)

    monkeypatch.setattr(runner.Batch, "inputs", with_a_loop)
    llm = make(tiny_model("qwen3-half-windowed"), **DEVICES["torch"])
    few, many = (single_tokens(llm, steps, number, PLAIN) for number in (FEW, MANY))
    for one, other in zip(few, many, strict=True):
        assert other.prepared.instructions - one.prepared.instructions >= MANY - FEW
