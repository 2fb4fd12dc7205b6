"""Count for how many architectures of vLLM's registry the named checkpoint is planned offline, and name the others.

    python -m scripts.vllm_catalogue.count_planned

`tests/planner/vllm_architectures.json` has the registry of one release and a checkpoint for each name, mostly that of vLLM's own
tests. The names are in the order of their hashes, by which the first forty were drawn for a test. `docs/concepts/planning.md`
says these numbers.
"""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

from exo_inference.errors import UsageError
from exo_inference.planner import EngineParameters, find_gpu, find_model, plan

REGISTRY: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "tests/planner/vllm_architectures.json").read_text("utf-8")
)
NAMES = sorted(
    {name for table in REGISTRY["tables"].values() for name in table},
    key=lambda name: sha256(name.encode()).hexdigest(),
)
FORTY = 40


def why_not_planned(name: str) -> str | None:
    """Return why the checkpoint of an architecture, named alone, has no plan; None where it has one."""
    checkpoint = REGISTRY["checkpoints"][name]
    try:
        model = find_model(checkpoint)
    except UsageError as exc:
        return str(exc)
    result = plan(model, find_gpu("B300"), 8, EngineParameters(tensor_parallel_size=8))
    return model.cannot_size or ("its plan is unknown" if result.verdict == "unknown" else None)


def forties() -> list[tuple[int, int]]:
    """Return of each forty in the order of hashes how many are planned, and how many there are."""
    parts = [NAMES[start : start + FORTY] for start in range(0, len(NAMES), FORTY)]
    return [(sum(why_not_planned(name) is None for name in part), len(part)) for part in parts]


def main() -> int:
    """Print the numbers, then what is not planned."""
    counted = forties()
    print(f"{sum(planned for planned, _ in counted)} of {len(NAMES)} architectures are planned")
    print("by forties:", ", ".join(f"{planned} of {size}" for planned, size in counted))
    for name in NAMES:
        reason = why_not_planned(name)
        if reason is not None:
            print(f"{name}: {reason}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
