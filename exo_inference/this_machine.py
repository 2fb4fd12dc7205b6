"""What the planner must be told of the machine this process runs on: its CPU with its memory.

The local platform offers it as the family `cpu`, and `deployment plan --gpu-type cpu` plans for it.
GPUs are found in `platforms/local/gpus.py`.
"""

from __future__ import annotations

from exo_inference.host_memory import read_host_memory
from exo_inference.planner.gpus import Gpu, cpu_as_gpu


def describe_cpu() -> Gpu:
    """Return this machine's CPU with its memory, within the limit of the container."""
    return cpu_as_gpu(read_host_memory().total_bytes)
