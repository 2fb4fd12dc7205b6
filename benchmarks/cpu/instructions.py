"""Which instructions the figures of a run are of: what the processor has, and what engines are held to by variables."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

_KINDS = (
    {"amx_tile": "AMX"},
    {"avx512_bf16": "AVX-512 BF16", "avx512bw": "AVX-512", "avx2": "AVX2"},
    {"avx512_vnni": "VNNI", "avx_vnni": "VNNI"},
    {"bf16": "BF16", "asimd": "NEON"},
    {"i8mm": "I8MM"},
)
"""Names of Linux and of people: tiles, vectors and their products of bytes on x86, then on ARM; of each kind the best first."""
HELD = "EXO_BENCH_INSTRUCTIONS"
"""Inherited by all processes of a run."""
VARIABLES = {
    "avx2": {
        "EXO_ENGINE_CPU_KERNELS": "avx2",
        "ATEN_CPU_CAPABILITY": "avx2",  # PyTorch
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    }
}
LLAMA_CPP = {
    "avx2": {
        "GGML_NATIVE": "OFF",
        **dict.fromkeys(("GGML_SSE42", "GGML_AVX", "GGML_AVX2", "GGML_BMI2"), "ON"),
        **dict.fromkeys(("GGML_FMA", "GGML_F16C"), "ON"),
    }
}
"""Options of its build, which no variable can hold."""


def of_processor(cpuinfo: str) -> str:
    """Return what the processor has that a product is faster with, as `AVX-512 BF16, VNNI`, from /proc/cpuinfo's text."""
    lines = (line.partition(":") for line in cpuinfo.splitlines())
    words = (rest.split() for name, _, rest in lines if name.strip() in ("flags", "Features"))
    known = set(next(words, []))
    best = (next((name for word, name in kind.items() if word in known), "") for kind in _KINDS)
    return ", ".join(name for name in best if name)


def of_kernels(environment: Mapping[str, str] = os.environ) -> str:
    """Return the path of exo-engine's kernels in processes of these variables, and which of them hold it or PyTorch.

    A process is asked, as this one does without PyTorch. Empty: the engine cannot be asked here.
    """
    asked = subprocess.run(
        [sys.executable, "-m", "exo_engine.kernels.library"],
        capture_output=True,
        text=True,
        check=False,
        env=dict(environment),
    )
    if asked.returncode:
        return ""
    held = " ".join(
        f"{name}={environment[name]}" for name in VARIABLES["avx2"] if environment.get(name)
    )
    path = asked.stdout.strip() or "none: PyTorch computes"
    return f"{path} ({held})" if held else path


def hold(name: str | None) -> None:
    """Hold what this process starts from now on to some of `VARIABLES`; None: to no more than its variables do."""
    os.environ.pop(HELD, None)
    if name is not None:
        os.environ.update({**VARIABLES[name], HELD: name})


def held() -> str | None:
    """Return what engines are held to; None: they take what is best."""
    return os.environ.get(HELD)
