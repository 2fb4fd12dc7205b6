"""What this machine's processor is, and in which numbers exo-engine computes on it.

Plans for engines on the CPU ask (`processor_speed`). The engine's own answer is in its kernels/processor.py.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from exo_inference.host_memory import ROOT
from exo_inference.planner.processor.kernels import PLAIN_LOOPS

KERNELS_VARIABLE = "EXO_ENGINE_CPU_KERNELS"
"""Names the instructions that exo-engine's kernels compute with; passed on to engines of this machine."""
_BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""As Linux names them: products of bfloat16 in x86's vectors and tiles, and in ARM's vectors."""
_ASK_SECONDS, _PAUSE_SECONDS = 30.0, 60.0
_ASKING = threading.Lock()
_ASK_AGAIN: dict[str, float] = {}
"""By the value of the variable: when an engine that gave no answer may be asked again, by the monotonic clock."""
_REFUSED = 78
"""What the engine ends with where a setting is wrong."""


@dataclass(frozen=True, slots=True)
class EngineKernels:
    """What exo-engine computes with on this machine.

    Attributes:
        path: the instructions of its compiled kernels; empty where PyTorch computes, or the engine is not installed.
        refusal: why no engine starts here, in its own words; empty where one does.
    """

    path: str = ""
    refusal: str = ""

    @property
    def has_vectors(self) -> bool:
        """Whether they compute bfloat16 as vectors."""
        return self.path not in ("", PLAIN_LOOPS)


def engine_kernels() -> EngineKernels:
    """Return what the engine computes with, as the environment of this process has it.

    One caller asks, and others wait for its answer. An engine that gave none is not asked again for a while, or each
    plan of a controller would hold a thread until the time is over.
    """
    named = os.environ.get(KERNELS_VARIABLE, "")
    with _ASKING:
        if time.monotonic() < _ASK_AGAIN.get(named, -math.inf):
            return EngineKernels()
        try:
            return _ask_engine(named)
        except (OSError, subprocess.SubprocessError):
            _ASK_AGAIN[named] = time.monotonic() + _PAUSE_SECONDS
            return EngineKernels()


def has_bfloat16(root: Path = ROOT) -> bool:
    """Whether the processor multiplies bfloat16 by itself; not where Linux does not say."""
    return bool(_BFLOAT16 & frozenset(_first_line(root, "flags", "Features").split()))


def processor_name(root: Path = ROOT) -> str:
    """Return its model; empty where Linux does not say."""
    return _first_line(root, "model name", "CPU part")


@cache
def _ask_engine(named: str) -> EngineKernels:
    if find_spec("exo_engine") is None:
        return EngineKernels()
    answer = subprocess.run(
        [sys.executable, "-P", "-m", "exo_engine.kernels.library"],
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
        timeout=_ASK_SECONDS,
        env={**os.environ, KERNELS_VARIABLE: named, "PYTHONIOENCODING": "utf-8:replace"},
    )
    if answer.returncode == _REFUSED and (lines := answer.stderr.strip().splitlines()):
        return EngineKernels(refusal=lines[-1])
    answer.check_returncode()
    return EngineKernels(answer.stdout.strip())


def _first_line(root: Path, *names: str) -> str:
    """Return what follows one of these names first, of any processor."""
    path = root / "proc/cpuinfo"
    try:
        # Long on a large machine; a virtual one's name for its processor is its owner's, of any bytes.
        with path.open(encoding="utf-8", errors="replace") as lines:
            parts = (line.partition(":") for line in lines)
            return next((rest.strip() for name, _, rest in parts if name.strip() in names), "")
    except OSError:
        return ""
