"""CPU kernels in C++: products, attention and what lies between, for bf16.

`csrc/` is compiled by the package's own build where there is a compiler. `library` loads it and chooses
the set of instructions; the other files call it with tensors and check what they are given. Weight
formats and the CPU attention backend use them; without the library these compute with PyTorch.
"""

from __future__ import annotations

from pathlib import Path

VARIABLE = "EXO_ENGINE_CPU_KERNELS"
"""Names the instructions that the kernels run on, or `off`."""
LIBRARY = Path(__file__).with_name("libexo_kernels.so")
