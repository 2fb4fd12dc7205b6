"""Whether the states of all requests of a step fit: one block each, in models with Mamba or linear attention.

`planning.py` asks for the problem, `changes.py` for the number to advise. Since 0.19.0 vLLM does not start where
`--max-num-seqs` is above the pool's blocks and it would record whole decode steps as CUDA graphs
(v1/worker/gpu_model_runner.py, `_check_and_update_cudagraph_mode`; pull request 38270): "max_num_seqs (1024)
exceeds available Mamba cache blocks (614)". Without such graphs requests wait for a block instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from exo_inference.planner.kv_cache import KvLayout
from exo_inference.planner.model.shapes import KvKind
from exo_inference.planner.problem import Problem

if TYPE_CHECKING:
    from exo_inference.planner.resolved_setting import Setting, Stage

CODE = "max-num-seqs"


def checks_states(setting: Setting, stages: Sequence[Stage]) -> bool:
    """Whether the engine compares `--max-num-seqs` with its blocks when it starts."""
    is_asked = setting.rules.checks_states and setting.gpu.vendor != "cpu" and not setting.is_eager
    has_states = any(stage.layout is not None and _has_states(stage.layout) for stage in stages)
    return is_asked and has_states and setting.parameters.records_full_graphs


def _has_states(layout: KvLayout) -> bool:
    return any(group.kind is KvKind.STATE for group in layout.groups)


def state_problems(
    num_seqs: int, low: int, middle: int, high: int, shorter: int = 0
) -> list[Problem]:
    """Compare the requests of a step with the blocks at hand: how many fit at worst, likely, at best.

    Args:
        num_seqs: the requests of a step.
        low: blocks at worst.
        middle: blocks at the middle of the estimate.
        high: blocks at best.
        shorter: the context that fits at worst, where that is less than the one asked for.
    """
    if num_seqs <= low:
        return []
    detail = (
        f"--max-num-seqs is {num_seqs}, and each of these requests needs a block for its states: {middle} blocks "
        f"({low} to {high}) fit"
    )
    step = f"set --max-num-seqs={low} or less" if low > 0 else "leave more memory to the cache"
    step += f", and --max-model-len={shorter} or less" if low > 0 and shorter > 0 else ""
    if num_seqs > high:
        return [Problem(CODE, f"{detail}, and vLLM does not start with fewer: {step}")]
    return [Problem(CODE, f"{detail}, and vLLM may not start: {step}", refuses=False)]
