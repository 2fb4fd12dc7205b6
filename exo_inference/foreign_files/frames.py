"""What the two sides of the pipe say to each other: JSON with a length before it, and bytes behind.

A request names a task, its arguments, and the lengths of the blobs that follow it; an answer has a
value or an error. Both sides refuse a length beyond the bounds before they take memory for it.
"""

from __future__ import annotations

import json
import struct
from typing import Any, BinaryIO

MAX_ANSWER_BYTES = 2 * 2**20
"""A description of a model is 10 to 200 KB."""
MAX_REQUEST_BYTES = 2**20
MAX_BLOB_BYTES = 128 * 2**20
PREFIX = struct.Struct(">I")


class Hangup(Exception):
    """The other side is gone."""


def pack(document: Any, blobs: tuple[bytes, ...] = ()) -> bytes:
    """Return one frame."""
    text = json.dumps(document).encode()
    return b"".join((PREFIX.pack(len(text)), text, *blobs))


def read_request(stream: BinaryIO) -> tuple[dict[str, Any], list[bytes]]:
    """Wait for a request; return it with its blobs.

    Raises:
        Hangup: there are no more.
    """
    (length,) = PREFIX.unpack(_exactly(stream, PREFIX.size))
    if length > MAX_REQUEST_BYTES:
        raise Hangup("the request is too long")
    request: dict[str, Any] = json.loads(_exactly(stream, length))
    lengths: list[int] = request.get("blobs", [])
    if sum(lengths) > MAX_BLOB_BYTES:
        raise Hangup("the blobs are too long")
    return request, [_exactly(stream, each) for each in lengths]


def _exactly(stream: BinaryIO, length: int) -> bytes:
    data = stream.read(length)
    if len(data) < length:
        raise Hangup("the other side is gone")
    return data
