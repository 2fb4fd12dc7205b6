"""Which quantized checkpoints a release of vLLM reads by itself, by the method that config.json names, and what it quantizes itself.

Read in model_executor/layers/quantization of all releases from 0.6.6 to 0.33.0 (https://pypi.org/project/vllm/#history): the
methods in its `__init__.py`, which `tests/planner/vllm_classes.json` has, the formats of each in compressed_tensors/ and modelopt.py. A method
that moved out of vLLM is a plug-in's since. What a GPU needs for a format is not known here. `checks.py` calls `check_release`.
"""

from __future__ import annotations

from collections.abc import Mapping

from exo_inference.planner.engine_rules import EngineRules, Version
from exo_inference.planner.model.architecture import Architecture
from exo_inference.planner.parameters import EngineParameters
from exo_inference.planner.problem import Problem

SINCE: Mapping[str, Version] = {
    "modelopt_fp4": (0, 9, 0), "mxfp4": (0, 10, 1), "modelopt_mxfp8": (0, 16, 0), "modelopt_mixed": (0, 17, 0),
}  # fmt: skip
"""First releases of methods that 0.6.6 did not have. NVFP4 of ModelOpt was called `nvfp4` in 0.8, for GPUs that 0.8 has no kernels for."""

NAMED_SINCE: Mapping[str, Version] = {"nvfp4": (0, 9, 0), "mxfp8": (0, 16, 0)}
"""The same of checkpoints of which the name alone is known: the first release with any method for such weights."""

_COMPRESSED = "compressed-tensors"
FORMATS: Mapping[tuple[str, str], Version] = {
    (_COMPRESSED, "nvfp4"): (0, 9, 0), (_COMPRESSED, "fp8-block"): (0, 11, 0), (_COMPRESSED, "mxfp4"): (0, 14, 0),
}  # fmt: skip
"""First releases that read a format of weights by a method that had others before. NVFP4 was 16 bit wide in what it computes with at
first; that of both sides is in 0.9.1."""

EXPERTS: Mapping[tuple[str, str], Version] = {
    (_COMPRESSED, "int8"): (0, 9, 0), (_COMPRESSED, "nvfp4"): (0, 9, 2), (_COMPRESSED, "mxfp4"): (0, 15, 0), ("modelopt", "fp8"): (0, 10, 0),
}  # fmt: skip
"""The same of routed experts, which have classes of their own."""

ONLINE_SINCE: Mapping[str, Version] = {
    "mxfp8": (0, 19, 0), "fp8_per_tensor": (0, 20, 0), "fp8_per_block": (0, 20, 0), "int8_per_channel_weight_only": (0, 20, 0),
    "fp8_per_channel": (0, 24, 0),
}  # fmt: skip
"""First releases that quantize plain weights so while loading."""

GONE: Mapping[str, Version] = {
    "hqq": (0, 15, 0), "gguf": (0, 24, 0), "bitsandbytes": (0, 28, 0),
}  # fmt: skip
"""First releases without a method that 0.6.6 had."""

DEPRECATED: Mapping[str, Version] = {"fbgemm_fp8": (0, 14, 0)}
"""Methods that are refused without `--allow-deprecated-quantization`, and since when
(`DEPRECATED_QUANTIZATION_METHODS` in model_executor/layers/quantization/__init__.py)."""

_PLUGINS: Mapping[str, str] = {"gguf": "vllm-gguf-plugin", "bitsandbytes": "vllm-bnb-plugin"}
"""Where a method went that is gone (https://github.com/vllm-project/vllm/pull/43529: bitsandbytes)."""


def check_release(model: Architecture, parameters: EngineParameters) -> list[Problem]:
    """Return why this release does not read the checkpoint, or quantizes nothing by the method that is asked for.

    Args:
        model: as the checkpoint is, before `--quantization` is applied.
        parameters: the flags; the release is theirs.
    """
    rules = parameters.rules
    if not rules.quantizes:
        return []
    asked = (parameters.quantization or "").lower()
    method = asked if model.quantization is None else model.quantization.method
    what = (
        f"{model.name} is {method}"
        if model.quantization is not None
        else f"--quantization is {method}"
    )
    reason = _reason(method, rules) or _reason_of_format(model, method, rules)
    if model.quantization is None:
        reason = reason or _too_early(ONLINE_SINCE.get(method), rules)
    if reason is not None:
        return [Problem("quantization", f"{what}, {reason}")]
    if not lacks_allowance(model, parameters):
        return []
    detail = f"{what}, which {rules.release} has deprecated and refuses: add --allow-deprecated-quantization"
    return [Problem("quantization", detail)]


def lacks_allowance(model: Architecture, parameters: EngineParameters) -> bool:
    """Whether a release refuses a deprecated method as long as no flag allows it."""
    rules = parameters.rules
    method = (parameters.quantization or "").lower()
    if model.quantization is not None:
        method = model.quantization.method
    deprecated = DEPRECATED.get(method)
    is_refused = deprecated is not None and rules.version >= deprecated
    return is_refused and not parameters.allow_deprecated_quantization


def _reason(method: str, rules: EngineRules) -> str | None:
    """Return what is wrong with a method in a release, and the next step; None where nothing is."""
    early, gone = _too_early(SINCE.get(method), rules), GONE.get(method)
    if early is not None or gone is None or rules.version < gone:
        return early
    first = ".".join(map(str, gone))
    step = f"use a release before {first}, or another checkpoint"
    if method in _PLUGINS:
        step = f"install {_PLUGINS[method]} in the image, or {step}"
    return f"which {rules.release} no longer reads: {step}"


def _reason_of_format(model: Architecture, method: str, rules: EngineRules) -> str | None:
    """Return the same of the formats that a checkpoint has by its method."""
    if model.quantization is None:
        return None
    names = {form.name for form in model.quantization.formats()}
    experts = {
        weight.format.name
        for layer, _ in model.layer_counts
        for weight in layer.weights
        if weight.part == "routed_experts" and weight.format is not None
    }
    known = [
        NAMED_SINCE.get(method),
        *(FORMATS.get((method, name)) for name in names),
        *(EXPERTS.get((method, name)) for name in experts),
    ]
    latest = max((since for since in known if since is not None), default=None)
    early = _too_early(latest, rules)
    shown = "" if method in names else f"with weights in {', '.join(sorted(names))}, "
    return None if early is None else shown + early


def _too_early(since: Version | None, rules: EngineRules) -> str | None:
    if since is None or rules.version >= since:
        return None
    return f"which {rules.release} does not read yet: use {'.'.join(map(str, since))} or later"
