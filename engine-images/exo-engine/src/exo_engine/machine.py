"""What a machine without a GPU gives the engine: how fast it reads weights, and how fast it multiplies by them.

    python -m exo_engine.machine      # prints JSON; three seconds on a machine that is left alone

Both are measured with the engine's own products, by as many threads as an engine here would have. Each is the
best of some tries, so that what else runs for a moment does not count. Plans for this machine rest on it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from exo_engine.core.host_memory import usable_cores
from exo_engine.errors import ConfigurationError
from exo_engine.flags import MAX_CPU_THREADS
from exo_engine.kernels.library import chosen_kernels
from exo_engine.kernels.processor import is_fast_in_bfloat16
from exo_engine.weight_formats import PLAIN, load_format
from exo_engine.weight_formats.base import Share, WeightFormat

_INPUTS = 1024
_READ_BYTES = 2**28
"""Of the matrix that one row is multiplied by: more than the processor's caches hold."""
_OUTPUTS = 4096
_ROWS = 512
"""Of a prompt's step."""
_TRIES = 5


@dataclass(frozen=True, slots=True)
class MachineSpeed:
    """What was measured.

    Attributes:
        threads: that computed.
        kernels: the instructions that computed; `torch` where PyTorch did.
        read_bytes: bytes of weights per second, multiplied by one row.
        operations: multiplications and additions per second of products with many rows, by the weights' format.
        others: share of a core that other processes, or other machines on the same host, used meanwhile.
        spread: how much longer the same work took at the median of its tries than at best, where that is most.
    """

    threads: int
    kernels: str
    read_bytes: float
    operations: Mapping[str, float]
    others: float
    spread: float


def measure(
    *, read_bytes: int = _READ_BYTES, rows: int = _ROWS, tries: int = _TRIES
) -> MachineSpeed:
    """Measure this machine; its threads are set to what an engine would use.

    Args:
        read_bytes: of the matrix that is read.
        rows: of the products.
        tries: of which the best counts.
    """
    begun, before = time.perf_counter(), _seconds_of_others()
    threads = min(torch.get_num_threads(), usable_cores(), MAX_CPU_THREADS)
    torch.set_num_threads(threads)
    dtype = torch.bfloat16 if is_fast_in_bfloat16() else torch.float32
    kernels = chosen_kernels() if dtype == torch.bfloat16 else None
    if kernels is not None:
        kernels.set_num_threads(threads)
    operations, spreads = {}, []
    for name, kind in (("plain", PLAIN), ("int8", "int8"), ("int4", "int4")):
        # Made before: what PyTorch's threads do after one of its operations would be measured, too.
        matrix, inputs = _matrix(kind, _OUTPUTS, dtype), _inputs(rows, dtype)
        times = _times(lambda: matrix.multiply(inputs, None), tries)  # noqa: B023
        operations[name] = 2.0 * rows * _OUTPUTS * _INPUTS / min(times)
        spreads.append(_spread(times))
    outputs = max(1, read_bytes // (_INPUTS * dtype.itemsize))
    matrix, row = _matrix(PLAIN, outputs, dtype), _inputs(1, dtype)
    times = _times(lambda: matrix.multiply(row, None), tries)
    read = matrix.num_bytes / min(times)
    spreads.append(_spread(times))
    path = "torch" if kernels is None else kernels.path
    others = (_seconds_of_others() - before) / (time.perf_counter() - begun)
    return MachineSpeed(
        threads, path, read, operations, round(max(0.0, others), 3), round(max(spreads), 3)
    )


def _matrix(kind: str, outputs: int, dtype: torch.dtype) -> WeightFormat:
    matrix = load_format(kind)(outputs, _INPUTS, dtype=dtype, device=torch.device("cpu"))
    every = Share(slice(0, outputs), slice(0, outputs), slice(0, _INPUTS))
    matrix.load("weight", torch.randn(outputs, _INPUTS).to(dtype), every)
    matrix.finish()
    return matrix


def _inputs(rows: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.ones(rows, _INPUTS, dtype=dtype)


def _seconds_of_others() -> float:
    """Return the processor time that this process did not use, since the start of the machine; 0: nobody knows."""
    try:
        words = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:]
    except OSError:
        return 0.0
    ticks = [int(word) for word in words[:8]]
    idle, waiting = ticks[3:5]
    own = os.times()
    return (sum(ticks) - idle - waiting) / os.sysconf("SC_CLK_TCK") - own.user - own.system


def _spread(times: list[float]) -> float:
    return statistics.median(times) / min(times) - 1.0


def _times(run: Callable[[], object], tries: int) -> list[float]:
    """Return the seconds of each of some runs, after one that warms up."""
    seconds = []
    for _ in range(tries + 1):
        begun = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begun)
    return seconds[1:]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m exo_engine.machine",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args()
    try:
        print(json.dumps(asdict(measure())))
    except ConfigurationError as error:
        print(f"{error.message}. {error.hint}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
