"""How a kernel may begin before the one told before it has ended, on compute capability 9.0 and later.

A kernel that is launched so reads what others write behind `wait`, and writes nothing before it. All kernels launched
so wait, so that what was written long before is there, too (CUDA C++ Programming Guide, programmatic dependent launch).
What may be read before it is what no step writes: weights.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def wait(OVERLAPS: tl.constexpr):
    """Wait for the end of the kernel before, and let the next one begin.

    In this order one kernel waits beside the one that runs; in the other all that were told would.
    """
    if OVERLAPS:
        gdc_wait()
        gdc_launch_dependents()
