"""The fixed rule by which collected starts are split: those that constants are set on, and those that are graded.

A start sets constants only where both its model and its GPU are drawn for that, by the hash of their names; every
graded start has a model or a GPU that no constant has seen. Models of one shape (fine-tunes, other quantizations)
and GPUs of one kind are drawn together, so that near-duplicates fall on one side.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from exo_inference.errors import UsageError
from exo_inference.planner.accuracy.cases import model_name, stated_gpu
from exo_inference.planner.catalog_models import find_model
from exo_inference.planner.gpu_catalog import GIB

SHARE = 0.7
"""Of models, and of GPUs, that are drawn: about half of all starts have both."""


def model_key(case: Mapping[str, Any]) -> str:
    """Return what models of one shape have in common."""
    name = model_name(str(case.get("model") or ""))
    try:
        model = find_model(name)
    except UsageError:
        return name.lower().rpartition("/")[2]
    return f"{model.hidden_size}x{len(model.layers)}"


def gpu_key(case: Mapping[str, Any]) -> str:
    """Return the kind of GPU; where only its memory is known, that."""
    gpu = stated_gpu(case)
    if gpu is None:
        return "none"
    return gpu.key if gpu.key != "stated" else f"{round(gpu.reported_bytes / GIB)} GiB"


def machine_key(case: Mapping[str, Any]) -> str:
    """Return what starts on one machine have in common: the repository or issue they are from, and the GPUs.

    A start whose address was not kept is one by itself.
    """
    found = _ADDRESS.match(str(case.get("source") or ""))
    if found is None:
        return str(case["id"])
    return f"{found[1]}#{found[2] or found[3] or ''} {case.get('gpu_count') or 1} x {gpu_key(case)}"


_ADDRESS = re.compile(
    r"(?:https://github\.com/|github:)([\w.-]+/[\w.-]+)(?:/(?:issues|pull)/(\d+)| issue #(\d+))?"
)


def sets_constants(case: Mapping[str, Any]) -> bool:
    """Whether constants are set on this start."""
    return _is_drawn(f"model {model_key(case)}") and _is_drawn(f"GPU {gpu_key(case)}")


def _is_drawn(key: str) -> bool:
    return int(hashlib.sha256(key.encode()).hexdigest()[:8], 16) / 2**32 < SHARE


def split(
    cases: Iterable[Mapping[str, Any]],
) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Return the starts that set constants, and those that are graded."""
    halves: tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]] = ([], [])
    for case in cases:
        halves[0 if sets_constants(case) else 1].append(case)
    return halves
