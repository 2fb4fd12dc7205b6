"""Asking the gateway over its private unix socket: which routing table it has applied, what it has counted.

Called by `routing_table.py` and `local_metrics.py`. Any failure is "no answer": the gateway may be down or
restarting.
"""

from __future__ import annotations

import json
import os
import ssl
from pathlib import Path
from typing import Protocol

import httpx

TIMEOUT_SECONDS = 1.0

_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Trusts nobody, as a unix socket has no TLS. httpx would load every certificate authority for each
question otherwise: 25 ms in which the controller answers nobody, for every look at a deployment."""


class GatewayClient(Protocol):
    """The seam: what the controller asks the gateway."""

    async def applied_version(self) -> int | None:
        """Return the version of the table the gateway routes by; None if it does not answer."""
        ...


class SocketGatewayClient:
    """Asks over `run/gateway.sock`.

    Args:
        socket: its path. It is reached through its directory's descriptor, because the path of a
            unix socket is limited to 107 bytes and a state directory's may be longer.
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
        try:
            directory = os.open(self._socket.parent, os.O_PATH | os.O_DIRECTORY)
        except OSError:
            return None
        try:
            socket = f"/proc/self/fd/{directory}/{self._socket.name}"
            transport = httpx.AsyncHTTPTransport(uds=socket, verify=_NO_TLS)
            async with httpx.AsyncClient(transport=transport, timeout=TIMEOUT_SECONDS) as client:
                answer = await client.get(f"http://gateway{path}")
                return answer.content if answer.is_success else None
        except httpx.HTTPError:
            return None
        finally:
            os.close(directory)
