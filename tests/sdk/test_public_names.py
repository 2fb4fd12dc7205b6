"""What `from exo_inference import …` offers."""

from __future__ import annotations

import subprocess
import sys

import exo_inference
from exo_inference import errors

NAMES = [
    "ApiError", "AsyncClient", "AuthenticationFailed", "BadRequest", "Client", "ConfigurationError",
    "Conflict", "ConnectionFailed", "ExoError", "InvalidAnswer", "NotFound", "NotReady",
    "OperationFailed", "Overwritten", "PreconditionFailed", "ServerError", "TooManyRequests",
    "UsageError", "__version__",
]  # fmt: skip


def test_the_public_names_are_these_and_can_be_imported() -> None:
    assert exo_inference.__all__ == NAMES == dir(exo_inference)
    for name in NAMES:
        assert getattr(exo_inference, name) is not None
    assert exo_inference.NotFound is errors.NotFound


def test_every_error_that_a_client_raises_is_among_them() -> None:
    of_clients = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    on_servers = {"StoreError", "HubError", "PlatformError"}
    for kind in of_clients:
        ancestors = {base.__name__ for base in kind.__mro__}
        if issubclass(kind, errors.ExoError) and not ancestors & on_servers:
            assert kind.__name__ in NAMES


def test_importing_the_package_loads_no_library() -> None:
    code = "import sys, exo_inference; assert 'httpx' not in sys.modules and 'pydantic' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
