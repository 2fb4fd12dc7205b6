"""The starts behind published speeds: each of them ran, so its verdict should not be that it cannot.

`grade_planner.py` grades their verdicts beside those of starts with printed memory. They print no memory, and none
was refused: they tell of plans that are too pessimistic alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any


def ran_starts(figures: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one case of each start of vLLM whose release and flags its source states.

    Args:
        figures: published speeds; several may be of one start, whose case then has the first one's id.
    """
    found: dict[str, dict[str, Any]] = {}
    for each in figures:
        inferred = each.get("inferred") or ()
        if each["engine"] != "vllm" or "engine_version" in inferred or "flags" in inferred:
            continue
        facts = {
            name: each[name]
            for name in ("engine", "engine_version", "model", "gpu", "gpu_count", "flags")
        }
        ranks = each["flags"].get("tensor_parallel_size")
        others = [each["flags"].get(f"{kind}_parallel_size") or 1 for kind in ("pipeline", "data")]
        facts["tp"] = ranks or max(1, each["gpu_count"] // (others[0] * others[1]))
        key = json.dumps(facts, sort_keys=True)
        found.setdefault(
            key,
            {"id": each["id"], "source": each["source"], **facts, "observed": {"outcome": "fits"}},
        )
    return list(found.values())
