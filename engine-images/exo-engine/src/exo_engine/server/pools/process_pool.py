"""Asks processes that run a model's own programs, so that a slow one stops nobody else's answers.

One process serves a model whose programs are quick. While one takes long, others are started, four at
most; what goes over its limits ends its process, and that request alone fails. The event loop only
writes and reads pipes. `TemplatePool` and `TokenizerPool` say what is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from dataclasses import dataclass
from typing import Any

from exo_engine.errors import ConfigurationError, EngineError
from exo_engine.foreign_files import shown
from exo_engine.tokenizer.confined import PREFIX, pack

logger = logging.getLogger(__name__)

MAX_PROCESSES = 4
MAX_ANSWER_BYTES = 128 * 2**20
_PATIENCE_SECONDS = 0.25
"""How long a request waits for a process before it starts another."""
_KEPT = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "TZ")
"""Of the environment; keys and tokens in it are nothing for a stranger's program."""

Answer = tuple[dict[str, Any], bytes]


class Ended(Exception):
    """A process ended, or did not answer in time.

    Args:
        reason: in words.
        may_be_innocent: it ended before the request came, or was killed; another may answer.
    """

    def __init__(self, reason: str, *, may_be_innocent: bool = False) -> None:
        super().__init__(reason)
        self.may_be_innocent = may_be_innocent


class NoProcess(EngineError):
    """A request cannot be served now: the machine has nothing left for its process, or the engine is ending."""


class NotStarted(Exception):
    """No process can be had: starting one failed, or what it was to load is of no use.

    Args:
        reason: in words.
        document: what the process answered, if it did.
    """

    def __init__(self, reason: str, document: dict[str, Any] | None = None) -> None:
        super().__init__(reason)
        self.document = document or {}


@dataclass(frozen=True, slots=True)
class Allowance:
    """What one request may take.

    Attributes:
        processor_seconds: as the process itself says to the kernel.
        wall_seconds: for a machine that is busy; the processor's time ends a request sooner.
    """

    processor_seconds: int
    wall_seconds: float = 30.0


class ProcessPool:
    """Processes of one program, started when they are needed.

    Args:
        module: the program.
        recipe: its first request: what to load.
        loading: what that may take.
        ended: what to say of one that was ended.
        environment: added to the little that it gets of this one's.
    """

    def __init__(
        self,
        module: str,
        recipe: dict[str, Any],
        *,
        loading: Allowance,
        ended: str,
        environment: dict[str, str] | None = None,
    ) -> None:
        self._module = module
        self._recipe = recipe
        self._loading = loading
        self._ended = ended
        self._environment = environment or {}
        self._idle: asyncio.Queue[Process] = asyncio.Queue()
        self._num_reserved = 0
        self._running: set[asyncio.Task[Answer]] = set()
        self._is_closed = False
        self.processes: set[Process] = set()

    @property
    def num_processes(self) -> int:
        """How many processes there are, or will be in a moment."""
        return self._num_reserved

    async def open(self) -> dict[str, Any]:
        """Start the first process; return what it said when it had loaded.

        Raises:
            NotStarted: it cannot, or takes too much memory or time.
        """
        process = await self._acquire()
        await self._release(process)
        return process.loaded

    async def ask(self, frame: bytes, allowed: Allowance) -> Answer:
        """Return the answer to a request, from whichever process is free first.

        Raises:
            Ended: there is none.
            NoProcess: there is no process for it, though there was one; no fault of the request's.
            ConfigurationError: a new process finds other files than the first one did.
        """
        # Goes on when the client hangs up: the process would answer the next request with this.
        task = asyncio.create_task(self._ask(frame, allowed), name=f"ask-{self._module}")
        self._running.add(task)
        task.add_done_callback(self._forget)
        try:
            return await asyncio.shield(task)
        except NotStarted as exc:
            kind = ConfigurationError if exc.document else NoProcess
            raise kind(f"the engine can start no process for this request: {exc}") from exc

    async def close(self) -> None:
        """End all processes; what was asked of them fails, and nothing is started any more."""
        self._is_closed = True
        for process in list(self.processes):
            await process.end()
        self.processes.clear()
        # Not cancelled: asyncio waits for ever for a process whose start was cancelled half-way.
        await asyncio.gather(*self._running, return_exceptions=True)

    def _forget(self, task: asyncio.Task[Answer]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # was told to the client, if it is still there

    async def _ask(self, frame: bytes, allowed: Allowance) -> Answer:
        try:
            return await self._exchange(await self._acquire(), frame, allowed)
        except Ended as exc:
            if not exc.may_be_innocent:
                raise
        return await self._exchange(await self._start(), frame, allowed)

    async def _exchange(self, process: Process, frame: bytes, allowed: Allowance) -> Answer:
        """Exchange one request; the process is idle afterwards, or gone."""
        try:
            found = await process.exchange(frame, allowed)
        except BaseException:
            await self._drop(process)
            raise
        await self._release(process)
        return found

    async def _acquire(self) -> Process:
        """Return a process that nobody uses: an idle one, or a new one if that takes too long."""
        while True:
            if self._num_reserved == 0 or self._is_closed:
                return await self._start()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE_SECONDS):
                    return await self._idle.get()
            if self._num_reserved < MAX_PROCESSES:
                try:
                    return await self._start()
                except NotStarted as exc:  # as without descriptors or memory
                    if not self.processes:
                        raise
                    logger.warning("no further process for requests: %s", shown(str(exc)))

    async def _start(self) -> Process:
        self._check_open()
        self._num_reserved += 1
        process: Process | None = None
        try:
            process = await Process.start(self._module, self._ended, self._environment)
            self._check_open()
            self.processes.add(process)
            process.loaded, _ = await process.exchange(pack(self._recipe), self._loading)
        except BaseException as exc:
            self._num_reserved -= 1
            if process is not None:
                self.processes.discard(process)
                await process.end()
            if isinstance(exc, Ended | OSError):
                raise NotStarted(str(exc)) from exc
            raise
        if "error" in process.loaded:
            await self._drop(process)
            raise NotStarted(shown(str(process.loaded["error"]), 1000), process.loaded)
        return process

    def _check_open(self) -> None:
        if self._is_closed:
            raise NotStarted("this engine is ending")

    async def _release(self, process: Process) -> None:
        if self._idle.qsize() > 0:  # one is enough while answers are quick
            await self._drop(process)
        else:
            self._idle.put_nowait(process)

    async def _drop(self, process: Process) -> None:
        self._num_reserved -= 1
        self.processes.discard(process)
        await process.end()


