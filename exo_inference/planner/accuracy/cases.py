"""Real starts of engines as cases: read from a file, and what each of them states about its plan.

A file is `{"cases": [...]}` or the list alone. `grading.py` grades what is read here; the functions
below answer for one case, and with None where its source leaves something unstated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from exo_inference.errors import UsageError
from exo_inference.planner.engine_rules import EngineRules, rules_for
from exo_inference.planner.gpu_catalog import GIB, Gpu, cpu_as_gpu, find_gpu
from exo_inference.planner.parameters import EngineParameters

_MOST = 10**12
_TEXTS = ("id", "engine", "model")
_OPTIONAL_TEXTS = ("engine_version", "gpu", "notes")
_LISTS = ("unstated", "inferred")
_KV_TYPE = "kv_cache_dtype"
_COUNTS = ("gpu_count", "tp", "pp", "nodes")
_PRINTED = (
    "weights_gib_per_gpu", "available_kv_gib", "free_at_start_gib", "kv_tokens", "gpu_blocks",
    "block_size", "max_model_len", "state_blocks", "activation_peak_gib", "non_torch_gib", "cudagraph_gib",
    "cudagraph_est_gib", "free_before_weights_gib",
)  # fmt: skip
"""What is graded, or planned with, of `observed`: numbers."""


def parse_cases(text: str, name: str) -> list[dict[str, Any]]:
    """Return the cases of a file.

    Args:
        text: of the file.
        name: of the file, for errors.

    Raises:
        UsageError: it is not JSON, not a list of cases, or a case is not of their form; the message
            has the index of that case.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise UsageError(f"{name} is not JSON: {exc}", hint=_HINT) from exc
    cases = document.get("cases") if isinstance(document, dict) else document
    if not isinstance(cases, list):
        found = "an object without the list `cases`" if isinstance(document, dict) else "no list"
        raise UsageError(f"{name} holds no cases: expected a list, found {found}", hint=_HINT)
    for index, case in enumerate(cases):
        problem = _find_problem(case)
        if problem is not None:
            raise UsageError(f"{name}: cases[{index}]{problem}", hint=_HINT)
    return cases


def _find_problem(case: object) -> str | None:
    """Return what is wrong with the form of a case, after its path; None where nothing is."""
    if not isinstance(case, dict):
        return f" is {_kind(case)}, expected an object"
    checks = [(key, case.get(key), "a text", _is_text) for key in _TEXTS]
    checks += [(key, case.get(key, ""), "a text", _is_text_or_none) for key in _OPTIONAL_TEXTS]
    checks += [(key, case.get(key), "a number from 1 to 1024", _is_count) for key in _COUNTS]
    checks += [("gpu_vram_gib", case.get("gpu_vram_gib"), "a number above 0", _is_size)]
    checks += [
        (key, case.get(key, {}), "an object", _is_object)
        for key in ("flags", "defaults_in_effect", "environment")
    ]
    checks += [("gpus_differ", case.get("gpus_differ"), "true or false", _is_choice)]
    checks += [(key, case.get(key), "a list of texts", _are_texts) for key in _LISTS]
    checks += [("installed", case.get("installed"), "package or image", _is_installed)]
    checks += [("stage", case.get("stage"), "a number from 0 to 1023", _is_stage)]
    observed = case.get("observed")
    checks += [("observed", observed, "an object", lambda value: isinstance(value, dict))]
    checks += [
        (f"observed.{key}", observed.get(key), f"a number up to {_MOST:.0e}", _is_number)
        for key in _PRINTED
        if isinstance(observed, dict)
    ]
    wrong = next((check for check in checks if not check[3](check[1])), None)
    return None if wrong is None else f".{wrong[0]} is {_kind(wrong[1])}, expected {wrong[2]}"


def _kind(value: Any) -> str:
    """Return a value as errors show it."""
    if value is None:
        return "missing"
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return f"{json.dumps(value):.60}"


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _is_text_or_none(value: object) -> bool:
    return value is None or isinstance(value, str)


def _are_texts(value: object) -> bool:
    return value is None or (isinstance(value, list) and all(_is_text(each) for each in value))


def _is_stage(value: Any) -> bool:
    return value is None or (_is_number(value) and isinstance(value, int) and 0 <= value < 1024)


