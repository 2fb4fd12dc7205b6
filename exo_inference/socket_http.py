"""One `GET` over a unix socket of this machine: how the controller asks the gateway and the engines.

Called by `controller/gateway_client.py` and `platforms/local/health.py`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import aiohttp


@dataclass(frozen=True, slots=True)
class Answer:
    """What was answered; of a longer body its beginning."""

    status: int
    body: bytes


async def get(socket: Path, path: str, *, timeout_seconds: float, max_bytes: int) -> Answer | None:
    """Return what a server answers; None where it is not there, or does not answer in time.

    The socket is reached through its directory's descriptor, because the path of a unix socket
    may have no more than 107 bytes and a state directory may lie anywhere.
    """
    try:
        descriptor = os.open(socket.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        connector = aiohttp.UnixConnector(f"/proc/self/fd/{descriptor}/{socket.name}")
        timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
            session.get(f"http://localhost{path}", allow_redirects=False) as response,
        ):
            body = bytearray()
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) >= max_bytes:
                    break
            return Answer(response.status, bytes(body[:max_bytes]))
    except (TimeoutError, aiohttp.ClientError, OSError):
        return None
    finally:
        os.close(descriptor)
