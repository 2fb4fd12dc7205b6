"""What this machine's processor is, and in which numbers exo-engine computes on it.

Plans for engines on the CPU ask (`processor_speed`). The engine's own answer is in its kernels/processor.py.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from exo_inference.host_memory import ROOT

KERNELS_VARIABLE = "EXO_ENGINE_CPU_KERNELS"
"""Names the instructions that exo-engine's kernels compute with; passed on to engines of this machine."""
_BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""As Linux names them: products of bfloat16 in x86's vectors and tiles, and in ARM's vectors."""
_VECTORS = frozenset({"avx2", "fma"})
"""The least with which exo-engine's kernels compute bfloat16 as vectors of float32."""


def has_bfloat16(root: Path = ROOT) -> bool:
    """Whether the processor multiplies bfloat16 by itself; not where Linux does not say."""
    return bool(_BFLOAT16 & _features(root))


def has_vector_kernels(root: Path = ROOT, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether exo-engine is installed with kernels that compute bfloat16 as vectors on this processor.

    Args:
        root: of the file system.
        environment: variables that the engine gets.
    """
    if environment.get(KERNELS_VARIABLE) in ("off", "plain"):
        return False
    return _features(root) >= _VECTORS and _has_compiled_kernels()


def processor_name(root: Path = ROOT) -> str:
    """Return its model; empty where Linux does not say."""
    return _first_line(root, "model name", "CPU part")


def _features(root: Path) -> frozenset[str]:
    return frozenset(_first_line(root, "flags", "Features").split())


def _has_compiled_kernels() -> bool:
    engine = find_spec("exo_engine")
    if engine is None or engine.origin is None:
        return False
    return (Path(engine.origin).parent / "kernels/libexo_kernels.so").exists()


def _first_line(root: Path, *names: str) -> str:
    """Return what follows one of these names first, of any processor."""
    try:
        with (root / "proc/cpuinfo").open(encoding="utf-8") as lines:  # long on a large machine
            parts = (line.partition(":") for line in lines)
            return next((rest.strip() for name, _, rest in parts if name.strip() in names), "")
    except OSError:
        return ""
