"""One child process from the side that asks: started on first use, ended at a deadline, replaced after.

Not for several threads at once; `pool.py` gives each of its threads one.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import Any

from exo_inference.errors import ExoError
from exo_inference.foreign_files import frames
from exo_inference.foreign_files.errors import (
    ForeignFileError,
    MissingFile,
    ReadingFailed,
    shown_message,
)

DEADLINE_SECONDS = 30.0
"""Of the wall clock, for one request; what takes the processor for longer than 10 s ends sooner."""
MAX_PROCESSOR_SECONDS = 10
"""Of one request. The largest models in use take one second."""
NICENESS = 5
"""Above that of the process that asks, whose other work goes first; also while Python starts in it."""
_MODULE = "exo_inference.foreign_files.worker"
_KEPT = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "TZ")
"""Of the environment. Tokens and passwords in it are nothing for a process that reads foreign files."""


class TookTooLong(ExoError):
    """A request was ended by one of the limits on its time."""


class _CostlyFile(TookTooLong, ForeignFileError):
    """Reading it takes more of the processor than a model may."""


class _SlowReading(TookTooLong, ReadingFailed):
    """It was not read by the deadline."""


class _Ended(Exception):
    """The child ended without an answer."""


class Child:
    """A child, or the place for one."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Its process id, None while there is none."""
        return None if self._process is None else self._process.pid

    def ask(
        self,
        task: str,
        arguments: dict[str, Any],
        blobs: tuple[bytes, ...] = (),
        *,
        processor_seconds: int = MAX_PROCESSOR_SECONDS,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> Any:
        """Have a task done; return its value, whose form the caller checks.

        Args:
            task: of `tasks.py`.
            arguments: of the task.
            blobs: of the task.
            processor_seconds: what it may take of the processor; the kernel counts whole seconds, and one more.
            deadline_seconds: after which it is given up, and the child ended.

        Raises:
            MissingFile, ForeignFileError: the file is at fault.
            ReadingFailed: nothing is known about it.
            TookTooLong: is one of these two as well, where a limit ended it.
        """
        header = {
            "task": task,
            "arguments": arguments,
            "blobs": [len(each) for each in blobs],
            "processor_seconds": processor_seconds,
        }
        request = frames.pack(header, blobs)
        try:
            document = self._exchange(request, deadline_seconds)
            if document is None:  # it had ended by itself, because nothing was asked for a while
                document = self._exchange(request, deadline_seconds)
        except BaseException:
            self.close()
            raise
        if document is None:
            raise _explain(0)
        return _value(document)

    def close(self) -> None:
        """End the child, if there is one."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
        process.wait()

    def _exchange(self, request: bytes, deadline_seconds: float) -> Any:
        """Send a request and return the answer; None if the child ended in peace.

        Raises:
            ForeignFileError, ReadingFailed: it ended otherwise, or gave no answer in time.
        """
        try:
            return self._try_exchange(request, time.monotonic() + deadline_seconds)
        except _Ended as error:
            status = self._end()
            if status == 0:
                return None
            raise _explain(status) from error

    def _try_exchange(self, request: bytes, deadline: float) -> Any:
        process = self._running()
        assert process.stdin is not None, "made with pipes"
        assert process.stdout is not None, "made with pipes"
        _write(process.stdin.fileno(), request, deadline)
        out = process.stdout.fileno()
        (length,) = frames.PREFIX.unpack(_read(out, frames.PREFIX.size, deadline))
        if length > frames.MAX_ANSWER_BYTES:
            raise _Ended("its answer is too long")
        return json.loads(_read(out, length, deadline))

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.close()
        environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", _MODULE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                bufsize=0,
                start_new_session=True,  # Ctrl-C in a terminal is for those who ask
            )
        except OSError as error:  # of this machine, not of the files
            raise ReadingFailed(
                f"the process that reads the model's files cannot be started: {error.strerror or error}",
                hint="The machine may be short of memory or of open files; it is tried again.",
            ) from error
        niceness = os.getpriority(os.PRIO_PROCESS, 0) + NICENESS
        with contextlib.suppress(OSError):  # it has ended already
            os.setpriority(os.PRIO_PROCESS, self._process.pid, niceness)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None, "made with pipes"
            os.set_blocking(stream.fileno(), False)
        return self._process

    def _end(self) -> int | None:
        """End the child and return how it ended by itself; None if it had to be ended."""
        process = self._process
        status = None
        if process is not None:
            try:
                status = process.wait(1.0)
            except subprocess.TimeoutExpired:
                status = None
        self.close()
        return status


def _write(descriptor: int, data: bytes, deadline: float) -> None:
    view = memoryview(data)
    while view:
        _await(deadline, writing=descriptor)
        try:
            view = view[os.write(descriptor, view[: 2**16]) :]
        except BlockingIOError:
            continue
        except BrokenPipeError as error:
            raise _Ended("it takes no requests") from error


def _read(descriptor: int, length: int, deadline: float) -> bytes:
    data = bytearray()
    while len(data) < length:
        _await(deadline, reading=descriptor)
        try:
            block = os.read(descriptor, min(2**16, length - len(data)))
        except BlockingIOError:
            continue
        if not block:
            raise _Ended("it gave no answer")
        data += block
    return bytes(data)


def _await(deadline: float, *, reading: int | None = None, writing: int | None = None) -> None:
    seconds = deadline - time.monotonic()
    poll = select.poll()
    if reading is not None:
        poll.register(reading, select.POLLIN)
    if writing is not None:
        poll.register(writing, select.POLLOUT)
    if seconds <= 0 or not poll.poll(seconds * 1000):
        raise _SlowReading(
            "reading the model's files took too long and was given up",
            hint="Check the disk that they lie on; it is tried again.",
        )


def _explain(status: int | None) -> Exception:
    if status == -signal.SIGXCPU:
        return _CostlyFile(
            f"reading the model's files takes more than {MAX_PROCESSOR_SECONDS} seconds of processor time",
            hint="Download the files again, or choose another model.",
        )
    if status in (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGILL):
        return ForeignFileError(
            "the model's files crashed their reader",
            hint="Download the files again, or choose another model.",
        )
    ended = "was ended" if status is None or status < 0 else f"ended with status {status}"
    return ReadingFailed(
        f"the process that reads the model's files {ended} before it answered",
        hint="The machine may be short of memory; it is tried again.",
    )


def _value(document: Any) -> Any:
    error = document.get("error") if isinstance(document, dict) else None
    if error is None:
        return document["value"]
    message, hint = shown_message(str(error.get("message"))), error.get("hint")
    kind = MissingFile if error.get("kind") == "missing" else ForeignFileError
    if error.get("kind") == "costly":
        message = f"the model's files cannot be used: {message}"
    raise kind(message, hint=None if hint is None else shown_message(str(hint)))
