"""From a plan to what the estimate of its speed rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exo_inference.planner.memory import offloaded_bytes
from exo_inference.planner.processor.lacks import why_not_estimated
from exo_inference.planner.speed.inputs import SpeedInputs

if TYPE_CHECKING:
    from exo_inference.planner.resolved_setting import Setting
    from exo_inference.planner.verdict import Plan


def _capacity_tokens(setting: Setting, sized: Plan) -> int:
    """Return the tokens that the cache holds; where it holds none, one request: no start has less."""
    if sized.kv_bytes_per_token:
        return sized.kv_capacity_tokens or sized.max_model_len
    return sized.max_model_len * setting.max_num_seqs


def speed_inputs(setting: Setting, sized: Plan) -> SpeedInputs:
    """Return what the estimate of a plan's speed rests on."""
    return SpeedInputs(
        model=setting.model,
        gpu=setting.gpu,
        ranks=setting.ranks,
        gpu_count=setting.gpu_count,
        weights_bytes=sized.weights_bytes_per_gpu,
        kv_bytes_per_token=sized.kv_bytes_per_token,
        capacity_tokens=_capacity_tokens(setting, sized),
        max_model_len=sized.max_model_len,
        max_num_seqs=setting.max_num_seqs,
        max_num_batched_tokens=setting.max_num_batched_tokens,
        dtype=setting.dtype,
        rules=setting.rules,
        cache_times=_cache_times(setting),
        offloaded_bytes=offloaded_bytes(
            setting.model, setting.ranks, setting.dtype_bytes, setting.padding, setting.offload
        ),
        is_eager=setting.is_eager,
        schedules_ahead=_schedules_ahead(setting),
        drafting=setting.drafting,
        why_not_estimated=why_not_estimated(setting),
        writes=setting.model.writes and setting.parameters.runner != "pooling",
    )


def _cache_times(setting: Setting) -> float:
    """Return how many times its bytes the cache takes to read: as many as it has in 16 bit, where it is made that."""
    return max(1.0, 2 / setting.kv.dtype_bytes) if setting.rules.dequantizes_cache else 1.0


def _schedules_ahead(setting: Setting) -> bool:
    asked = setting.parameters.schedules_ahead
    return setting.rules.schedules_ahead if asked is None else asked
