"""An executor in a process of its own: configuration in, then frames in and results out.

`ProcessExecutor` starts the process and talks to it; `main` is the process. It loads what `EngineCore`
would load itself, and tells all but the executor. It never outlives the process that started it: the
kernel kills it with that one's main thread, and it ends by itself when the socket closes.

    config, progress …, loaded | step, step, …, result, …
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import fields
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any

from exo_engine.config import EngineConfig
from exo_engine.core.parent import die_with_parent
from exo_engine.core.start_up import StartUp
from exo_engine.core.step import (
    StepFrame,
    StepResult,
    pack_frame,
    pack_result,
    unpack_frame,
    unpack_result,
)
from exo_engine.errors import (
    ConfigurationError,
    CoreFailed,
    EngineError,
    InternalError,
    InvalidSamplingParams,
    ModelUnusable,
    OutOfMemory,
)
from exo_engine.frames import ConnectionEnded, FrameSocket, Message
from exo_engine.structured_output.compiler import PARAM
from exo_engine.structured_output.vocabulary import Vocabulary

if TYPE_CHECKING:
    from exo_engine.core.loading import LoadedCore

_REAP_SECONDS = 5.0
_NAMED: dict[str, type[EngineError]] = {
    each.__name__: each for each in (ConfigurationError, ModelUnusable, OutOfMemory, InternalError)
}
"""Errors that arrive as what they are; others as `CoreFailed`."""


class ProcessExecutor:
    """Runs steps in another process, one after the other.

    Args:
        config: what that process loads.
        start_up: told what loading is at.

    Raises:
        EngineError: what loading there raised.
    """

    def __init__(self, config: EngineConfig, start_up: StartUp) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "exo_engine.core.executor_process"]
        command += ["--socket", str(theirs.fileno()), "--parent", str(os.getpid())]
        with theirs:
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
            )
        self._socket = ours
        self._link = FrameSocket(ours)
        self._received: deque[Message] = deque()
        self._prepared: dict[str, Future[None]] = {}
        try:
            # Both ends are one installation on one machine; nobody else has the socket.
            self._send("config", pickle.dumps(config))
            self.loaded = self._wait_loaded(start_up)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def submit(self, frame: StepFrame) -> None:
        """See `Executor.submit`."""
        self._send("step", pack_frame(frame))

    def result(self) -> StepResult:
        """See `Executor.result`."""
        kind, payload = self._next_message()
        if kind != "result":
            raise InternalError(f"expected the result of a step, got {kind!r}")
        return unpack_result(payload)

    def use_vocabulary(self, vocabulary: Vocabulary) -> None:
        """See `Executor.use_vocabulary`."""
        self._send("vocabulary", vocabulary.pack())

    def prepare(self, grammar: str) -> Future[None]:
        """See `Executor.prepare`."""
        if grammar not in self._prepared:
            self._prepared[grammar] = Future()
            self._send("grammar", grammar)
        return self._prepared[grammar]

    def wait(self, prepared: Future[None], seconds: float) -> None:
        """See `Executor.wait`."""
        self._link.wait(seconds)
        try:
            self._take_in(self._link.receive(is_waiting=False))
        except ConnectionEnded:
            raise self._died() from None

    def _take_in(self, messages: Iterable[Message]) -> None:
        """Keep messages, and tell of those grammars that they say are compiled."""
        for kind, payload in messages:
            if kind != "prepared":
                self._received.append((kind, payload))
                continue
            grammar, refusal = payload
            future = self._prepared.pop(grammar)
            if refusal is None:
                future.set_result(None)
            else:
                future.set_exception(InvalidSamplingParams(refusal, param=PARAM))

    def close(self) -> None:
        """End the process and wait for it."""
        self._socket.close()
        self._reap()

    def _wait_loaded(self, start_up: StartUp) -> LoadedCore:
        from exo_engine.core.loading import LoadedCore

        while True:
            kind, payload = self._next_message()
            if kind == "loaded":
                return LoadedCore(executor=self, **pickle.loads(payload))  # noqa: S301  (from our own child)
            start_up.report(payload)

    def _next_message(self) -> Message:
        """Return the next message.

        Raises:
            EngineError: the process failed, and said so or died.
        """
        try:
            while not self._received:
                self._take_in(self._link.receive(is_waiting=True))
        except ConnectionEnded:
            raise self._died() from None
        kind, payload = self._received.popleft()
        if kind == "failed":
            raise _error(*payload)
        return kind, payload

    def _send(self, kind: str, payload: Any) -> None:
        try:
            self._link.send(kind, payload)
        except ConnectionEnded:
            raise self._died() from None

    def _died(self) -> CoreFailed:
        status = self._reap()
        how = f"status {status}" if status >= 0 else signal.Signals(-status).name
        code = InternalError.exit_code if status <= 0 else status
        return CoreFailed(f"the process that computes steps ended with {how}", exit_code=code)

    def _reap(self) -> int:
        try:
            return self._process.wait(_REAP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def main(argv: Sequence[str] | None = None) -> int:
    """Load and compute on the socket that the parent opened."""
    parser = argparse.ArgumentParser(prog="exo-engine executor", allow_abbrev=False)
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    options = parser.parse_args(argv)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    die_with_parent(options.parent)
    link = FrameSocket(socket.socket(fileno=options.socket))
    try:
        try:
            _serve(link)
        except EngineError as exc:
            link.send("failed", [type(exc).__name__, exc.message, exc.hint, exc.exit_code])
            return exc.exit_code
        except MemoryError:
            link.send("failed", ["OutOfMemory", "a step ran out of memory", None, 71])
            return OutOfMemory.exit_code
    except ConnectionEnded:
        return 0
    return 0


def _serve(link: FrameSocket) -> None:
    """Load, then compute for ever; ends by an error, or by `ConnectionEnded`."""
    from exo_engine.core.loading import load_here  # imports torch

    ((_, payload),) = link.receive(is_waiting=True)
    config = pickle.loads(payload)  # noqa: S301  (from our own parent)
    loaded = load_here(config, StartUp(lambda detail: link.send("progress", detail)))
    told = {each.name: getattr(loaded, each.name) for each in fields(loaded)}
    del told["executor"]
    link.send("loaded", pickle.dumps(told))
    sending, executor = Lock(), loaded.executor
    num_begun = 0
    while True:
        for kind, content in link.receive(is_waiting=num_begun == 0):
            if kind == "vocabulary":
                executor.use_vocabulary(Vocabulary.unpack(content))
            elif kind == "grammar":
                tell = partial(_tell_prepared, link, sending, content)
                executor.prepare(content).add_done_callback(tell)
            else:
                executor.submit(unpack_frame(content))
                num_begun += 1
        if num_begun:
            packed = pack_result(executor.result())
            with sending:
                link.send("result", packed)
            num_begun -= 1


def _tell_prepared(link: FrameSocket, sending: Lock, grammar: str, prepared: Future[None]) -> None:
    """Tell that a grammar is compiled, or why not; from the thread that compiles."""
    failure = prepared.exception()
    with sending, contextlib.suppress(ConnectionEnded):
        link.send("prepared", [grammar, None if failure is None else str(failure)])


def _error(name: str, message: str, hint: str | None, exit_code: int) -> EngineError:
    kind = _NAMED.get(name)
    if kind is None:
        return CoreFailed(message, exit_code=exit_code, hint=hint)
    return kind(message, hint=hint)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    sys.exit(main())
