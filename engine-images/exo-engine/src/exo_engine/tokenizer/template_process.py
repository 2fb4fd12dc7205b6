"""The process in which a model's chat template runs: `python -P -m exo_engine.tokenizer.template_process`.

A template is foreign code. The sandbox that it runs in bounds what can be bounded from inside; whatever
gets past it (a filter of Jinja that takes minutes for one text) costs this process alone, which the
kernel ends. Takes requests on stdin and answers on stdout until stdin ends; `server/template_pool.py`
is the other side.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import struct
import sys
from pathlib import Path
from typing import Any, BinaryIO

from exo_engine.errors import EngineError
from exo_engine.tokenizer.chat_template import ChatTemplate, TemplateCostly

PREFIX = struct.Struct(">II")
"""Bytes of JSON, and bytes of text behind it."""
MAX_TEXT_BYTES = 64 * 2**20
"""Of what a template renders: the sandbox lets no text have more than 16,000,000 characters."""
MAX_PROCESSOR_SECONDS = 5
"""Of one rendering, as the kernel counts; the sandbox itself stops loops after three."""
MAX_MEMORY_BYTES = 2**30


def pack(document: dict[str, Any], text: str = "") -> bytes:
    """Return one frame."""
    head, body = json.dumps(document).encode(), text.encode("utf-8", "surrogatepass")
    return b"".join((PREFIX.pack(len(head), len(body)), head, body))


def main() -> int:
    """Answer requests until there are no more."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the server says when it ends, by closing stdin
    _confine()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    template: ChatTemplate | None = None
    while (request := _read(sys.stdin.buffer)) is not None:
        _allow_processor_time()
        try:
            text = ""
            if template is None:
                template = ChatTemplate(**request)
            else:
                text = template.render(**request)
            document: dict[str, Any] = {}
        except EngineError as exc:
            document = {"error": exc.message, "is_costly": isinstance(exc, TemplateCostly)}
        except Exception as exc:
            document = {"error": f"its reader broke on it ({type(exc).__name__})"}
        answers.write(pack(document, text))
        answers.flush()
    return 0


def _read(stream: BinaryIO) -> dict[str, Any] | None:
    prefix = stream.read(PREFIX.size)
    if len(prefix) < PREFIX.size:
        return None
    length, _ = PREFIX.unpack(prefix)
    request: dict[str, Any] = json.loads(stream.read(length))
    return request


def _confine() -> None:
    for limit, value in (
        (resource.RLIMIT_AS, MAX_MEMORY_BYTES),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, 64),
    ):
        hard = resource.getrlimit(limit)[1]
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (most, most))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _allow_processor_time() -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime) + 1 + MAX_PROCESSOR_SECONDS
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    if hard != resource.RLIM_INFINITY:
        seconds = min(seconds, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, hard))


if __name__ == "__main__":
    sys.exit(main())
