"""Processes that compute steps, as the process sees them that starts them: one, or one for each rank."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from exo_engine import pulse
from exo_engine.config import EngineConfig
from exo_engine.core import host_memory
from exo_engine.core.ranks.group import open_memory, open_sockets
from exo_engine.errors import (
    MEMORY_HINT,
    ConfigurationError,
    CoreFailed,
    EngineError,
    InternalError,
    ModelUnusable,
    OutOfMemory,
)
from exo_engine.frames import ConnectionEnded, FrameSocket, Message
from exo_engine.models.config_file import read_spec
from exo_engine.models.spec import DecoderSpec
from exo_engine.weight_formats import FORMATS

_REAP_SECONDS = 5.0
_MODULE = "exo_engine.core.executor_process"
_NAMED: dict[str, type[EngineError]] = {
    each.__name__: each for each in (ConfigurationError, ModelUnusable, OutOfMemory, InternalError)
}
"""Errors that arrive as what they are; others as `CoreFailed`."""


class RankProcess:
    """One process that computes steps, and the socket to it.

    Args:
        arguments: of its command line, beside those that say how it is talked to.
        descriptors: that it inherits.
    """

    def __init__(self, arguments: Sequence[str], descriptors: Sequence[int]) -> None:
        self._socket, theirs = socket.socketpair()
        command = [sys.executable, "-P", "-m", _MODULE, "--socket", str(theirs.fileno())]
        command += ["--parent", str(os.getpid()), *arguments]
        with theirs:
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno(), *descriptors], stdin=subprocess.DEVNULL
            )
        self.link = FrameSocket(self._socket)
        self.received: deque[Message] = deque()

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    @property
    def socket(self) -> int:
        """The descriptor of the socket to it."""
        return self._socket.fileno()

    def send(self, kind: str, payload: Any) -> None:
        """Send a message.

        Raises:
            ConnectionEnded: the process is gone.
        """
        self.link.send(kind, payload, takes_in=True)

    def receive(self, *, is_waiting: bool) -> None:
        """Take in what has come.

        Raises:
            ConnectionEnded: the process is gone.
        """
        self.received += self.link.receive(is_waiting=is_waiting)

    def pop(self) -> Message:
        """Return the first message that was taken in.

        Raises:
            EngineError: the process failed, with what it says.
        """
        kind, payload = self.received.popleft()
        if kind == "failed":
            raise _error(*payload)
        return kind, payload

    def hang_up(self) -> None:
        """Tell the process to end; what it says until then can still be read."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def read_failure(self, deadline: float) -> EngineError | None:
        """Return why the process failed, if it says so before it ends or `time.monotonic()` is `deadline`."""
        try:
            while True:
                while self.received:
                    self.pop()
                self._socket.settimeout(_left(deadline))
                self.receive(is_waiting=True)
        except EngineError as exc:
            return exc
        except ConnectionEnded:
            return None

    def close(self, deadline: float | None = None) -> int:
        """End the process and wait for it; return its status.

        Args:
            deadline: of `time.monotonic()`, when it is killed; None is in five seconds.
        """
        self._socket.close()
        try:
            return self._process.wait(_REAP_SECONDS if deadline is None else _left(deadline))
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def check_ranks(config: EngineConfig) -> None:
    """Refuse ranks that cannot share the model or its quantization, or have no core each, before any is started.

    Raises:
        ConfigurationError: naming what is too small.
    """
    num_ranks, cores = config.tensor_parallel_size, host_memory.usable_cores()
    spec = read_spec(config.model_dir)
    spec.shared_by(num_ranks)
    if config.quantization in FORMATS:
        check_groups(spec, config.quantization, num_ranks)
    if num_ranks > cores:
        raise ConfigurationError(
            f"--tensor-parallel-size is {num_ranks}, but only {cores} cores may be used here, and each rank "
            "keeps one busy",
            param="tensor-parallel-size",
            hint=f"Use {cores} or less.",
        )


