"""Behaving as a big deployment would, with a small model: `exo-engine serve --simulation FILE`.

`file` reads the figures, `start_up` plays the start, `pace` holds every step for as long as it would
take there, and `loading` puts a core together whose scheduler sees the big cache and whose small
model sees the end of each sequence (`window_runner`). Who writes the file decides what is simulated:
nothing here knows GPUs or models. Importing the package imports no torch.
"""

from __future__ import annotations

from exo_engine.simulation.file import (
    Phase,
    PromptSeconds,
    SimulatedFailure,
    Simulation,
    StepSeconds,
    parse_simulation,
    read_simulation,
)

__all__ = [
    "Phase",
    "PromptSeconds",
    "SimulatedFailure",
    "Simulation",
    "StepSeconds",
    "parse_simulation",
    "read_simulation",
]
