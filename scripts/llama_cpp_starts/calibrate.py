"""Sets what no source of llama.cpp says, from starts that printed it.

    python -m scripts.llama_cpp_starts.calibrate --starts STARTS.json [--check]

writes `planner/catalog/llama_cpp_overheads.json`, or says whether it would differ. Set are the starts of the calibration half
(`scripts/planner_halves.py`): CUDA's context is what a GPU holds beside llama.cpp's buffers. Fewer than five machines say little
of its spread: it may be half, or as much as llama.cpp itself leaves free of a GPU by default (`--fit-target`). How far printed weights and
compute buffers lie from predicted ones is the band around these; it is never narrower than the least one named here.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from exo_inference.planner.llama_cpp.constants import COMPUTE, CONTEXT, WEIGHTS
from exo_inference.planner.overheads import Measured
from scripts.calibrate_planner import set_constants
from scripts.llama_cpp_starts.predict import beside_buffers, compare

TARGET = Path(__file__).parents[2] / "exo_inference/planner/catalog/llama_cpp_overheads.json"
_QUANTITIES = {"weights": (WEIGHTS, 0.01), "compute buffers": (COMPUTE, 0.05)}
"""Names of constants, and the least band around what was predicted."""
_FEW = 5
_LEFT_FREE = 1024.0


def derive(cases: Sequence[Mapping[str, Any]]) -> dict[str, Measured]:
    """Return the constants with their bands."""
    taken = [size for _, size in beside_buffers(cases)]
    middle, low, high = statistics.median(taken), min(taken), max(taken)
    if len(taken) < _FEW:
        low, high = min(low, middle / 2), max(high, _LEFT_FREE)
    found = {CONTEXT: Measured(middle, low, high, len(taken))}
    compared = list(compare(cases))
    for quantity, (name, least) in _QUANTITIES.items():
        ratios = [each.printed / each.predicted for each in compared if each.quantity == quantity]
        low, high = min(1 - least, *ratios), max(1 + least, *ratios)
        middle = statistics.median(ratios)
        found[name] = Measured(round(middle, 3), round(low, 3), round(high, 3), len(ratios))
    return dict(sorted(found.items()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the constants, or with --check compare them with the file."""
    description = "Set what llama.cpp's source does not say on the calibration half of real starts."
    return set_constants("llama_cpp_starts.calibrate", description, TARGET, derive, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