def _is_installed(value: object) -> bool:
    return value is None or (isinstance(value, str) and value in _SAMPLER_OF)


def _is_object(value: object) -> bool:
    return value is None or isinstance(value, dict)


def _is_choice(value: object) -> bool:
    return value is None or isinstance(value, bool)


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value is None or (is_number and -_MOST <= value <= _MOST)  # not for NaN either


def _is_size(value: Any) -> bool:
    return value is None or (_is_number(value) and 0 < value <= 10**6)


def _is_count(value: Any) -> bool:
    return value is None or (_is_number(value) and isinstance(value, int) and 1 <= value <= 1024)


_HINT = "`exo ai plan accuracy --export FILE` writes a file of that form."


def unstated_flags(case: Mapping[str, Any]) -> list[str]:
    """Return what the case says its source leaves out, the type of the KV cache apart."""
    return [str(each) for each in case.get("unstated") or [] if each != _KV_TYPE]


def is_kv_type_unstated(case: Mapping[str, Any]) -> bool:
    """Whether the case says that its source leaves the type of the KV cache out."""
    return _KV_TYPE in (case.get("unstated") or [])


def is_inferred(case: Mapping[str, Any], what: str) -> bool:
    """Whether the case says that this was read off the figures themselves."""
    return what in (case.get("inferred") or [])


def has_unlike_gpus(case: Mapping[str, Any]) -> bool:
    """Whether the case says that its GPUs differ: what is printed of one is not what the blocks come from."""
    return case.get("gpus_differ") is True


def lifted_check(case: Mapping[str, Any]) -> str | None:
    """Return the variable of the environment, of those stated, that lifts a check which a plan makes."""
    return next((name for name in case.get("environment") or {} if name in _LIFTING), None)


_LIFTING = frozenset({"VLLM_ALLOW_LONG_MAX_MODEL_LEN"})
"""No deployment can set them, so a plan's verdict stands for a start without them."""


def stated_stage(case: Mapping[str, Any]) -> int | None:
    """Return the pipeline stage whose figures a case gives, where it says so."""
    stage = case.get("stage")
    return stage if isinstance(stage, int) and stage < int(case.get("pp") or 1) else None


def printed_tokens(observed: Mapping[str, Any]) -> float | None:
    """Return the KV capacity in tokens that was printed, or follows from the blocks."""
    if observed.get("kv_tokens") is not None:
        return float(observed["kv_tokens"])
    if observed.get("gpu_blocks") is not None and observed.get("block_size") is not None:
        return float(observed["gpu_blocks"]) * float(observed["block_size"])
    return None


def model_name(text: str) -> str:
    """Return the name without remarks in brackets."""
    return re.sub(r"\s*\(.*\)\s*$", "", text).strip()


def stated_version(case: Mapping[str, Any]) -> str | None:
    """Return the engine's version that a case states, as precisely as it does."""
    text = str(case.get("engine_version") or "")
    if rules_for(case["engine"], text).prints_exactly:
        return text or None
    match = re.search(r"\b0\.\d+(\.\d+)?", text)
    if match is not None:
        return match.group(0)
    if not text.startswith("V0"):
        return None
    date = re.search(r"[A-Z][a-z]{2} 20\d\d", text)
    return _V0_RELEASES.get(date.group(0) if date else "", "0.7.0")


_V0_RELEASES = {
    "Dec 2024": "0.6.6",
    "Jan 2025": "0.6.6",
    "Mar 2025": "0.7.3",
    "Apr 2025": "0.8.3-v0",
}
"""The release of a month, for logs that only say "V0" and a date."""


def stated_gpu(case: Mapping[str, Any]) -> Gpu | None:
    """Return the GPU of a case, with the memory its log prints."""
    text = re.split(r"[(,;]", str(case.get("gpu") or ""))[0].strip()
    printed = case.get("gpu_vram_gib")
    if text.lower() == "cpu":
        return None if printed is None else cpu_as_gpu(int(float(printed) * GIB))
    gpu: Gpu | None = None
    try:
        gpu = find_gpu(text) if text else None
    except UsageError:
        gpu = None
    if printed is not None:
        total = int(float(printed) * GIB)
        known = gpu or Gpu(
            key="stated",
            name=text or "GPU",
            vendor="amd" if _AMD.match(text) else "nvidia",
            reported_bytes=total,
            bandwidth=1e12,
            native=frozenset({"fp16", "bf16"}),
        )
        gpu = known.with_memory(total)
    if gpu is not None and int(case.get("nodes") or 1) > 1:
        gpu = replace(gpu, has_nvlink=False)  # NVLink ends at the machine
    return gpu


