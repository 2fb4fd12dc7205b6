"""Asking the gateway over its private unix socket: which routing table it has applied, what it has counted.

Called by `routing_table.py` and `local_metrics.py`. Any failure is "no answer": the gateway may be down or
restarting.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Protocol

from exo_inference.socket_http import get

TIMEOUT_SECONDS = 1.0

_MAX_BODY_BYTES = 64 * 2**20
"""Of usage, which has a row for each key of each deployment."""


class GatewayClient(Protocol):
    """The seam: what the controller asks the gateway."""

    async def applied_version(self) -> int | None:
        """Return the version of the table the gateway routes by; None if it does not answer."""
        ...


class SocketGatewayClient:
    """Asks over `run/gateway.sock`.

    Args:
        socket: its path.
    """

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def applied_version(self) -> int | None:
        """Return the version of the table the gateway routes by; None if it does not answer."""
        body = await self.ask("/status")
        try:
            version = None if body is None else json.loads(body)["table_version"]
        except (ValueError, KeyError, TypeError):
            return None
        return version if isinstance(version, int) else None

    async def ask(self, path: str) -> bytes | None:
        """Return the body of one successful `GET`; None without one."""
        answer = await get(
            self._socket, path, timeout_seconds=TIMEOUT_SECONDS, max_bytes=_MAX_BODY_BYTES
        )
        return answer.body if answer is not None and answer.status == 200 else None
