"""What the planner predicts of a start of llama.cpp that was written down, and what of it can be held against the log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from exo_inference.engines import get_engine
from exo_inference.errors import UsageError
from exo_inference.planner.catalog_models import find_model
from exo_inference.planner.gpu_catalog import MIB, Gpu, find_gpu
from exo_inference.planner.llama_cpp.room import Asked, fits
from exo_inference.planner.llama_cpp.setting import read_setting, resolve
from exo_inference.planner.llama_cpp.sizes import Sizes
from exo_inference.planner.llama_cpp.tensor_types import KNOWN
from exo_inference.planner.llama_cpp.weights import mix_of
from exo_inference.planner.model.architecture import Architecture
from exo_inference.planner.model.requantize import with_quantization

QUANTITIES = {"weights": "model_mib", "cache": "kv_mib", "compute buffers": "compute_mib"}
_BOUNDLESS = 8 * 2**40


@dataclass(frozen=True, slots=True)
class Compared:
    """A quantity of a start: printed and predicted, in MiB over all GPUs."""

    case: str
    quantity: str
    printed: float
    predicted: float

    @property
    def error(self) -> float:
        """How far off it is, as a share of what was printed."""
        return self.predicted / self.printed - 1


def stated_model(case: Mapping[str, Any]) -> Architecture:
    """Return the model of a start with the type of its file, where that is one of llama.cpp's own.

    Raises:
        UsageError: the model is not known.
    """
    model = find_model(str(case["model"]))
    kind = str(case.get("file") or "")
    if mix_of(model) is not None and model.quantization is not None:
        return model  # as it was published
    if kind.startswith("UD-"):  # for what is fetched alone: its tensors are not known
        kind = kind.removeprefix("UD-").replace("_XL", "_M")
    return with_quantization(model, kind) if kind in KNOWN else model


def asked_of(case: Mapping[str, Any]) -> Asked:
    """Return the start as the planner takes it."""
    observed, gpus = case["observed"], int(case.get("gpu_count") or 1)
    flags = ((f"--{name}", value) for name, value in (case.get("flags") or {}).items())
    items = [
        item for flag, value in flags for item in ((flag,) if value is True else (flag, str(value)))
    ]
    setting = read_setting(get_engine("llama-cpp").read(items).values, gpus)
    sequences = int(observed.get("sequences") or setting.sequences)
    keeps_all, has_wide_masks = _build(case)
    setting = replace(
        setting, sequences=sequences, all_outputs=keeps_all, wide_masks=has_wide_masks
    )
    gpu = _gpu(case)
    free = observed.get("free_at_start_mib")
    return Asked(stated_model(case), gpu, gpus, setting, None if free is None else int(free * MIB))


_NARROW_MASKS = "2026-06-20"
"""About when flash attention's masks became those of two bytes alone."""


def _build(case: Mapping[str, Any]) -> tuple[bool, bool]:
    """Return what sets its build or its program apart: of a start without a date, builds that keep all logits are old."""
    keeps_all = case["observed"].get("outputs") == "all"
    date = str(case.get("date") or "")
    if case["observed"].get("masks") == "wide":
        return keeps_all, True
    return keeps_all, date < _NARROW_MASKS if date else keeps_all


def _gpu(case: Mapping[str, Any]) -> Gpu:
    """Return the GPU; one that holds everything where the source does not say which."""
    stated = case.get("gpu_mib")
    if stated is not None:
        return Gpu("stated", str(case.get("gpu") or "a GPU"), int(stated * MIB), 0.0)
    try:
        return find_gpu(str(case.get("gpu")))
    except UsageError:
        return Gpu("unknown", "a GPU", _BOUNDLESS, 0.0)


def sizes_of(case: Mapping[str, Any]) -> Sizes:
    """Return what the planner predicts."""
    asked = asked_of(case)
    return asked.sizes(resolve(asked.setting, asked.trained))


def reason_against(case: Mapping[str, Any], quantity: str) -> str:
    """Return why a quantity of a start is not graded; empty where it is."""
    unstated = " ".join(case.get("unstated") or ())
    flags = case.get("flags") or {}
    if "model" in (case.get("inferred") or ()):
        return "its model was inferred from these figures"
    stated = case.get("unstated") or ()
    if "model" in stated or "offload" in stated:
        return f"its {'model' if 'model' in stated else 'placement'} is not stated"
    if "latents" in unstated and quantity != "weights":
        return "its file was made before latents were kept"
    if "override-tensor" in flags and quantity != "cache":
        return "it names no tensors that were moved"
    if quantity == "weights" and (
        "file (" in unstated or case.get("file") not in {*KNOWN, "MXFP4"}
    ):
        return "its file's types are not known"
    if quantity == "compute buffers" and "maker" in unstated:
        return "it is of another maker's GPU"
    if quantity == "compute buffers" and "backend" in unstated:
        return "it is of another backend than CUDA's"
    return ""


def compare(cases: Iterable[Mapping[str, Any]]) -> Iterator[Compared]:
    """Yield what is graded, start by start."""
    for case in cases:
        if all(reason_against(case, quantity) for quantity in QUANTITIES):
            continue
        sizes = sizes_of(case)
        predicted = {
            "weights": [each.weights for each in sizes.gpus],
            "cache": [each.cells for each in sizes.gpus],
            "compute buffers": [each.compute for each in sizes.gpus],
        }
        observed = case["observed"]
        if observed.get("rs_mib"):
            predicted["cache"] = [each.cache for each in sizes.gpus]
        for quantity, name in QUANTITIES.items():
            printed = observed.get(name)
            if not printed or reason_against(case, quantity):
                continue
            total = sum(printed) + (sum(observed.get("rs_mib") or ()) if quantity == "cache" else 0)
            yield Compared(str(case["id"]), quantity, total, sum(predicted[quantity]) / MIB)


def not_graded(cases: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str, str]]:
    """Yield what is not graded though it was printed: the start, the quantity and why."""
    for case in cases:
        for quantity, name in QUANTITIES.items():
            reason = reason_against(case, quantity)
            if case["observed"].get(name) and reason:
                yield str(case["id"]), quantity, reason


def outcomes(cases: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, bool, bool]]:
    """Yield whether a start went on, and whether the middle of the plan has room, where the GPU is known."""
    for case in cases:
        if reason_against(case, "cache"):
            continue
        asked = asked_of(case)
        known = asked.gpu.reported_bytes < _BOUNDLESS and asked.gpu.vendor == "nvidia"
        if not known or "override-tensor" in (case.get("flags") or {}) or case.get("inferred"):
            continue
        if case.get("file") not in {*KNOWN, "MXFP4"}:
            continue
        sizes = asked.sizes(resolve(asked.setting, asked.trained))
        yield (
            str(case["id"]),
            case["observed"].get("outcome") == "fits",
            fits(asked, sizes, surely=False),
        )


def beside_buffers(cases: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, float]]:
    """Yield what starts say of a GPU's memory beside buffers, in MiB: of several GPUs, that with the least.

    On a single GPU it is told by the process; what a desktop or others hold there is not.
    """
    for case in cases:
        observed = case["observed"]
        free, total = observed.get("free_at_start_mib"), observed.get("gpu_total_mib")
        others, process = observed.get("unaccounted_mib") or (), observed.get("process_mib")
        printed = [sum(observed.get(name) or ()) for name in (*QUANTITIES.values(), "rs_mib")]
        if free and total:
            yield str(case["id"]), float(total - free)
        elif len(others) > 1:
            yield str(case["id"]), float(min(others))
        elif process and all(printed[:3]):
            yield str(case["id"]), float(process - sum(printed))
