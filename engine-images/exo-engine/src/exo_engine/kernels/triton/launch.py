"""A kernel with all that it is launched with: what runs on a GPU is what is compiled without one.

The functions that make a `Launch` ask tensors for shapes and types only, so tensors on the device `meta`
serve to compile it for a GPU that is not there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import torch
from triton import knobs

IS_INTERPRETED = bool(knobs.runtime.interpret)
"""Whether kernels run on the CPU, in Triton's interpreter."""


@dataclass(frozen=True, slots=True)
class Target:
    """What of a GPU decides how a kernel is made."""

    is_nvidia: bool
    capability: int
    """10 times the major number and the minor one: 86, 90; of AMD's: 942, 950."""
    num_processors: int

    @property
    def has_e4m3(self) -> bool:
        """Whether it turns e4m3 into other numbers by itself; gfx942 knows another e4m3."""
        return self.capability >= (89 if self.is_nvidia else 950)

    @property
    def overlaps(self) -> bool:
        """Whether kernels may begin before those before them have ended; see `overlap_kernels`."""
        return self.is_nvidia and self.capability >= 90 and not IS_INTERPRETED

    @property
    def shared_bytes(self) -> int:
        """The most shared memory of a program."""
        if not self.is_nvidia:
            return 65536 if self.capability < 950 else 163840
        return {80: 166912, 90: 232448, 100: 232448, 103: 232448}.get(self.capability, 101376)

    @classmethod
    def of(cls, device: torch.device) -> Target:
        """Return the target that a device is; without a GPU one that stands for it in the interpreter."""
        if device.type != "cuda":
            return cls(is_nvidia=True, capability=90, num_processors=4)
        index = cast("int | None", device.index)
        return _of_gpu(torch.cuda.current_device() if index is None else index)


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of one kernel."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: Mapping[str, Any]
    num_warps: int = 4
    num_stages: int = 2
    fuses: bool = True
    """Whether a multiplication and an addition may become one instruction. Where two kernels must give the
    same bits neither may: which of them would is the compiler's choice."""

    def run(self) -> None:
        """Launch it."""
        if 0 in self.grid:
            return
        self.kernel[self.grid](**self.arguments, **self.options)

    @property
    def options(self) -> dict[str, Any]:
        """What the compiler is told beside the arguments."""
        found = {
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
            "enable_fp_fusion": self.fuses,
        }
        return found | ({"launch_pdl": True} if self.arguments.get("OVERLAPS") else {})


@cache
def _of_gpu(index: int) -> Target:
    """Return the target that a GPU of this process is, which is asked once: products ask for it each time."""
    found = torch.cuda.get_device_properties(index)
    if torch.version.hip is not None:
        name = found.gcnArchName.partition(":")[0].removeprefix("gfx")
        return Target(False, int(name), found.multi_processor_count)
    return Target(True, 10 * found.major + found.minor, found.multi_processor_count)


def tile_of(size: int, least: int = 1) -> int:
    """Return the smallest power of two that holds `size` and `least`."""
    return max(1 << max(size - 1, 0).bit_length(), least)
