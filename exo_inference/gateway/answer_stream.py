"""Passes one replica's answer on to the client, byte for byte, and reads its usage on the way.

An event stream is passed on chunk by chunk as it comes. Any other answer is read whole first (it
is one JSON object, and comes at once), so that of one which breaks off the client gets nothing, and it may
be asked for again; but a long one, and any while too much is held already, is passed on as it comes: what a
client does not take stays with its engine. Decides nothing about retries.
"""

from __future__ import annotations

from collections.abc import Callable

import aiohttp
from aiohttp import web

from exo_inference.byte_budget import ByteBudget
from exo_inference.gateway import errors
from exo_inference.gateway.answer_usage import UsageFinder, UsageReader, tokens_of_answer
from exo_inference.gateway.exchange import Exchange
from exo_inference.gateway.headers import answer_headers

MAX_WHOLE_BYTES = 1 << 20
"""A plain answer longer than this is passed on as it comes."""

TOTAL_WHOLE_BYTES = 64 << 20
"""What all answers together may take that are read whole and not taken by their clients yet."""


class BrokenOff(Exception):
    """The replica broke off in its answer, and the client got nothing of it."""


async def relay(
    request: web.BaseRequest,
    upstream: aiohttp.ClientResponse,
    exchange: Exchange,
    room: ByteBudget,
    *,
    strip_usage: bool,
) -> web.StreamResponse:
    """Send the client what the replica answers.

    Raises:
        BrokenOff: the replica did, before the client got anything.
        ConnectionError: the client hung up.
    """
    exchange.status = upstream.status
    if upstream.content_type == "text/event-stream":
        reader = UsageReader(strip=strip_usage, doubt=exchange.note_doubt)
        return await _relay_events(request, upstream, exchange, reader)
    with room.share() as take:
        head, is_whole = await _collect(upstream, take)
        pass_on = _relay_whole if is_whole else _relay_rest
        return await pass_on(request, upstream, exchange, head)


async def _collect(
    upstream: aiohttp.ClientResponse, take: Callable[[int], bool]
) -> tuple[bytes, bool]:
    """Return the answer, or its beginning, and which of the two it is.

    Raises:
        BrokenOff: the replica did.
    """
    head = bytearray()
    try:
        async for chunk in upstream.content.iter_any():
            head += chunk
            if len(head) > MAX_WHOLE_BYTES or not take(len(chunk)):
                return bytes(head), False
    except aiohttp.ClientError as exc:
        raise BrokenOff(f"broke off in its answer: {exc!r}") from exc
    return bytes(head), True


async def _relay_whole(
    request: web.BaseRequest, upstream: aiohttp.ClientResponse, exchange: Exchange, body: bytes
) -> web.StreamResponse:
    """Send an answer that is there, and return when the client has taken all but its last part."""
    exchange.note_first_byte()
    exchange.tokens = tokens_of_answer(body, exchange.note_doubt)
    headers = answer_headers(upstream.headers, exchange.own_headers())
    response = web.Response(
        status=upstream.status, reason=upstream.reason, headers=headers, body=body
    )
    await response.prepare(request)
    await response.write_eof()
    return response


async def _relay_events(
    request: web.BaseRequest,
    upstream: aiohttp.ClientResponse,
    exchange: Exchange,
    reader: UsageReader,
) -> web.StreamResponse:
    exchange.streamed = True
    response = await _begin(request, upstream, exchange, drop_length=True)
    sent = b"\n\n"
    try:
        while chunk := await _read(upstream, exchange):
            passed = reader.feed(chunk)
            if exchange.first_byte_seconds is None:
                exchange.note_first_byte()
            if passed:
                await response.write(passed)
                sent = passed
            exchange.is_complete = reader.has_ended
        if rest := reader.finish():
            await response.write(rest)
            sent = rest
        if exchange.broken:
            await _end_broken(request, response, exchange, after=sent)
    finally:
        exchange.tokens = reader.estimate()
        exchange.estimated = reader.is_estimate
    return response


async def _relay_rest(
    request: web.BaseRequest, upstream: aiohttp.ClientResponse, exchange: Exchange, head: bytes
) -> web.StreamResponse:
    response = await _begin(request, upstream, exchange, drop_length=False)
    exchange.note_first_byte()
    finder = UsageFinder(exchange.note_doubt)
    finder.feed(head)
    try:
        await response.write(head)
        while chunk := await _read(upstream, exchange):
            finder.feed(chunk)
            await response.write(chunk)
    finally:
        exchange.tokens = finder.tokens
    if exchange.broken and request.transport is not None:
        request.transport.close()  # short of its Content-Length: the client sees that it broke
    return response


async def _begin(
    request: web.BaseRequest,
    upstream: aiohttp.ClientResponse,
    exchange: Exchange,
    *,
    drop_length: bool,
) -> web.StreamResponse:
    headers = answer_headers(upstream.headers, exchange.own_headers())
    if drop_length:
        headers.popall("Content-Length", None)
    response = web.StreamResponse(status=upstream.status, reason=upstream.reason, headers=headers)
    await response.prepare(request)
    return response


async def _read(upstream: aiohttp.ClientResponse, exchange: Exchange) -> bytes:
    """Return the next bytes; empty at the end, and at a break, which `exchange` then knows."""
    try:
        return await upstream.content.readany()
    except aiohttp.ClientError:
        exchange.broken = True
        return b""


async def _end_broken(
    request: web.BaseRequest, response: web.StreamResponse, exchange: Exchange, *, after: bytes
) -> None:
    """Tell the client inside the stream, and close it without the mark of a whole answer."""
    failure = errors.replica_failed(
        f"replica {exchange.replica} of deployment {exchange.deployment!r} broke off in the middle "
        "of its answer; the request may be repeated"
    )
    gap = b"" if after.endswith((b"\n\n", b"\r\n\r\n")) else b"\n\n"
    await response.write(gap + b"data: " + failure.body() + b"\n\n")
    if request.transport is not None:
        request.transport.close()