_AMD = re.compile(r"AMD|Radeon|RX |MI\d", re.IGNORECASE)
_OTHER_MAKERS = re.compile(rf"{_AMD.pattern}|Ascend|Gaudi", re.IGNORECASE)


def is_of_other_maker(case: Mapping[str, Any]) -> bool:
    """Whether the GPU that a case names is not NVIDIA's."""
    gpu = stated_gpu(case)
    if gpu is not None and gpu.key != "stated":
        return gpu.vendor not in ("nvidia", "cpu")
    return _OTHER_MAKERS.match(str(case.get("gpu") or "")) is not None


_SAMPLER_OF = {"package": "torch", "image": "flashinfer"}
"""Who samples where the release takes what is installed: FlashInfer is in vLLM's images, not in its package."""


def stated_parameters(case: Mapping[str, Any], version: str) -> EngineParameters:
    """Return the flags of a case, and what its log says about effective defaults."""
    stated: dict[str, Any] = dict(case.get("flags") or {})
    observed = case.get("observed") or {}
    effective = dict(case.get("defaults_in_effect") or {})
    sampler = effective.pop("sampler", _SAMPLER_OF.get(str(case.get("installed"))))
    has_flashinfer = None if sampler is None else sampler == "flashinfer"
    for name, value in effective.items():
        stated.setdefault(name, value)
    rules = rules_for(str(case.get("engine")), version)
    unplanned = sorted(name for name in stated if name in rules.unplanned and stated[name])
    if unplanned:
        text = f"what {unplanned[0]} means for the memory of {rules.title} is not known"
        raise UsageError(text, hint=_HINT)
    own = {name.replace("-", "_"): meant.replace("-", "_") for meant, name in rules.flags.items()}
    stated = {own.get(name, name): value for name, value in stated.items()}
    stated.setdefault("tensor_parallel_size", case.get("tp") or 1)
    if case.get("pp"):
        stated.setdefault("pipeline_parallel_size", case["pp"])
    if observed.get("max_model_len") is not None:
        stated.setdefault("max_model_len", observed["max_model_len"])
    if _must_say_float16(case, rules):
        stated.setdefault("dtype", "float16")
    values = {name: _read_text(name, value) for name, value in stated.items()}
    return EngineParameters.of(
        values,
        engine=str(case.get("engine")),
        engine_version=version,
        has_flashinfer_sampler=has_flashinfer,
    )


def _must_say_float16(case: Mapping[str, Any], rules: EngineRules) -> bool:
    """Whether a start that ran would not have, had its flags not said so: its release takes no other type than bfloat16."""
    gpu, ran = stated_gpu(case), (case.get("observed") or {}).get("available_kv_gib") is not None
    return (
        ran and not rules.dtypes.replaces_bfloat16 and gpu is not None and not gpu.supports("bf16")
    )


def _read_text(name: str, value: Any) -> Any:
    """Return what a flag was set to: a source may have a number or an object as text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as exc:
        if value.startswith("{"):
            text = f"--{name.replace('_', '-')} is not valid JSON: {exc}"
            raise UsageError(text, hint=_HINT) from exc
        return value


MOST_USED = 0.2
"""A share of a GPU's memory beyond what the engine and the context of CUDA take before weights are loaded."""


def used_by_others(observed: Mapping[str, Any], weights_bytes: int, gpu: Gpu) -> str:
    """Return how much was free before the weights, where most of what was not was others'; else nothing.

    It follows from what was free after them. How much others hold is not known before a start.
    """
    after = observed.get("free_after_weights_gib")
    if after is None:
        return ""
    before = float(after) + weights_bytes / GIB
    whole = gpu.reported_bytes / GIB
    if before >= whole * (1 - MOST_USED):
        return ""
    return (
        f"other processes held memory: {before:.0f} of {whole:.0f} GiB were free before its weights"
    )
