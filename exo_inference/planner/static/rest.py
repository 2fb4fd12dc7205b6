"""What an engine with a static share has beside weights and cache: a table of requests, and room for steps and graphs.

The table is arithmetic, and a start fails without room for it. What steps and graphs take is not known: where little is left
for them the plan is tight. `planning.py` asks. All sizes are bytes on one GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from exo_inference.planner import state_blocks
from exo_inference.planner.gpu_catalog import GIB, MIB
from exo_inference.planner.kv_cache import state_page_bytes
from exo_inference.planner.model.shapes import KvKind
from exo_inference.planner.overheads import GRAPHS_CODE
from exo_inference.planner.problem import Problem
from exo_inference.planner.static.cache_types import is_eight_bit_unasked

if TYPE_CHECKING:
    from exo_inference.planner.resolved_setting import Setting, Stage


def num_states(setting: Setting, stage: Stage, available: int) -> int | None:
    """Return how many requests' states a stage keeps in so many bytes of its pools; None without any."""
    sizes = [
        state_page_bytes(spec, setting.kv) for spec in stage.specs if spec.kind is KvKind.STATE
    ]
    if not sizes:
        return None
    share, static = setting.state_share, setting.rules.static_share
    spare = static.spare_states if static is not None else 0
    return max(0, int(max(0, available) * share / (1 + share) // sum(sizes)) - spare)


def _states_each(setting: Setting) -> int:
    static = setting.rules.static_share
    return static.states_each(setting.model) if static is not None else 1


def most_requests(setting: Setting, stage: Stage) -> int:
    """Return how many requests run at once at most (`_resolve_max_num_reqs`, 0.5.12 to 0.5.18)."""
    tokens = max(0, stage.available // stage.layout.bytes_per_block if stage.layout else 0)
    most = setting.parameters.max_num_seqs
    if most is None:
        most = max(2048, min(4096, int(tokens / max(1, setting.max_model_len) * 512)))
    states = num_states(setting, stage, stage.available)
    return min(most, tokens // 2, tokens if states is None else states // _states_each(setting))


def table_bytes(setting: Setting, stage: Stage) -> int:
    """Return what the table takes that says where each request's tokens are: 4 bytes for each of its context."""
    return 4 * (most_requests(setting, stage) + 1) * (setting.max_model_len + 4)


_LEAST_REST = 512 * MIB
"""What attention's workspaces take after the cache (FlashInfer's: 384 to 512 MiB)."""
_LEAST_SHARE = 1 / 3
"""Of what the engine's formula leaves to steps and graphs, which starts have gone on with: a third of 4.7 GiB on an H100."""


def rest_problems(setting: Setting, stage: Stage) -> list[Problem]:
    """Say where too little is left beside weights and cache, or too little of it for states."""
    static, flag = setting.rules.static_share, setting.rules.flag
    if static is None or stage.available <= 0:
        return []
    states, surely = (num_states(setting, stage, size) for size in (stage.high, stage.low))
    each = _states_each(setting)
    if states is not None and surely is not None and surely < each:
        detail = f"the pool for states holds {states} at best, one running request takes {each}"
        return [Problem(state_blocks.CODE, detail, refuses=states < each)]
    windows = _window_problems(setting, stage)
    if windows:
        return windows
    share, before = setting.memory_share, stage.components[1].num_bytes
    rest = (1 - share) * (setting.found_bytes - before / max(share, 0.01))
    table = table_bytes(setting, stage)
    requests = most_requests(setting, stage)
    named = f"the table of {requests:,} requests of {setting.max_model_len:,} tokens takes {table / GIB:.2f} GiB"
    beside = f"{rest / GIB:.2f} GiB of each GPU are left beside {flag('gpu-memory-utilization')} {share:.3g}"
    step = f"lower it, {flag('max-model-len')} or {flag('max-num-seqs')}"
    if table > rest:
        return [Problem("memory", f"{named}, {beside}: {step}")]
    ranks, tokens = setting.ranks, setting.max_num_batched_tokens
    usual = static.rest(setting.model, setting.gpu, ranks.tensor, ranks.pipeline, tokens) * MIB
    if rest - table >= max(_LEAST_REST, _LEAST_SHARE * usual):
        return []
    detail = f"{beside}, and {named} of them: steps and graphs may run out of memory; {step}"
    return [Problem(GRAPHS_CODE, detail, refuses=False)]


def _window_problems(setting: Setting, stage: Stage) -> list[Problem]:
    """Say where the pool for windows holds none (srt/model_executor/pool_configurator.py `_solve_pool_sizes`, since 0.5.16)."""
    static, layout, kv = setting.rules.static_share, stage.layout, setting.kv
    windows = [spec.window for spec in stage.specs if spec.kind in (KvKind.SLIDING, KvKind.CHUNKED)]
    if static is None or not static.checks_windows or layout is None or not windows:
        return []
    if kv.window_share == 1:
        return []
    least, page = max(windows) + kv.block_size, kv.block_size
    most, surely = (
        int(max(0, size) // layout.bytes_per_block * page * kv.window_share) // page * page
        for size in (stage.high, stage.low)
    )
    if surely > least:
        return []
    detail = f"the pool for windows holds {most:,} tokens at best, one request takes more than {least:,}, a window and a page"
    return [Problem(state_blocks.CODE, detail, refuses=most <= least)]


def type_notes(setting: Setting) -> tuple[str, ...]:
    """Say where the cache has a type that no flag asked for."""
    if not is_eight_bit_unasked(setting.model, setting.gpu, setting.parameters):
        return ()
    flag = setting.rules.flag("kv-cache-dtype")
    return (
        f"the cache is in fp8_e4m3, {setting.rules.title}'s default for this model and GPU; {flag}=bfloat16 is another",
    )


def rest_note(setting: Setting) -> str:
    """Say what a plan leaves out."""
    rest = 1 - setting.memory_share
    return (
        f"steps, captured graphs and a table of requests share the other {rest:.1%} of each GPU; what the first two take "
        f"is not sized, nor is {setting.rules.title}'s speed estimated"
    )
