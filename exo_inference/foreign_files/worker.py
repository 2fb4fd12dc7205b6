"""`python -P -m exo_inference.foreign_files.worker`: the child that opens and parses foreign files.

Takes requests on stdin and answers them on stdout, one after another, until stdin ends or nothing was
asked for a while. It may use little memory and, for each request, little processor time; the kernel
ends it when it takes more, and it is the first that the kernel ends when the machine runs short. Who
starts it gives it its priority.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import sys
from pathlib import Path
from typing import Any

from exo_inference.foreign_files import frames
from exo_inference.foreign_files.errors import ForeignFileError, MissingFile
from exo_inference.foreign_files.tasks import TASKS

MAX_MEMORY_BYTES = 2**30
"""Of addresses. 20 MB of JSON made of empty lists become 700 MB."""
IDLE_SECONDS = 60.0


def main() -> int:
    """Answer requests until there are no more."""
    confine()
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # nothing that a library prints is taken for an answer
    requests = sys.stdin.buffer
    while select.select([requests], [], [], IDLE_SECONDS)[0]:
        try:
            request, blobs = frames.read_request(requests)
        except frames.Hangup:
            break
        _allow_processor_time(request["processor_seconds"])
        document, is_fit = answer(request, blobs)
        answers.write(frames.pack(document))
        if not is_fit:
            break
    return 0


def answer(request: dict[str, Any], blobs: list[bytes]) -> tuple[dict[str, Any], bool]:
    """Run one task; return what to say, and whether this process is fit for another one."""
    try:
        value = TASKS[request["task"]](request["arguments"], blobs)
        document = {"value": value}
    except MissingFile as error:
        return _failure("missing", error), True
    except ForeignFileError as error:
        return _failure("unusable", error), True
    except MemoryError:
        text = f"reading it takes more than {MAX_MEMORY_BYTES >> 20} MiB of memory"
        return {"error": {"kind": "costly", "message": text}}, False
    except Exception as error:  # a parser broke on a file; which one it was is all that matters
        text = f"its reader broke on it ({type(error).__name__})"
        return {"error": {"kind": "costly", "message": text}}, True
    if len(frames.pack(document)) > frames.MAX_ANSWER_BYTES:
        text = f"its description is larger than {frames.MAX_ANSWER_BYTES >> 20} MiB"
        return {"error": {"kind": "costly", "message": text}}, True
    return document, True


def confine() -> None:
    """Limit what this process may take."""
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


def _allow_processor_time(allowed: int) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime) + 1 + allowed
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    if hard != resource.RLIM_INFINITY:
        seconds = min(seconds, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, hard))


def _failure(kind: str, error: ForeignFileError) -> dict[str, Any]:
    return {"error": {"kind": kind, "message": error.message, "hint": error.hint}}


if __name__ == "__main__":
    sys.exit(main())
