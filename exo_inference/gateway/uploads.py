"""Reads the bodies of requests within bounds of time and memory, and decodes compressed ones.

`app.py` owns the one `Uploads` and holds each body until its request ends, because the proxy may
send it more than once. A body that makes no progress, comes too slowly or is still unfinished
when the gateway stops is refused; what all bodies together may take is bounded, and so is the part of
one deployment.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
from aiohttp import web

from exo_inference.gateway import errors

MAX_BODY_BYTES = 32 << 20
"""A request body longer than this is refused: prompts are text, images come as URLs or base64."""

_CLOSE = {"Connection": "close"}


@dataclass(frozen=True, slots=True)
class UploadLimits:
    """What bodies may take.

    Attributes:
        stall_seconds: the longest time without a byte.
        bytes_per_second: a body must be at least this fast, on average and after the first
            `stall_seconds`.
        total_bytes: of all bodies held at one time. One deployment has half of what the others leave, so
            that there is always room for another one.
        stop_seconds: how long unfinished bodies may still take once the gateway stops.
    """

    stall_seconds: float = 60.0
    bytes_per_second: float = 16 << 10
    total_bytes: int = 512 << 20
    stop_seconds: float = 1.0


class Uploads:
    """All bodies that a gateway holds. Lives on one event loop."""

    def __init__(self, limits: UploadLimits | None = None) -> None:
        self._limits = limits or UploadLimits()
        self._held: Counter[str] = Counter()
        self._reading: set[asyncio.Timeout] = set()
        self._stopping = False

    @asynccontextmanager
    async def read(self, request: web.BaseRequest, deployment_id: str) -> AsyncIterator[bytes]:
        """Read the request's body, decoded, and count its bytes until the block ends.

        Args:
            request: whose body.
            deployment_id: on whose account.

        Raises:
            RequestRefused: 400 the body is not what its headers say, 408 it did not come in time,
                413 it is too long, 415 its encoding is not known, 417 an expectation that nobody
                meets, 503 there is no room for it now or the gateway stops.
        """
        if not request.body_exists:
            yield b""
            return
        encoding = _encoding_of(request)
        if (request.content_length or 0) > MAX_BODY_BYTES:
            raise _too_large()
        await _answer_expectation(request)
        share = _Share(self, deployment_id)
        try:
            body = await self._collect(request, share)
            if encoding:
                share.grow(MAX_BODY_BYTES)
                body = await asyncio.to_thread(_decode, body)
                share.shrink_to(len(body))
            yield body
        finally:
            share.shrink_to(0)

    def stop(self) -> None:
        """Let unfinished bodies end within a moment; called when the gateway stops."""
        self._stopping = True
        deadline = asyncio.get_running_loop().time() + self._limits.stop_seconds
        for limit in self._reading:
            if not limit.expired():
                limit.reschedule(min(deadline, limit.when() or deadline))

    async def _collect(self, request: web.BaseRequest, share: _Share) -> bytes:
        body = bytearray()
        limits = self._limits
        started = asyncio.get_running_loop().time()
        try:
            while True:
                slowest = started + limits.stall_seconds + len(body) / limits.bytes_per_second
                chunk = await self._next_chunk(request, slowest)
                if not chunk:
                    return bytes(body)
                body += chunk
                if len(body) > MAX_BODY_BYTES:
                    raise _too_large()
                share.grow(len(chunk))
        except TimeoutError:
            raise self._too_late() from None
        except (
            aiohttp.ClientPayloadError,
            aiohttp.http_exceptions.PayloadEncodingError,
            web.RequestPayloadError,
        ) as exc:
            raise _not_as_announced() from exc

    async def _next_chunk(self, request: web.BaseRequest, slowest: float) -> bytes:
        """Return what came; empty at the end of the body."""
        now = asyncio.get_running_loop().time()
        seconds = self._limits.stop_seconds if self._stopping else self._limits.stall_seconds
        async with asyncio.timeout_at(min(slowest, now + seconds)) as limit:
            self._reading.add(limit)
            try:
                return await request.content.readany()
            finally:
                self._reading.discard(limit)

    def _too_late(self) -> errors.RequestRefused:
        if self._stopping:
            return errors.RequestRefused(
                503,
                "gateway_stopping",
                "the gateway is stopping and the request's body had not come; send it again",
                type="service_unavailable_error",
                headers={"Retry-After": "1", **_CLOSE},
            )
        return errors.RequestRefused(
            408,
            "request_timeout",
            f"the request's body did not come: nothing for {self._limits.stall_seconds:.0f} s, or "
            f"less than {self._limits.bytes_per_second / 1024:.0f} KiB/s",
            headers=_CLOSE,
        )

    def _take(self, owner: str, num_bytes: int) -> None:
        others = self._held.total() - self._held[owner]
        most = (self._limits.total_bytes - others) // 2
        if num_bytes > 0 and self._held[owner] + num_bytes > most:
            raise errors.RequestRefused(
                503,
                "too_many_uploads",
                "the bodies of all requests together are too large at the moment; repeat later",
                type="service_unavailable_error",
                headers={"Retry-After": "2", **_CLOSE},
            )
        self._held[owner] += num_bytes
        if not self._held[owner]:
            del self._held[owner]


class _Share:
    """What one body takes of the memory for all."""

    def __init__(self, uploads: Uploads, owner: str) -> None:
        self._uploads = uploads
        self._owner = owner
        self._num_bytes = 0

    def grow(self, num_bytes: int) -> None:
        self._uploads._take(self._owner, num_bytes)
        self._num_bytes += num_bytes

    def shrink_to(self, num_bytes: int) -> None:
        self._uploads._take(self._owner, num_bytes - self._num_bytes)
        self._num_bytes = num_bytes


def _encoding_of(request: web.BaseRequest) -> str:
    """Return `gzip` or `deflate`; empty when the body is as it is."""
    encoding = ",".join(request.headers.getall("Content-Encoding", ())).strip().lower()
    if encoding in ("", "identity"):
        return ""
    if encoding in ("gzip", "x-gzip", "deflate"):
        return encoding
    raise errors.RequestRefused(
        415,
        "unsupported_encoding",
        "the request's Content-Encoding is not known; found gzip, deflate and identity here",
        headers={"Accept-Encoding": "gzip, deflate, identity", **_CLOSE},
    )


def _decode(body: bytes) -> bytes:
    """Decode gzip or deflate; never makes more than `MAX_BODY_BYTES` and one."""
    decoder = zlib.decompressobj(zlib.MAX_WBITS | 32)  # finds out which of the two it is
    try:
        decoded = decoder.decompress(body, MAX_BODY_BYTES + 1)
    except zlib.error as exc:
        raise _not_as_announced() from exc
    if len(decoded) > MAX_BODY_BYTES:
        raise _too_large()
    if not decoder.eof or decoder.unused_data:
        raise _not_as_announced()
    return decoded


async def _answer_expectation(request: web.BaseRequest) -> None:
    """Let a client that asks first send its body (RFC 9110 §10.1.1)."""
    expectation = request.headers.get("Expect")
    if expectation is None or request.version < (1, 1):
        return
    if expectation.lower() != "100-continue":
        raise errors.RequestRefused(
            417, "expectation_failed", "only the expectation 100-continue can be met"
        )
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    request.writer.output_size = 0  # not part of the answer


def _too_large() -> errors.RequestRefused:
    return errors.RequestRefused(
        413,
        "request_too_large",
        f"the request's body is longer than {MAX_BODY_BYTES >> 20} MiB",
    )


def _not_as_announced() -> errors.RequestRefused:
    return errors.RequestRefused(
        400, "invalid_body", "the request's body is not what its headers say"
    )
