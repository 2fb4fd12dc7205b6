"""Which quantized checkpoints an engine does not split over tensor-parallel GPUs: tables, which `engine_rules.py` puts into rows.

Only stored weights are meant: plain ones are split before an engine quantizes them while loading. `checks.py` calls
`check_split`, `changes.py` offers pipeline stages instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from exo_inference.planner.problem import Problem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from exo_inference.planner.engine_rules import EngineRules, Version
    from exo_inference.planner.memory import Ranks
    from exo_inference.planner.model.architecture import Architecture


@dataclass(frozen=True, slots=True)
class Unsplit:
    """Since when an engine refuses a method's checkpoints on tensor-parallel GPUs.

    Attributes:
        source: where that is from.
        gone: the first release that splits them; None: no release that is known does.
    """

    source: str
    gone: Version | None = None


VLLM_UNSPLIT: Mapping[str, Unsplit] = {
    "bitsandbytes": Unsplit("https://github.com/vllm-project/vllm/pull/8434"),
}
"""In all releases from 0.6.6, the oldest that is planned, to 0.27, the last with this method: the states of what is quantized
belong to whole weights (`_verify_model_compatibility` of model_executor/model_loader/bitsandbytes_loader.py). With
https://github.com/vllm-project/vllm/issues/13297 it was told of 0.7, and no later change took the refusal out."""

SGLANG_UNSPLIT: Mapping[str, Unsplit] = {
    "bitsandbytes": Unsplit(
        "https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/model_loader/loader.py"
    ),
}
"""Its loader of this method came from vLLM with the refusal, and has kept it."""


def is_unsplit(model: Architecture, rules: EngineRules) -> bool:
    """Whether the engine loads this checkpoint on tensor-parallel GPUs in no form.

    Args:
        model: as the checkpoint is, before `--quantization` is applied.
        rules: the engine's, in its release.
    """
    method = model.quantization.method if model.quantization is not None else ""
    row = rules.unsplit.get(method)
    return row is not None and (row.gone is None or rules.version < row.gone)


def check_split(model: Architecture, ranks: Ranks, rules: EngineRules) -> list[Problem]:
    """Return why the engine does not load this checkpoint on so many tensor-parallel GPUs."""
    if ranks.tensor == 1 or not is_unsplit(model, rules):
        return []
    method = model.quantization.method if model.quantization is not None else ""
    stages = ranks.tensor * ranks.pipeline
    tensor, pipeline = rules.flag("tensor-parallel-size"), rules.flag("pipeline-parallel-size")
    detail = (
        f"{rules.title} does not split {method} weights as they are stored over {ranks.tensor} tensor-parallel GPUs: set "
        f"{pipeline}={stages} with {tensor}=1, or use one GPU"
    )
    return [Problem("tensor-parallel", detail)]
