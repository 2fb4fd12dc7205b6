"""A scheduler without a model: what makes one, and plays its steps with results that a test chooses."""

from __future__ import annotations

import random
from dataclasses import replace

from exo_engine.attention.layer import Reach
from exo_engine.core.block_manager import BlockManager
from exo_engine.core.request import EngineRequest
from exo_engine.core.scheduled import ScheduledStep
from exo_engine.core.scheduling.scheduler import Scheduler, SchedulerLimits
from exo_engine.core.step import SequenceResult, StepResult
from exo_engine.sampling_params import SamplingParams

EOS = 99


def make_scheduler(
    *,
    num_blocks: int = 16,
    block_size: int = 4,
    budget: int = 32,
    max_num_seqs: int = 8,
    caching: bool = False,
    reaches: tuple[Reach, ...] = (Reach(),),
    **limits,
) -> Scheduler:
    return Scheduler(
        SchedulerLimits(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            max_model_len=limits.pop("max_model_len", num_blocks * block_size),
            eos_token_ids=frozenset({EOS}),
            **limits,
        ),
        BlockManager(num_blocks, block_size, enable_prefix_caching=caching, reaches=reaches),
    )


def set_budget(scheduler: Scheduler, num_tokens: int) -> None:
    scheduler.limits = replace(scheduler.limits, max_num_batched_tokens=num_tokens)
    scheduler.budget.limits = scheduler.limits


def request(name: str, num_prompt: int, max_tokens: int | None = 4, *, priority=0, **params):
    prompt = tuple(random.Random(name).randrange(50) for _ in range(num_prompt))
    return EngineRequest(name, prompt, SamplingParams(max_tokens=max_tokens, **params), priority)


def answer(scheduled: ScheduledStep, *tokens: int, **others: tuple[int, ...] | None) -> StepResult:
    """Return what a runner would say: `tokens` for all that yield any; for `others` these, or nonsense."""
    results = []
    for name, item in scheduled.items.items():
        given = others.get(name, tokens)
        said = (given or ()) if item.num_samples else ()
        valid = given is not None
        results.append(SequenceResult(item.sequence.slot, item.epoch, said, is_valid=valid))
    return StepResult(tuple(results))


def step(scheduler: Scheduler, token: int = 1):
    """Make one step in which the model always says `token`; returns it with what came out."""
    scheduled = scheduler.schedule()
    scheduler.check_integrity()
    if not scheduled.items:
        return scheduled, []
    outputs = scheduler.update(scheduled, answer(scheduled, token))
    scheduler.check_integrity()
    return scheduled, outputs


def finish(scheduler: Scheduler, *, most_steps: int = 500) -> dict[str, list[int]]:
    tokens: dict[str, list[int]] = {}
    for _ in range(most_steps):
        if not scheduler.has_unfinished():
            return tokens
        scheduled, outputs = step(scheduler)
        assert scheduled.items or scheduled.preempted_ids, "a step that does nothing"
        assert scheduled.num_tokens <= scheduler.limits.max_num_batched_tokens
        assert len(scheduled.items) <= scheduler.limits.max_num_seqs
        for output in outputs:
            tokens.setdefault(output.request_id, []).extend(output.token_ids)
    raise AssertionError("did not finish")
