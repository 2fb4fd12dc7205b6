"""The GPUs of this machine: which families they are. Simulated ones are listed with the real ones.

Asks the driver through `nvidia-smi`, in a subprocess with a time limit, at most twice a minute. A
machine without the program has no GPUs of its own. `cpu` is a family too, and always there.
"""

from __future__ import annotations

import asyncio
import csv
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from exo_inference.platforms.gpu_families import family_of
from exo_inference.simulated_gpus import SimulatedGpus

logger = logging.getLogger(__name__)

SIMULATED_PREFIX = "SIM-"
"""What the UUIDs of simulated GPUs begin with; the driver's begin with `GPU-` or `MIG-`."""

_QUERY_SECONDS = 20.0
_FRESH_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class GpuDevice:
    """One GPU as the driver reports it, or one that is simulated.

    Attributes:
        simulates: what it stands for; None for a GPU that is there.
    """

    uuid: str
    name: str
    memory_mib: int
    simulates: SimulatedGpus | None = None

    @property
    def family(self) -> str:
        """The family a deployment asks for it by."""
        return self.simulates.family if self.simulates else family_of(self.name)


def parse_query(text: str) -> list[GpuDevice]:
    """Read the CSV answer of `nvidia-smi`; lines that make no sense are logged and left out."""
    gpus = []
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        try:
            uuid, name, memory = row
            gpus.append(GpuDevice(uuid.strip(), name.strip(), int(float(memory))))
        except ValueError:
            logger.warning("cannot read this line of nvidia-smi: %r", ",".join(row)[:256])
    return gpus


async def query_gpus(environment: Mapping[str, str]) -> list[GpuDevice] | None:
    """Ask the driver; None when it did not answer, an empty list when there is no driver."""
    try:
        process = await asyncio.create_subprocess_exec(
            "nvidia-smi",
            "--query-gpu=uuid,name,memory.total",
            "--format=csv,noheader,nounits",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=dict(environment),
        )
    except (FileNotFoundError, PermissionError):
        return []
    try:
        async with asyncio.timeout(_QUERY_SECONDS):
            output, _ = await process.communicate()
    except TimeoutError:
        logger.warning("nvidia-smi did not answer within %.0f s", _QUERY_SECONDS)
        return None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        logger.warning("nvidia-smi failed with exit code %s", process.returncode)
        return None
    return parse_query(output.decode(errors="replace"))


class GpuInventory:
    """What the machine has, and what it pretends to have. Asks the driver when the last answer is old.

    Args:
        environment: with the PATH to find `nvidia-smi` on.
        simulated: families that are offered without being there. Real GPUs of these families are
            not offered: a family is either real or not.
    """

    def __init__(
        self, environment: Mapping[str, str], simulated: Sequence[SimulatedGpus] = ()
    ) -> None:
        self._environment = environment
        self._simulated = [gpu for kind in simulated for gpu in _simulated_gpus(kind)]
        self._gpus: list[GpuDevice] = []
        self._asked_at: float | None = None
        self._lock = asyncio.Lock()

    async def list(self) -> list[GpuDevice]:
        """Return the GPUs; when the driver does not answer, those it last reported."""
        async with self._lock:
            now = time.monotonic()
            if self._asked_at is None or now - self._asked_at > _FRESH_SECONDS:
                answer = await query_gpus(self._environment)
                self._gpus = self._gpus if answer is None else answer
                self._asked_at = now
            families = {gpu.family for gpu in self._simulated}
            return [gpu for gpu in self._gpus if gpu.family not in families] + self._simulated

    def simulated(self, family: str) -> SimulatedGpus | None:
        """Return what a simulated family stands for; None for every other family."""
        return next((gpu.simulates for gpu in self._simulated if gpu.family == family), None)


def _simulated_gpus(kind: SimulatedGpus) -> list[GpuDevice]:
    memory_mib = kind.gpu.reported_bytes // 2**20
    return [
        GpuDevice(f"{SIMULATED_PREFIX}{kind.family}-{number}", kind.gpu.name, memory_mib, kind)
        for number in range(kind.count)
    ]
