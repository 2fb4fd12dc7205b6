"""What a rank holds to talk to others beside NCCL: one component of a plan, and what of it was not read.

`planning.py` asks for it; NCCL's own buffers are measured (`overheads.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from exo_inference.planner.gpu_catalog import MIB
from exo_inference.planner.memory import Component
from exo_inference.planner.parallel.all_reduce import NOTHING, fused_all_reduce
from exo_inference.planner.parallel.all_to_all import (
    GATHERING,
    all_to_all_bytes,
    spreads_experts,
)

if TYPE_CHECKING:
    from exo_inference.planner.resolved_setting import Setting


def communication_component(setting: Setting) -> Component | None:
    """Return the buffers of the fused all-reduce and of all-to-all; None where there are none."""
    model, tokens = setting.model, setting.max_num_batched_tokens
    fused = NOTHING
    if not setting.is_eager and setting.gpu.vendor == "nvidia":
        fused = fused_all_reduce(
            model.hidden_size,
            setting.ranks,
            setting.rules,
            setting.gpu,
            tokens,
            setting.dtype_bytes,
        )
    moved = _moved(setting) or 0
    if not fused.num_bytes + moved:
        return None
    terms = []
    if fused.num_bytes:
        terms.append(f"fused all-reduce ({fused.num_bytes / MIB:.0f} MiB)")
    if moved:
        backend = setting.parameters.all2all_backend
        terms.append(f"--all2all-backend={backend} ({moved / MIB:.0f} MiB)")
    return Component(
        "communication",
        fused.num_bytes + moved,
        fused.low + moved,
        fused.high + moved,
        f"buffers as the source sizes them: {', '.join(terms)}",
    )


def gathered_ranks(setting: Setting) -> int:
    """Return of how many data-parallel ranks each expert layer gathers the tokens."""
    ranks = setting.ranks
    if setting.model.moe is None or ranks.data == 1:
        return 1
    is_spread = ranks.has_expert_parallel
    gathers = not is_spread or setting.parameters.all2all_backend in GATHERING
    return ranks.data if gathers else 1


def communication_notes(setting: Setting) -> tuple[str, ...]:
    """Return what a plan says of buffers that were not read."""
    if not spreads_experts(setting.model, setting.ranks) or _moved(setting) is not None:
        return ()
    backend = setting.parameters.all2all_backend
    return (
        f"the buffers of --all2all-backend={backend} are not sized, so less memory may be left",
    )


def _moved(setting: Setting) -> int | None:
    return all_to_all_bytes(
        setting.model, setting.ranks, setting.rules, setting.gpu, setting.parameters.all2all_backend,
        setting.max_num_batched_tokens, setting.dtype_bytes,
    )  # fmt: skip
