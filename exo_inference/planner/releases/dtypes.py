"""Which number types an engine's release computes a model in: tables, which `engine_rules.py` puts into the engine's row.

Read in all releases of vLLM from 0.6.6 to 0.33.0 (config.py, later config/model.py: `_FLOAT16_NOT_SUPPORTED_MODELS`,
`_resolve_auto_dtype`; platforms/cuda.py: `supported_dtypes`; `get_supported_act_dtypes` of each method of
model_executor/layers/quantization; https://pypi.org/project/vllm/#history). `resolved_setting.py` settles the type of a run by
`types_taken`, and `checks.py` calls `check_dtype`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from exo_inference.planner.problem import Problem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from exo_inference.planner.engine_rules import EngineRules, Version
    from exo_inference.planner.gpu_catalog import Gpu
    from exo_inference.planner.model.architecture import Architecture
    from exo_inference.planner.parameters import EngineParameters


@dataclass(frozen=True, slots=True)
class Dtypes:
    """Which types a release takes, apart from what a GPU computes.

    Attributes:
        replaces_bfloat16: `auto` takes another type where a GPU has no bfloat16; else the start fails.
        no_float16: since which release it refuses float16 for a model type; `auto` takes another type then.
        float32_methods: of ways of quantization that compute in float32, the first release that does, and the first one that
            does not any more; None: nothing is refused.
    """

    replaces_bfloat16: bool = True
    no_float16: Mapping[str, Version] = field(default_factory=dict)
    float32_methods: Mapping[str, tuple[Version | None, Version | None]] | None = None


NO_FLOAT16: Mapping[str, Version] = {
    "gemma2": (0, 9, 1), "gemma3": (0, 9, 1), "glm4": (0, 9, 1), "gemma3_text": (0, 10, 2),
}  # fmt: skip
"""They have "Numerical instability" in float16."""

FLOAT32_METHODS: Mapping[str, tuple[Version | None, Version | None]] = {
    "bitsandbytes": (None, (0, 28, 0)), "gguf": ((0, 8, 0), (0, 24, 0)), "torchao": ((0, 8, 4), None),
    "compressed-tensors": ((0, 10, 1), None),
}  # fmt: skip
"""With others vLLM stops: "torch.float32 is not supported for quantization method" (config/vllm.py,
`_get_quantization_config`)."""


def vllm_dtypes(version: Version) -> Dtypes:
    """Return what a release of vLLM takes."""
    return Dtypes(version >= (0, 9, 0), NO_FLOAT16, FLOAT32_METHODS)


SAME_TYPES: Mapping[str, str] = {"half": "float16", "float": "float32"}
"""Other names of types."""


def types_taken(model: Architecture, gpu: Gpu, rules: EngineRules) -> tuple[str, ...]:
    """Return the types that a run on a GPU may have, the one first that `auto` takes for want of the model's own."""
    found = ["bfloat16"] if gpu.supports("bf16") else []
    if not _refuses_float16(model, rules):
        found.append("float16")
    return (*found, "float32")


def _refuses_float16(model: Architecture, rules: EngineRules) -> bool:
    since = rules.dtypes.no_float16.get(model.model_type)
    return since is not None and rules.version >= since


def check_dtype(model: Architecture, gpu: Gpu, parameters: EngineParameters, run: str) -> list[Problem]:  # fmt: skip
    """Return why this release does not compute the model in a type.

    Args:
        model: as it is loaded.
        gpu: what computes it.
        parameters: the flags.
        run: the type that the flags come to.
    """
    rules, asked = parameters.rules, (parameters.dtype or "auto").lower()
    run, asked = SAME_TYPES.get(run, run), SAME_TYPES.get(asked, asked)
    if gpu.vendor == "cpu":
        return []
    if run == "float16" and _refuses_float16(model, rules):
        other = types_taken(model, gpu, rules)[0]
        detail = f"--dtype is {parameters.dtype}, which {rules.release} does not take for {model.model_type} models (numerical instability)"
        return [_refused(detail, other)]
    if asked == "bfloat16" and not gpu.supports("bf16"):
        other = types_taken(model, gpu, rules)[0]
        return [_refused(f"--dtype is bfloat16, which {gpu.name} does not compute", other)]
    is_kept = asked == "auto" and model.dtype == "bfloat16" and not rules.dtypes.replaces_bfloat16
    if is_kept and not gpu.supports("bf16"):
        detail = f"{model.name} is in bfloat16, which {gpu.name} does not compute, and {rules.release} takes no other type by itself"
        return [_refused(detail, "float16")]
    return _check_float32(model, parameters, run) or _tell_float32(model, gpu, parameters, run)


def _tell_float32(model: Architecture, gpu: Gpu, parameters: EngineParameters, run: str) -> list[Problem]:  # fmt: skip
    """Say why the weights are twice as large as they are stored."""
    is_forced = run == "float32" and (parameters.dtype or "auto").lower() == "auto"
    if not is_forced or not _refuses_float16(model, parameters.rules):
        return []
    detail = (
        f"{parameters.rules.release} computes it in float32, which takes twice the memory: {gpu.name} has no bfloat16, and "
        f"float16 is not taken for {model.model_type} models"
    )
    return [Problem("dtype", detail, refuses=False)]


def _check_float32(model: Architecture, parameters: EngineParameters, run: str) -> list[Problem]:
    """Check what quantized weights are multiplied in."""
    rules = parameters.rules
    method = model.quantization.method if model.quantization is not None else ""
    if run != "float32" or not method or rules.dtypes.float32_methods is None:
        return []
    since, gone = rules.dtypes.float32_methods.get(method, (rules.version, rules.version))
    if (since is None or rules.version >= since) and (gone is None or rules.version < gone):
        return []
    detail = f"{rules.release} does not compute {method} weights in float32"
    if parameters.dtype is not None and SAME_TYPES.get(parameters.dtype, parameters.dtype) == run:
        return [_refused(f"--dtype is {parameters.dtype}: {detail}", "auto")]
    why = f"the only type that it takes for {model.model_type} models on a GPU without bfloat16"
    return [Problem("dtype", f"{detail}, {why}: use a GPU that computes bfloat16")]


def _refused(detail: str, other: str) -> Problem:
    return Problem(
        "dtype", f"{detail}: set --dtype={other}", says_step=True, ways=(("dtype", other),)
    )
