"""GPU families that a control plane offers without having them: what `--simulate-gpus` says.

The command line checks the flag with `parse_simulated_gpus` and saves its canonical form in
`settings.json`; the controller parses that again and hands it to the local platform. Starts nothing
and plans nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from exo_inference.errors import UsageError

if TYPE_CHECKING:
    from exo_inference.planner.gpu_catalog import Gpu

FLAG = "--simulate-gpus"
NO_GPUS = "none"
"""What a user writes to simulate nothing any more."""

MODEL_MARKER = "simulated.json"
"""A file with this name in a model's directory says that its weights were never downloaded."""

MODEL_REVISION = "simulated"
"""The revision of such a model."""

MAX_COUNT = 64
MAX_SPEEDUP = 10_000
_EXAMPLE = f"For example {FLAG} gpua5000=4,gpurtx6000pro=8, or {FLAG} none."


@dataclass(frozen=True, slots=True)
class SimulatedGpus:
    """Some GPUs of one kind.

    Attributes:
        family: what deployments ask for: Exoscale's name, else the user's own in lower case.
        gpu: what the planner knows of one.
        count: how many there are.
    """

    family: str
    gpu: Gpu
    count: int


def parse_simulated_gpus(text: str) -> tuple[SimulatedGpus, ...]:
    """Read `FAMILY=COUNT,…`; an empty text and `none` mean no GPUs.

    Raises:
        UsageError: the syntax, a family or a count is not right; it says which.
    """
    if text.strip().lower() in ("", NO_GPUS):
        return ()
    found: dict[str, SimulatedGpus] = {}
    for item in text.split(","):
        one = _parse_one(item.strip())
        same = found.setdefault(one.gpu.key, one)
        if same is not one:
            raise UsageError(
                f"{FLAG} names {one.gpu.name} twice: as {same.family} and as {item.strip()!r}",
                hint="Name each kind of GPU once, with the sum as its count.",
            )
    return tuple(found.values())


def format_simulated_gpus(gpus: tuple[SimulatedGpus, ...]) -> str:
    """Return the text that `parse_simulated_gpus` reads back to the same."""
    return ",".join(f"{each.family}={each.count}" for each in gpus)


def _parse_one(item: str) -> SimulatedGpus:
    from exo_inference.planner.gpu_catalog import find_gpu  # loads its catalogue

    name, equals, count = (part.strip() for part in item.partition("="))
    if not name or not equals or not count:
        raise UsageError(f"{FLAG} has {item[:64]!r}, expected FAMILY=COUNT", hint=_EXAMPLE)
    if not re.fullmatch(r"[0-9]{1,6}", count) or not 1 <= int(count) <= MAX_COUNT:
        raise UsageError(
            f"{FLAG} has {count[:64]!r} for {name[:64]}, expected a number from 1 to {MAX_COUNT}",
            hint=_EXAMPLE,
        )
    try:
        gpu = find_gpu(name[:256])
    except UsageError as error:
        raise UsageError(f"{FLAG} names {name[:64]!r}: {error.message}", hint=error.hint) from error
    family = gpu.family or re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return SimulatedGpus(family, gpu, int(count))
