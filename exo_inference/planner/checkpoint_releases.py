"""Which models and quantized checkpoints a release of an engine reads by itself, by the type and method that config.json names.

`planning.py` calls `check_class` and `check_own_code`, which go by the engine's row of rules; `checks.py` calls `check_release`. The tables
here are those of the choices of vLLM's `--quantization`, release by release (`exo_inference/engines/catalog/vllm.json`,
which a test holds them to); a method that moved out of vLLM is a plug-in's since. What a GPU needs for a format is not
known here.
"""

from __future__ import annotations

from collections.abc import Mapping

from exo_inference.planner.engine_rules import EngineRules, Version
from exo_inference.planner.model.architecture import Architecture
from exo_inference.planner.model.families import NO_RELEASE, SERVED_BY
from exo_inference.planner.parameters import EngineParameters
from exo_inference.planner.problem import Problem

SINCE: Mapping[str, Version] = {
    "modelopt_mxfp8": (0, 16, 0), "modelopt_mixed": (0, 17, 0),
}  # fmt: skip
"""First listed releases of methods that 0.12.0, the oldest listed one, did not have."""

GONE: Mapping[str, Version] = {
    "hqq": (0, 15, 1), "gguf": (0, 24, 0), "bitsandbytes": (0, 28, 0),
}  # fmt: skip
"""First listed releases without a method that 0.12.0 had."""

DEPRECATED: Mapping[str, Version] = {"fbgemm_fp8": (0, 15, 1)}
"""Methods that are refused without `--allow-deprecated-quantization`, and since when
(`DEPRECATED_QUANTIZATION_METHODS` in model_executor/layers/quantization/__init__.py)."""

_PLUGINS: Mapping[str, str] = {"gguf": "vllm-gguf-plugin"}
_ALLOWING = "--allow-deprecated-quantization"
_REFUSING = "--no-allow-deprecated-quantization"
_RUN_OWN = "--trust-remote-code"
_OVERRIDES = "--hf-overrides"


def check_class(model: Architecture, rules: EngineRules) -> list[Problem]:
    """Return why this release serves no model of that type, where it is known which ones do."""
    since, gone = rules.classes.get(model.model_type, (None, None))
    is_early = since is not None and rules.version < since
    if not is_early and (gone is None or rules.version < gone):
        return []
    what = f"{rules.title} {'.'.join(map(str, rules.version))} has no class for {model.model_type}"
    other = SERVED_BY.get(model.model_type)
    elsewhere = "" if other is None else f"{other}, which is no engine here, serves it; "
    detail = f"{what}, as no release has: {elsewhere}take another model"
    if since is not None and since != NO_RELEASE:
        detail = f"{what} yet: use {'.'.join(map(str, since))} or later"
    elif gone is not None:
        detail = f"{what} any more: use a release before {'.'.join(map(str, gone))}, or an image with a plug-in for it"
    return [Problem("engine", detail, says_step=True)]


def check_own_code(model: Architecture, parameters: EngineParameters) -> list[Problem]:
    """Return that the code of a model that brings its own is not run, where no flag says so."""
    missing = own_code_flags(model, parameters)
    if not missing:
        return []
    what = f"models of the type {model.model_type} bring code of their own, which {parameters.rules.title}"
    step = "add both" if len(missing) > 1 else "add it"
    return [Problem("engine", f"{what} runs only with {' and '.join(missing)}: {step}")]


def own_code_flags(model: Architecture, parameters: EngineParameters) -> tuple[str, ...]:
    """Return the flags that run a model's own code and are not there; none for a model that has none."""
    own = parameters.rules.own_code.get(model.model_type)
    if own is None:
        return ()
    ranks = any(weight.path == "classifier" for weight in model.outer_weights)
    named = own.ranks if ranks else own.embeds
    wanted = [_RUN_OWN]
    if named:
        wanted.append(f'{_OVERRIDES}={{"architectures":["{named}"]}}')
    given = [each.replace("_", "-") for each in parameters.others]
    return tuple(
        flag
        for flag in wanted
        if not any(each.startswith(flag.partition("=")[0]) for each in given)
    )


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
    release = f"{rules.title} {'.'.join(map(str, rules.version))}"
    reason = _reason(method, release, rules)
    if reason is not None:
        return [Problem("quantization", f"{what}, {reason}")]
    if allow_deprecated(model, parameters) is None:
        return []
    detail = f"{what}, which {release} has deprecated and refuses: add {_ALLOWING}"
    return [Problem("quantization", detail)]


def allow_deprecated(model: Architecture, parameters: EngineParameters) -> tuple[str, ...] | None:
    """Return the flags without a bearing with the one that has a deprecated method read; None where none is needed."""
    rules = parameters.rules
    method = (parameters.quantization or "").lower()
    if model.quantization is not None:
        method = model.quantization.method
    deprecated = DEPRECATED.get(method)
    if deprecated is None or rules.version < deprecated or _allows_deprecated(parameters):
        return None
    kept = (each for each in parameters.others if each.replace("_", "-") != _REFUSING)
    return (*kept, _ALLOWING)


def _allows_deprecated(parameters: EngineParameters) -> bool:
    """Return what the last of the flags says, as vLLM reads them: with `-` or `_`."""
    words = (each.replace("_", "-") for each in parameters.others)
    said = [each == _ALLOWING for each in words if each in (_ALLOWING, _REFUSING)]
    return bool(said) and said[-1]


def _reason(method: str, release: str, rules: EngineRules) -> str | None:
    """Return what is wrong with a method in a release, and the next step; None where nothing is."""
    since, gone = SINCE.get(method), GONE.get(method)
    if since is not None and rules.version < since:
        return f"which {release} does not read yet: use {'.'.join(map(str, since))} or later"
    if gone is None or rules.version < gone:
        return None
    first = ".".join(map(str, gone))
    step = f"use a release before {first}, or another checkpoint"
    if method in _PLUGINS:
        step = f"install {_PLUGINS[method]} in the image, or {step}"
    return f"which {release} no longer reads: {step}"
