"""What engine pods say of themselves over HTTP: how far a start is, and what it measured.

Both at the probe port: the engine's own is for the gateways alone. A courtesy, asked for with little
patience: a NetworkPolicy may keep the controller out, and then a replica is described by what Kubernetes
knows of it. Nothing is decided by these answers.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any

import aiohttp

PROBE_PORT = 8001
_SECONDS = 0.5
_MEASUREMENT_SECONDS = 3.0
_SILENT_SECONDS = 30.0
"""How long a pod that did not answer is left alone."""

_MAX_BYTES = 65536
_MAX_CHARACTERS = 300


class Endpoints:
    """The engines' HTTP endpoints."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None
        self._silent_until: dict[str, float] = {}

    async def close(self) -> None:
        """Close all connections. Idempotent."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def detail(self, pod: Mapping[str, Any]) -> str:
        """Return what a starting engine is doing; empty where it does not say."""
        ip = pod.get("status", {}).get("podIP")
        uid = str(pod["metadata"]["uid"])
        if not ip or self._silent_until.get(uid, 0.0) > time.monotonic():
            return ""
        found = await self._ask(ip, PROBE_PORT, "/health", _SECONDS)
        if found is None:
            self._keep_silent(uid)
            return ""
        detail = found.get("detail")
        if not isinstance(detail, str):
            return ""
        # Half a character, which JSON can name, could be written nowhere: it would hold up the deployment.
        said = detail.encode("utf-8", "replace").decode()
        return " ".join(said.split())[:_MAX_CHARACTERS]

    async def measurements(self, pod: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return what the engine has measured; None where it does not say."""
        ip = pod.get("status", {}).get("podIP")
        if not ip:
            return None
        return await self._ask(ip, PROBE_PORT, "/measurements", _MEASUREMENT_SECONDS)

    async def _ask(self, ip: str, port: int, path: str, seconds: float) -> dict[str, Any] | None:
        if self._session is None:
            self._session = aiohttp.ClientSession()
        host = f"[{ip}]" if ":" in ip else ip
        try:
            async with (
                asyncio.timeout(seconds),
                self._session.get(f"http://{host}:{port}{path}", allow_redirects=False) as response,
            ):
                body = await response.content.read(_MAX_BYTES)
            found = json.loads(body)
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None

    def _keep_silent(self, uid: str) -> None:
        now = time.monotonic()
        self._silent_until = {key: at for key, at in self._silent_until.items() if at > now}
        self._silent_until[uid] = now + _SILENT_SECONDS
