"""The client library: typed calls of the v2 AI API, waits with timeouts, one error tree.

>>> from exo_inference import Client
>>> with Client() as client:  # configured as the command line is
...     client.models.create("exo/tiny-chat")

`Client` and `AsyncClient` are the same, but for `await`. Answers are the types of
`exo_inference.wire`, errors those of `exo_inference.errors`. Importing this package is cheap: the
clients are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from exo_inference.sdk.client import AsyncClient as AsyncClient
    from exo_inference.sdk.client import Client as Client

__all__ = ["AsyncClient", "Client"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("exo_inference.sdk.client"), name)


def __dir__() -> list[str]:
    return list(__all__)
