"""What the log says about an interval of work."""

from __future__ import annotations

from exo_engine.core.request import EngineStats
from exo_engine.server.lifecycle import interval_fields


def test_interval_line_has_rates_and_load() -> None:
    last = EngineStats(prompt_tokens_total=100, generation_tokens_total=50)
    now = EngineStats(
        num_running=3,
        num_waiting=2,
        num_blocks=10,
        num_used_blocks=4,
        prompt_tokens_total=300,
        generation_tokens_total=90,
        prefix_cache_queries_total=200,
        prefix_cache_hits_total=50,
        preemptions_total=(1, 0, 0),
    )
    assert interval_fields(last, now, 10.0) == {
        "running": 3,
        "waiting": 2,
        "prompt_tokens_per_second": 20.0,
        "generation_tokens_per_second": 4.0,
        "kv_cache_usage": 0.4,
        "prefix_cache_hit_rate": 0.25,
        "preemptions": 1,
    }
