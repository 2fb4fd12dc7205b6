"""exo-inference: a dedicated-inference control plane, its client library and its command line.

The public surface of the library. Importing it is cheap: each name is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from exo_inference.errors import ExoError as ExoError
    from exo_inference.sdk import AsyncClient as AsyncClient
    from exo_inference.sdk import Client as Client

__version__ = "0.1.0"

_HOMES = {
    "AsyncClient": "exo_inference.sdk",
    "Client": "exo_inference.sdk",
    "ExoError": "exo_inference.errors",
}

__all__ = ["AsyncClient", "Client", "ExoError", "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
