"""An executor in a process of its own, or one for each rank: configuration in, then frames in and results out.

`ProcessExecutor` starts the processes and talks to them; `main` is such a process. It loads what `EngineCore`
would load itself, and tells all but the executor. It never outlives the process that started it: the
kernel kills it with that one's main thread, and it ends by itself when the socket closes. Ranks get the same
frames and choose the same tokens; the first one tells them.

    config, progress …, loaded | step, step, …, late, result, …
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import pickle
import signal
import socket
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import fields
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any

from exo_engine import garbage, pulse
from exo_engine.config import EngineConfig
from exo_engine.core.parent import die_with_parent
from exo_engine.core.ranks.process import RankProcess, end_all, have_ended, start_processes
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
    MEMORY_HINT,
    EngineError,
    InternalError,
    InvalidSamplingParams,
    OutOfMemory,
    has_no_memory,
)
from exo_engine.frames import ConnectionEnded, FrameSocket, Message
from exo_engine.kernels import compilations
from exo_engine.process_end import leave
from exo_engine.structured_output.compiler import PARAM
from exo_engine.structured_output.vocabulary import Vocabulary

if TYPE_CHECKING:
    from exo_engine.core.loading import LoadedCore
    from exo_engine.core.ranks.group import RankGroup


class ProcessExecutor:
    """Runs steps in another process, or in one for each rank, one after the other.

    Args:
        config: what they load.
        start_up: told what loading is at.

    Raises:
        EngineError: what loading there raised.
    """

    def __init__(self, config: EngineConfig, start_up: StartUp) -> None:
        self._prepared: dict[str, Future[None]] = {}
        self._processes = start_processes(config.tensor_parallel_size)
        self._first = self._processes[0]
        try:
            # Both ends are one installation on one machine; nobody else has the socket.
            self._send("config", pickle.dumps(config))
            self.loaded = self._wait_loaded(start_up)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The process, of several ranks the first one's."""
        return self._first.pid

    @property
    def pids(self) -> list[int]:
        """That of each rank."""
        return [each.pid for each in self._processes]

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
        if not self._first.received:
            self._first.link.wait(seconds)
        try:
            self._first.receive(is_waiting=False)
        except ConnectionEnded:
            raise end_all(self._processes) from None
        self._take_in(self._first)

    def check_processes(self) -> Sequence[int]:
        """See `Executor.check_processes`."""
        if have_ended(self._processes):
            raise end_all(self._processes)
        return [each.socket for each in self._processes]

    def close(self) -> None:
        """End the processes, all at once, and wait for them."""
        for each in self._processes:
            each.hang_up()
        for each in self._processes:
            each.close()

    def _take_in(self, process: RankProcess) -> bool:
        """Tell of grammars and count kernels that are said to be compiled; return whether more was said."""
        others = []
        for kind, payload in process.received:
            if kind == "late":
                compilations.OWN.num_late += payload
                continue
            if kind != "prepared":
                others.append((kind, payload))
                continue
            grammar, refusal = payload
            future = self._prepared.pop(grammar)
            if refusal is None:
                future.set_result(None)
            else:
                future.set_exception(InvalidSamplingParams(refusal, param=PARAM))
        process.received = deque(others)
        return bool(others)

    def _wait_loaded(self, start_up: StartUp) -> LoadedCore:
        from exo_engine.core.loading import LoadedCore

        while True:
            kind, payload = self._next_message()
            if kind == "loaded":
                break
            start_up.report(payload)
        told = pickle.loads(payload)  # noqa: S301  (from our own child)
        for each in self._processes[1:]:
            _, payload = self._next_message(each)
            other = pickle.loads(payload)["measurements"]  # noqa: S301  (likewise)
            told["measurements"] = told["measurements"].with_rank(other)
        return LoadedCore(executor=self, **told)

    def _next_message(self, process: RankProcess | None = None) -> Message:
        """Return the next message of a process, of the first one if none is named.

        Raises:
            EngineError: a process failed, and said so or died.
        """
        process = process or self._first
        try:
            while not self._take_in(process):
                process.receive(is_waiting=True)
        except ConnectionEnded:
            raise end_all(self._processes) from None
        return process.pop()

    def _send(self, kind: str, payload: Any) -> None:
        try:
            for each in self._processes:
                each.send(kind, payload)
        except ConnectionEnded:
            raise end_all(self._processes) from None