def check_groups(spec: DecoderSpec, quantization: str, num_ranks: int) -> None:
    """Refuse ranks that would share a group of inputs with one scale.

    Args:
        spec: of the whole model, which so many ranks can share.
        quantization: a name of `FORMATS`.
        num_ranks: 2 or more.

    Raises:
        ConfigurationError: naming what is too small, and the quantization with the largest groups that fit.
    """
    group = FORMATS[quantization].group
    sizes = spec.shared_inputs
    for name, size in sizes.items():
        if size // num_ranks % group:
            fitting = {"int8": 1} | {
                other: entry.group
                for other, entry in FORMATS.items()
                if entry.group > 1 and not any(n // num_ranks % entry.group for n in sizes.values())
            }
            raise ConfigurationError(
                f"--quantization is {quantization}, with groups of {group} inputs, which ranks cannot share: "
                f"each of {num_ranks} would have {size // num_ranks} of {size} {name}",
                param="quantization",
                hint=f"Use fewer ranks, or --quantization {max(fitting, key=fitting.__getitem__)}.",
            )


def start_processes(num_ranks: int) -> list[RankProcess]:
    """Start one process, or one for each of several ranks, which are connected with each other."""
    shared = () if pulse.OWN.fd is None else (pulse.OWN.fd,)  # the first rank writes it for all
    told = [word for fd in shared for word in ("--pulse", str(fd))]
    if num_ranks == 1:
        return [RankProcess(told, shared)]
    memory, sockets = open_memory(num_ranks), open_sockets(num_ranks)
    started: list[RankProcess] = []
    try:
        for rank, peers in enumerate(sockets):
            numbers = [peer.fileno() for peer in peers]
            arguments = ["--rank", str(rank), "--memory", str(memory)]
            arguments += ["--peers", *map(str, numbers)]
            own = shared if rank == 0 else ()
            arguments += told if own else []
            started.append(RankProcess(arguments, [memory, *numbers, *own]))
    except BaseException:
        for each in started:
            each.close()
        raise
    finally:  # each end is its process's alone, so that the others see it end
        os.close(memory)
        for peer in (peer for peers in sockets for peer in peers):
            peer.close()
    return started


def have_ended(processes: Sequence[RankProcess]) -> bool:
    """Whether one of the processes is gone; waits for nothing."""
    poller = select.poll()
    for each in processes:
        poller.register(each.socket, 0)  # which tells of hang-ups alone
    return bool(poller.poll(0))


def end_all(processes: Sequence[RankProcess]) -> EngineError:
    """End processes of which one is gone, all at once, and return why that one is."""
    for each in processes:
        each.hang_up()
    deadline = time.monotonic() + _REAP_SECONDS
    failures = [each.read_failure(deadline) for each in processes]
    deadline = time.monotonic() + _REAP_SECONDS
    statuses = [each.close(deadline) for each in processes]
    if failure := next((each for each in failures if each is not None), None):
        return failure
    # Only the first to go ended by a signal or failed: the others were told to end. A signal is negative.
    status = min(statuses) if min(statuses) < 0 else max(statuses)
    if status == OutOfMemory.exit_code:
        return OutOfMemory("the process that computes steps ran out of memory", hint=MEMORY_HINT)
    how = f"status {status}" if status >= 0 else signal.Signals(-status).name
    code = InternalError.exit_code if status <= 0 else status
    return CoreFailed(f"the process that computes steps ended with {how}", exit_code=code)


def _left(deadline: float) -> float:
    """Return the seconds until then, at least as many as it takes to look once."""
    return max(deadline - time.monotonic(), 0.01)


def _error(name: str, message: str, hint: str | None, exit_code: int) -> EngineError:
    kind = _NAMED.get(name)
    if kind is None:
        return CoreFailed(message, exit_code=exit_code, hint=hint)
    return kind(message, hint=hint)
