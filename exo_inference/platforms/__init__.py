"""Platforms: where engine replicas run. `base.py` is the seam; the factory picks one by name."""

from __future__ import annotations

from exo_inference.platforms.base import Platform
from exo_inference.state_dir import StateDir


def platform_for(name: str, state_dir: StateDir) -> Platform:
    """Return the platform of that name, with its default settings.

    Raises:
        ValueError: there is no such platform.
    """
    if name == "local":
        from exo_inference.platforms.local import LocalPlatform  # brings aiohttp

        return LocalPlatform(state_dir)
    raise ValueError(f"there is no platform {name!r}; there is: local")
