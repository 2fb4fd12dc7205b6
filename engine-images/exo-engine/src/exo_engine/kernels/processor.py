"""What this machine's processor computes fast: which numbers a model should have on it.

`core/loading.py` asks for models whose number type is left open, `machine.py` before it measures.
"""

from __future__ import annotations

from pathlib import Path

from exo_engine.kernels.library import PLAIN_LOOPS, chosen_kernels

_BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""As the kernel names them: products of bfloat16 in x86's vectors and tiles, and in ARM's vectors."""


def has_bfloat16(root: Path = Path("/")) -> bool:
    """Whether the processor multiplies bfloat16 by itself; not where Linux does not say."""
    try:
        # A virtual machine's name for it is its owner's, of any bytes.
        text = (root / "proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    names = (line.partition(":") for line in text.splitlines())
    features = (rest for name, _, rest in names if name.strip() in ("flags", "Features"))
    return bool(_BFLOAT16 & set(next(features, "").split()))


def is_fast_in_bfloat16() -> bool:
    """Whether models run in bfloat16 on this CPU: by itself, or as the kernels have vectors that stand in for it.

    Plain loops and PyTorch would be slower than PyTorch in float32.

    Raises:
        ConfigurationError: `EXO_ENGINE_CPU_KERNELS` names what is not there.
    """
    kernels = chosen_kernels()
    return has_bfloat16() or (kernels is not None and kernels.path != PLAIN_LOOPS)
