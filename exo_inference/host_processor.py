"""What the machine's processor computes in hardware. Plans for engines on the CPU ask."""

from __future__ import annotations

from pathlib import Path

from exo_inference.host_memory import ROOT

_BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""As the kernel names them: products of bfloat16 in x86's vectors and tiles, and in ARM's vectors."""


def has_bfloat16(root: Path = ROOT) -> bool:
    """Whether the processor multiplies bfloat16 by itself; not where the kernel does not say."""
    return bool(_BFLOAT16 & set(_first_line(root, "flags", "Features").split()))


def processor_name(root: Path = ROOT) -> str:
    """Return its model; empty where the kernel does not say."""
    return _first_line(root, "model name", "CPU part")


def _first_line(root: Path, *names: str) -> str:
    """Return what follows one of these names first, of any processor."""
    try:
        lines = (root / "proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    parts = (line.partition(":") for line in lines)
    return next((rest.strip() for name, _, rest in parts if name.strip() in names), "")
