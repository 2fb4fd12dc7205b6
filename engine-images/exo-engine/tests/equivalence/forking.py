"""Processes that compute steps, forked from one that has imported what they need: 0.1 seconds rather than two.

`Forking` stands for the module `subprocess` in `exo_engine.core.ranks.process`. A forked process is as much
another one as a started one is: it runs the same `main` on the same socket, and shares nothing else. What it
has more: with each frame come the numbers of blocks, which it fills with NaN before it computes.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

_STATUS_OF_KILLED = -signal.SIGKILL
POISON = 0xFF
"""A byte; floats of any size made of it are NaN."""


class Forking:
    """Starts processes by asking a process to fork."""

    DEVNULL, TimeoutExpired = subprocess.DEVNULL, subprocess.TimeoutExpired

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        command = [sys.executable, __file__, str(theirs.fileno()), str(os.getpid())]
        with theirs:
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()])

    def Popen(  # noqa: N802  (as in `subprocess`)
        self, command: Sequence[str], *, pass_fds: Sequence[int], stdin: int
    ) -> Forked:
        """Start what `subprocess.Popen` would, which inherits one socket."""
        assert command[1:5] == [
            "-P",
            "-m",
            "exo_engine.core.executor_process",
            "--socket",
        ]
        assert command[5:] == [str(pass_fds[0]), "--parent", str(os.getpid())]
        assert stdin == subprocess.DEVNULL
        status, theirs = os.pipe()
        socket.send_fds(self._socket, [b"x"], [pass_fds[0], theirs])
        os.close(theirs)
        answer = self._socket.recv(64)
        assert answer, "the process that forks has ended"
        return Forked(int(answer), status)

    def close(self) -> None:
        """End the process that forks, and wait for it."""
        self._socket.close()
        self._process.wait(30)


class Forked:
    """What is needed of `subprocess.Popen`."""

    def __init__(self, pid: int, status: int) -> None:
        self.pid, self._pipe = pid, status
        self._status: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Return the status, which the process writes as its last."""
        if self._status is None:
            ready, _, _ = select.select([self._pipe], [], [], timeout)
            if not ready:
                raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)
            told = os.read(self._pipe, 1)
            self._status = told[0] if told else _STATUS_OF_KILLED
            os.close(self._pipe)
        return self._status

    def kill(self) -> None:
        """Kill it."""
        os.kill(self.pid, signal.SIGKILL)


def fork_for_ever(server: socket.socket) -> None:
    """Fork a process for each socket that comes, until nobody is left to ask for one."""
    from exo_engine.core import executor_process

    executor_process.load_here = noting_cache(executor_process.load_here)
    executor_process.unpack_frame = poisoning(executor_process.unpack_frame)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them; they tell how they end
    while True:
        asked, descriptors, _, _ = socket.recv_fds(server, 1, 2)
        if not asked:
            return
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            server.close()
            status = 1
            try:
                number, told = descriptors
                status = executor_process.main(["--socket", str(number), "--parent", str(parent)])
            finally:
                os.write(told, bytes([status]))
                os._exit(status)
        for each in descriptors:
            os.close(each)
        server.send(str(pid).encode())


_caches: list[Any] = []


def noting_cache(load_here: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `load_here` that keeps the cache at hand."""

    def load(*arguments: Any) -> Any:
        loaded = load_here(*arguments)
        _caches.append(loaded.executor.runner._cache)
        return loaded

    return load


def poisoning(unpack_frame: Callable[[bytes], Any]) -> Callable[[Any], Any]:
    """Return an `unpack_frame` for frames before which block numbers stand."""

    def unpack(payload: Any) -> Any:
        unused, frame = payload
        poison(_caches[-1], unused)
        return unpack_frame(frame)

    return unpack


def poison(cache: Any, blocks: Sequence[int]) -> None:
    """Fill blocks of a cache with NaN."""
    import torch

    with torch.inference_mode():
        cache.pool[:, list(blocks)] = POISON


if __name__ == "__main__":
    from exo_engine.core.parent import die_with_parent

    die_with_parent(int(sys.argv[2]))
    fork_for_ever(socket.socket(fileno=int(sys.argv[1])))
