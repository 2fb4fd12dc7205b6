"""Holds every engine to the instructions that an older processor has, by the variables that each one's kernels ask."""

from __future__ import annotations

import os

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


def hold(name: str) -> None:
    """Hold what this process starts from now on to some of `VARIABLES`."""
    os.environ.update({**VARIABLES[name], HELD: name})


def held() -> str | None:
    """Return what engines are held to; None: they take what is best."""
    return os.environ.get(HELD)
