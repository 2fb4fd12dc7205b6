"""Platforms: where engine replicas run. `base.py` is the seam; the factory picks one by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exo_inference.platforms.base import Platform
from exo_inference.state_dir import StateDir

if TYPE_CHECKING:
    from exo_inference.platforms.local import Simulation


def platform_for(
    name: str, state_dir: StateDir, *, simulation: Simulation | None = None
) -> Platform:
    """Return the platform of that name, with its default settings.

    Args:
        name: of the platform.
        state_dir: where it keeps everything.
        simulation: GPU families that it offers without having them.

    Raises:
        ValueError: there is no such platform.
    """
    if name == "local":
        from exo_inference.platforms.local import LocalPlatform  # brings aiohttp

        return LocalPlatform(state_dir, simulation=simulation)
    raise ValueError(f"there is no platform {name!r}; there is: local")
