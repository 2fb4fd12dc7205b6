"""Keep-alive connections to replicas, one pool per address. Used by the proxy alone."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path
from typing import Any

import aiohttp
from yarl import URL

CONNECT_TIMEOUT_SECONDS = 2.0
"""Replicas are on this machine or one hop away; a slower connect means that it is not there."""

IDLE_SECONDS = 4.0
"""Less than the keep-alive of any engine (uvicorn's is 5 s), so that we close first."""


class UpstreamPool:
    """Sessions by replica address. Lives on one event loop."""

    def __init__(self, root: Path) -> None:
        """`root` is what the `unix:` paths of the table are relative to."""
        # A path relative to the working directory stays under the 108 bytes of sun_path.
        self._root = Path() if Path.cwd() == root.resolve() else root
        self._sessions: dict[tuple[str, bool], aiohttp.ClientSession] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def session(self, address: str, *, fresh: bool = False) -> aiohttp.ClientSession:
        """Return the session for one address; made when first asked for.

        Args:
            address: the replica's.
            fresh: its requests have a connection each. One kill closes all idle connections, but one after
                the other: a request that is sent again on an idle one may meet the same end again.
        """
        session = self._sessions.get((address, fresh))
        if session is None:
            session = self._sessions[address, fresh] = self._open(address, fresh=fresh)
        return session

    def url(self, address: str, path: str, query: str) -> URL:
        """Return the URL of a request, with path and query exactly as the client sent them."""
        base = "http://engine" if address.startswith("unix:") else address.rstrip("/")
        return URL(f"{base}{path}?{query}" if query else f"{base}{path}", encoded=True)

    def prune(self, keep: Collection[str]) -> None:
        """Close the pools of all addresses but these."""
        kept = set(keep)
        for key in [key for key in self._sessions if key[0] not in kept]:
            closing = asyncio.ensure_future(self._sessions.pop(key).close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close all pools."""
        self.prune(())
        await asyncio.gather(*self._closing)

    def _open(self, address: str, *, fresh: bool) -> aiohttp.ClientSession:
        # aiohttp takes a time for idle connections only where it keeps them.
        keeping: dict[str, Any] = (
            {"force_close": True} if fresh else {"keepalive_timeout": IDLE_SECONDS}
        )
        connector: aiohttp.BaseConnector
        if address.startswith("unix:"):
            path = str(self._root / address.removeprefix("unix:"))
            connector = aiohttp.UnixConnector(path, limit=0, **keeping)
        else:
            connector = aiohttp.TCPConnector(limit=0, **keeping)
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_SECONDS),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        )
