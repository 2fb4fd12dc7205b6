"""What the planner must be told of the machine this process runs on: its CPU with its memory.

The local platform offers it as the family `cpu`, and `deployment plan --gpu-type cpu` plans for it.
GPUs are found in `platforms/local/gpus.py`.
"""

from __future__ import annotations

import os
from pathlib import Path

from exo_inference.planner import Gpu, cpu_as_gpu

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def describe_cpu() -> Gpu:
    """Return this machine's CPU with its memory, within the limit of the container."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit = _CGROUP_LIMIT.read_text(encoding="ascii").strip()
    except OSError:
        limit = "max"
    return cpu_as_gpu(min(total, int(limit)) if limit.isdigit() else total)