class Process:
    """One process and its pipes."""

    def __init__(self, process: asyncio.subprocess.Process, ended: str) -> None:
        self._process = process
        self._ended = ended
        self.loaded: dict[str, Any] = {}

    @classmethod
    async def start(cls, module: str, ended: str, environment: dict[str, str]) -> Process:
        """Start a process; what it loads comes with the first exchange."""
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            module,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**kept, **environment},
        )
        return cls(process, ended)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    async def wait(self) -> int:
        """Wait until it has ended; return how."""
        return await self._process.wait()

    async def exchange(self, frame: bytes, allowed: Allowance) -> Answer:
        """Send a request; return the answer.

        Raises:
            Ended: there is none.
        """
        if self._process.returncode is not None:
            raise Ended(self._ended, may_be_innocent=True)
        try:
            async with asyncio.timeout(allowed.wall_seconds):
                return await self._exchange(frame)
        except TimeoutError as exc:
            raise Ended(f"it takes more than {allowed.wall_seconds:.0f} seconds") from exc
        except (asyncio.IncompleteReadError, ConnectionError) as exc:
            status = await self._process.wait()
            if status == -signal.SIGXCPU:
                text = f"it takes more than {allowed.processor_seconds} seconds of processor time"
                raise Ended(text) from exc
            if status == -signal.SIGPROF:  # a limit in parts of a second, which it set itself
                raise Ended(self._ended) from exc
            has_begun = isinstance(exc, asyncio.IncompleteReadError) and bool(exc.partial)
            raise Ended(self._ended, may_be_innocent=status < 0 and not has_begun) from exc

    async def _exchange(self, frame: bytes) -> Answer:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None, "made with pipes"
        assert stdout is not None, "made with pipes"
        stdin.write(frame)
        await stdin.drain()
        length, num_bytes = PREFIX.unpack(await stdout.readexactly(PREFIX.size))
        if length + num_bytes > MAX_ANSWER_BYTES:
            raise Ended("its answer is too long")
        document: dict[str, Any] = json.loads(await stdout.readexactly(length))
        return document, await stdout.readexactly(num_bytes)

    async def end(self) -> None:
        """Kill the process, if it lives."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        if self._process.stdin is not None:
            self._process.stdin.close()
        await self._process.wait()