def main(argv: Sequence[str] | None = None) -> int:
    """Load and compute on the socket that the parent opened."""
    parser = argparse.ArgumentParser(prog="exo-engine executor", allow_abbrev=False)
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--memory", type=int)
    parser.add_argument("--peers", type=int, nargs="*", default=[])
    parser.add_argument("--pulse", type=int)
    options = parser.parse_args(argv)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    die_with_parent(options.parent)
    garbage.pause()
    if options.pulse is not None:
        pulse.OWN.share(options.pulse)
    link = FrameSocket(socket.socket(fileno=options.socket))
    try:
        try:
            _serve(link, options)
        except EngineError as exc:
            link.send("failed", [type(exc).__name__, exc.message, exc.hint, exc.exit_code])
            return exc.exit_code
        except Exception as exc:
            if not has_no_memory(exc):
                raise
            with contextlib.suppress(MemoryError):  # the status says it, too
                link.send(
                    "failed", ["OutOfMemory", "the executor ran out of memory", MEMORY_HINT, 71]
                )
            return OutOfMemory.exit_code
    except ConnectionEnded:
        return 0
    return 0


def load_here(
    config: EngineConfig, start_up: StartUp, group: RankGroup | None = None
) -> LoadedCore:
    """Load in this process what a configuration asks for, simulated or not.

    Args:
        config: what to load and how.
        start_up: told what loading is at.
        group: what this rank exchanges with others of the same model; None: it has all of it.

    Raises:
        EngineError: as `load` and `load_simulated` do.
    """
    # Both import torch, and a real deployment needs nothing of simulations.
    if config.simulation is None:
        from exo_engine.core.loading import load

        return load(config, start_up, group)
    from exo_engine.simulation.loading import load_simulated

    return load_simulated(config, start_up)


def _serve(link: FrameSocket, options: argparse.Namespace) -> None:
    """Load, then compute for ever; ends by an error, or by `ConnectionEnded`."""
    ((_, payload),) = link.receive(is_waiting=True)
    config, is_first = pickle.loads(payload), options.rank == 0  # noqa: S301  (from our own parent)
    start_up = StartUp(partial(link.send, "progress")) if is_first else StartUp()
    loaded = load_here(config, start_up, _group(options))
    told = {each.name: getattr(loaded, each.name) for each in fields(loaded)}
    del told["executor"]
    garbage.resume()
    link.send("loaded", pickle.dumps(told))
    sending, executor = Lock(), loaded.executor
    num_begun = num_late = 0
    while True:
        for kind, content in link.receive(is_waiting=num_begun == 0):
            if kind == "vocabulary":
                executor.use_vocabulary(Vocabulary.unpack(content))
            elif kind == "grammar":
                prepared = executor.prepare(content)
                if is_first:
                    prepared.add_done_callback(partial(_tell_prepared, link, sending, content))
                else:  # frames with it come behind, and nobody waits for this rank to say so
                    prepared.exception()
            else:
                executor.submit(unpack_frame(content))
                num_begun += 1
        if num_begun:
            packed = pack_result(executor.result())
            if is_first:
                with sending:
                    num_late = tell_late(link, num_late)
                    link.send("result", packed)
            num_begun -= 1


def tell_late(link: FrameSocket, num_told: int) -> int:
    """Tell how many kernels were compiled late since `num_told` were; return how many there are."""
    num_late = compilations.OWN.num_late
    if num_late > num_told:
        link.send("late", num_late - num_told)
    return num_late


def _group(options: argparse.Namespace) -> RankGroup | None:
    """Return what this rank exchanges with the others; None: it is alone."""
    if options.memory is None:
        return None
    from exo_engine.core.ranks.group import RankGroup  # imports torch

    peers = [socket.socket(fileno=each) for each in options.peers]
    return RankGroup(options.rank, options.memory, peers)


def _tell_prepared(link: FrameSocket, sending: Lock, grammar: str, prepared: Future[None]) -> None:
    """Tell that a grammar is compiled, or why not; from the thread that compiles."""
    failure = prepared.exception()
    with sending, contextlib.suppress(ConnectionEnded):
        link.send("prepared", [grammar, None if failure is None else str(failure)])


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    leave(main())
