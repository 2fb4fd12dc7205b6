"""How fast this machine's processor is for exo-engine: measured by the engine when asked, kept in the state directory.

Without a measurement plans assume a machine. One of another processor, of other cores or of other kernels counts as
none.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.util import find_spec
from typing import Any

from exo_inference.errors import ExoError
from exo_inference.host_memory import usable_cores
from exo_inference.host_processor import (
    EngineKernels,
    engine_kernels,
    has_bfloat16,
    processor_name,
)
from exo_inference.planner.gpu_catalog import Gpu, cpu_as_gpu
from exo_inference.state_dir import StateDir, read_json, write_atomically

BUSY_SHARE = 0.25
"""Of one core that others may use while the machine is measured; what is measured beside more is not its speed."""
MOST_SPREAD = 0.25
"""Of tries at equal work. Beyond it something slows the machine, such as another one on the same host, which
no counter here shows.
"""
_MEASURE_SECONDS = 120.0
_LEAST, _MOST = 1e6, 1e18
"""Bytes or operations per second: no machine has fewer or more, so the file is not ours."""
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Engines get their own values of these, so a measurement leaves this process's out."""
_KINDS = ("plain", "int8", "int4")


@dataclass(frozen=True, slots=True)
class ProcessorSpeed:
    """What exo-engine measured.

    Attributes:
        processor: its model, and how many of its cores could be used.
        threads: that computed.
        kernels: the instructions that computed.
        read_bytes: bytes of weights per second.
        operations: of products with many rows, per second, by the weights' format.
        others: share of a core that other processes used meanwhile.
        spread: how much longer equal work took at the median than at best.
    """

    processor: str
    threads: int
    kernels: str
    read_bytes: float
    operations: Mapping[str, float]
    others: float
    spread: float


def measure_speed() -> ProcessorSpeed:
    """Have the engine measure this machine; some three seconds with all cores.

    Raises:
        ExoError: the engine is not installed, or failed.
    """
    if find_spec("exo_engine") is None:
        raise ExoError(
            "cannot measure this machine: exo-engine is not installed",
            hint="Run `pip install 'exo-inference[engine]'`.",
        )
    command = [sys.executable, "-P", "-m", "exo_engine.machine"]
    environment = {name: value for name, value in os.environ.items() if name not in _THREADS}
    try:
        answer = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_MEASURE_SECONDS,
            check=True,
            env=environment,
        )
        return _checked({"processor": _this_processor(), **json.loads(answer.stdout)})
    except subprocess.CalledProcessError as exc:
        told = (exc.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise ExoError(f"cannot measure this machine: the engine failed: {told}") from None
    except (subprocess.TimeoutExpired, OSError, ValueError, TypeError) as exc:
        raise ExoError(f"cannot measure this machine: {exc}") from None


def write_speed(state: StateDir, speed: ProcessorSpeed) -> None:
    """Keep a measurement for later plans."""
    state.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomically(state.processor_file, json.dumps(asdict(speed)))


def read_speed(state: StateDir, kernels: EngineKernels | None = None) -> ProcessorSpeed | None:
    """Return the measurement of this machine; None: there is none, or it is of another one or of other kernels, or damaged.

    Args:
        state: where it is kept.
        kernels: what engines compute with; None: the engine is asked.
    """
    kernels = engine_kernels() if kernels is None else kernels
    # Without bfloat16 it computes in float32, by PyTorch.
    computing = (kernels.path if has_bfloat16() or kernels.has_vectors else "") or "torch"
    try:
        found = _checked(read_json(state.processor_file))
    except (OSError, ValueError, TypeError):
        return None
    return found if (found.processor, found.kernels) == (_this_processor(), computing) else None


def machine_cpu(total_bytes: int, state: StateDir) -> Gpu:
    """Return this machine's processor for plans, as it was measured where it was.

    Args:
        total_bytes: memory that can be used.
        state: where a measurement is kept.
    """
    kernels = engine_kernels()
    speed = read_speed(state, kernels)
    gpu = cpu_as_gpu(
        total_bytes,
        is_fast_in_bfloat16=has_bfloat16() or kernels.has_vectors,
        kernels=kernels.path,
        bandwidth=speed.read_bytes if speed is not None else None,
        operations=speed.operations if speed is not None else None,
    )
    return replace(gpu, refusal=kernels.refusal)


def _checked(value: Any) -> ProcessorSpeed:
    """Return what a file or the engine said.

    Raises:
        ValueError, TypeError: it is not of the form, or no machine has such figures.
    """
    found = ProcessorSpeed(**value)
    if not isinstance(found.operations, dict) or set(found.operations) != set(_KINDS):
        raise ValueError(f"operations are not of {', '.join(_KINDS)}")
    rates = (found.read_bytes, *found.operations.values())
    are_of_machine = all(_is_number(rate) and _LEAST <= rate < _MOST for rate in rates)
    if not are_of_machine or not _is_number(found.others) or not _is_number(found.spread):
        raise ValueError("figures that no machine has")
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _MOST


def _this_processor() -> str:
    return f"{_name()}, {usable_cores()} cores"


@cache
def _name() -> str:
    return processor_name()  # /proc/cpuinfo is long on a large machine
