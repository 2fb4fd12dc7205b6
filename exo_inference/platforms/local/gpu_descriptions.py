"""GPUs as the planner describes them: memory from the driver, the rest from the catalogue.

`Placement.instance_types` asks for those of this machine, `kubernetes/nodes.py` for those of a node;
admission plans with the answer.
"""

from __future__ import annotations

from dataclasses import replace

from exo_inference import planner
from exo_inference.errors import UsageError
from exo_inference.platforms.local.gpus import Gpu

_SAME_MEMORY = 0.03
"""A catalogue entry within this share of what the driver says is the same card; its memory was
measured as the engine sees it, which is closer than what the driver's total lets one conclude."""


def describe_gpu(gpu: Gpu) -> planner.Gpu:
    """Return what the planner knows of a GPU that the driver reported.

    A GPU that the catalogue lacks has its memory alone: no figures of speed, no number formats
    beyond 16 bit.
    """
    # The bandwidth of an unknown GPU is not known either; without TFLOP/s no speed is worked out.
    entry = {"name": gpu.name, "memory-mib": max(1024, gpu.memory_mib), "bandwidth-gbps": 1}
    described = planner.parse_gpu(gpu.family, entry)
    known = _find(gpu.name) or _find(gpu.family)
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
