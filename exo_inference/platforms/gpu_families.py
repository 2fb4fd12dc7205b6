"""GPUs by their names: the family, and what the planner is told of one. Pure.

Memory is the driver's, the rest the catalogue's. `local/` asks with what `nvidia-smi` says, `kubernetes/nodes.py`
with the labels of nodes.
"""

from __future__ import annotations

import re
from dataclasses import replace

from exo_inference import planner
from exo_inference.errors import UsageError

CPU_FAMILY = "cpu"

_FAMILIES = (
    ("gpu2", re.compile(r"\bV100\b")),
    ("gpu3080ti", re.compile(r"\bRTX 3080 Ti\b")),
    ("gpua30", re.compile(r"\bA30\b")),
    ("gpu3", re.compile(r"\bA40\b")),
    ("gpua5000", re.compile(r"\bRTX A5000\b")),
    ("gpurtx6000pro", re.compile(r"\bRTX PRO 6000\b")),
    ("gpub300", re.compile(r"\bB300\b")),
)
"""Exoscale's families, by the names that the driver gives their GPUs."""

_NOISE = re.compile(
    r"\b(NVIDIA|Tesla|Quadro|GeForce|Graphics|Device|Generation|Edition|Server|Workstation"
    r"|\d+\s?GB|HBM\d\w*|SXM\d*|PCI-?E\d*|NVL)\b",
    re.IGNORECASE,
)

_SAME_MEMORY = 0.03
"""A catalogue entry within this share of what the driver says is the same card; its memory was
measured as the engine sees it, which is closer than what the driver's total lets one conclude."""


def family_of(name: str) -> str:
    """Return Exoscale's family of a GPU, or a slug of its name where Exoscale has none.

    `NVIDIA A40` is `gpu3`; `NVIDIA H100 80GB HBM3` is `h100`.
    """
    spaced = re.sub(r"[-_]+", " ", name)
    for family, pattern in _FAMILIES:
        if pattern.search(spaced):
            return family
    words = re.findall(r"[a-z0-9]+", _NOISE.sub(" ", spaced).lower())
    return "-".join(words) or "gpu"


def describe_gpu(name: str, memory_mib: int) -> planner.Gpu:
    """Return what the planner knows of a GPU that the driver reported.

    A GPU that the catalogue lacks has its memory alone: no figures of speed, no number formats
    beyond 16 bit.
    """
    # The bandwidth of an unknown GPU is not known either; without TFLOP/s no speed is worked out.
    entry = {"name": name, "memory-mib": max(1024, memory_mib), "bandwidth-gbps": 1}
    described = planner.parse_gpu(family_of(name), entry)
    known = _find(name) or _find(family_of(name))
    if known is None:
        return replace(described, source="nvidia-smi", price_source="")
    difference = abs(known.reported_bytes - described.reported_bytes)
    if difference <= _SAME_MEMORY * described.reported_bytes:
        return known
    own = known.with_memory(described.reported_bytes)
    return replace(own, reported_error_bytes=described.reported_error_bytes)


def _find(name: str) -> planner.Gpu | None:
    try:
        return planner.find_gpu(name)
    except UsageError:
        return None
