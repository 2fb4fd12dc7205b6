"""What the processes that work on a model's own programs have in common: their limits and their pipes.

A chat template is a program, and so is a tokenizer: patterns, normalizers and tables that a stranger
wrote. `template_process` and `tokenizer_process` run them; `server/pools/process_pool.py` is the other side.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import struct
from pathlib import Path
from typing import Any, BinaryIO

PREFIX = struct.Struct(">II")
"""Bytes of JSON, and bytes behind it."""


def pack(document: dict[str, Any], body: bytes = b"") -> bytes:
    """Return one frame."""
    head = json.dumps(document).encode()
    return b"".join((PREFIX.pack(len(head), len(body)), head, body))


def read(stream: BinaryIO) -> tuple[dict[str, Any], bytes] | None:
    """Return the next frame's document and what is behind it; None when there are no more."""
    prefix = stream.read(PREFIX.size)
    if len(prefix) < PREFIX.size:
        return None
    length, num_bytes = PREFIX.unpack(prefix)
    document: dict[str, Any] = json.loads(stream.read(length))
    return document, stream.read(num_bytes)


def confine(max_memory_bytes: int) -> BinaryIO:
    """Limit what this process may take for good; return where answers go.

    Nothing that a library prints is taken for an answer, and the server alone says when this ends, by
    closing stdin.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    for limit, value in (
        (resource.RLIMIT_AS, max_memory_bytes),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, 64),
    ):
        hard = resource.getrlimit(limit)[1]
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (most, most))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answers


def allow_processor_time(seconds: int) -> None:
    """Let the next request take so long of the processor; the kernel ends the process then."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = int(used.ru_utime + used.ru_stime) + 1 + seconds
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (most, hard))
