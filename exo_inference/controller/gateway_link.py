"""Asking the gateway which routing table it has applied, over its private unix socket.

Called by `routing_table.py`. Any failure is "no answer": the gateway may be down or restarting.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

import httpx

TIMEOUT_SECONDS = 1.0


class GatewayLink(Protocol):
    """The seam: what the controller asks the gateway."""

    async def applied_version(self) -> int | None:
        """Return the version of the table the gateway routes by; None if it does not answer."""
        ...


class SocketGatewayLink:
    """Asks over `run/gateway.sock`.

    Args:
        socket: its path. It is reached through its directory's descriptor, because the path of a
            unix socket is limited to 107 bytes and a state directory's may be longer.
    """

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def applied_version(self) -> int | None:
        """Return the version of the table the gateway routes by; None if it does not answer."""
        try:
            directory = os.open(self._socket.parent, os.O_PATH | os.O_DIRECTORY)
        except OSError:
            return None
        try:
            path = f"/proc/self/fd/{directory}/{self._socket.name}"
            transport = httpx.AsyncHTTPTransport(uds=path)
            async with httpx.AsyncClient(transport=transport, timeout=TIMEOUT_SECONDS) as client:
                answer = await client.get("http://gateway/status")
                version = answer.json()["table_version"]
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return None
        finally:
            os.close(directory)
        return version if isinstance(version, int) else None
