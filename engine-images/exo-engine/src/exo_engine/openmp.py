"""How PyTorch's threads wait for work, where the CPU kernels have threads of their own (`kernels/csrc/threads.cpp`)."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path

from exo_engine.kernels import LIBRARY, VARIABLE

SPIN_COUNT = 3000
"""Turns of a thread's loop before it sleeps, some 100 µs on Intel's processors and 30 µs on AMD's. By itself
libgomp takes 300,000, so that after a single operation of PyTorch each of its threads keeps a core busy for
milliseconds, on which a thread of the kernels has work."""
_SETTINGS = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


def shorten_spinning(
    environment: MutableMapping[str, str] = os.environ, library: Path = LIBRARY
) -> None:
    """Let PyTorch's threads sleep soon. It has an effect before PyTorch is first imported only.

    Where there are no kernels they are left as they are, as PyTorch's operations follow each other there; and where
    the environment says how they wait.
    """
    is_set = any(name in environment for name in _SETTINGS)
    if not is_set and environment.get(VARIABLE) != "off" and library.exists():
        environment["GOMP_SPINCOUNT"] = str(SPIN_COUNT)
