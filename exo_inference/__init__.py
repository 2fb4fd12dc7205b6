"""exo-inference: a dedicated-inference control plane, its client library and its command line.

The public surface of the library. Importing it is cheap: each name is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from exo_inference.errors import ApiError as ApiError
    from exo_inference.errors import AuthenticationFailed as AuthenticationFailed
    from exo_inference.errors import BadRequest as BadRequest
    from exo_inference.errors import ConfigurationError as ConfigurationError
    from exo_inference.errors import Conflict as Conflict
    from exo_inference.errors import ConnectionFailed as ConnectionFailed
    from exo_inference.errors import ExoError as ExoError
    from exo_inference.errors import InvalidAnswer as InvalidAnswer
    from exo_inference.errors import NotFound as NotFound
    from exo_inference.errors import NotReady as NotReady
    from exo_inference.errors import OperationFailed as OperationFailed
    from exo_inference.errors import Overwritten as Overwritten
    from exo_inference.errors import PreconditionFailed as PreconditionFailed
    from exo_inference.errors import ServerError as ServerError
    from exo_inference.errors import TooManyRequests as TooManyRequests
    from exo_inference.errors import UsageError as UsageError
    from exo_inference.sdk import AsyncClient as AsyncClient
    from exo_inference.sdk import Client as Client

__version__ = "0.1.0"

__all__ = [
    "ApiError",
    "AsyncClient",
    "AuthenticationFailed",
    "BadRequest",
    "Client",
    "ConfigurationError",
    "Conflict",
    "ConnectionFailed",
    "ExoError",
    "InvalidAnswer",
    "NotFound",
    "NotReady",
    "OperationFailed",
    "Overwritten",
    "PreconditionFailed",
    "ServerError",
    "TooManyRequests",
    "UsageError",
    "__version__",
]

_CLIENTS = ("AsyncClient", "Client")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "exo_inference.sdk" if name in _CLIENTS else "exo_inference.errors"
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
