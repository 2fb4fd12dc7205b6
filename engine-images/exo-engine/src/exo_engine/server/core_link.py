"""The API process's side of the engine core: talk to it, notice when it dies.

One `CoreLink` adopts the child process and the socket to it. Requests go out as frames; the outputs of
each step come back in one frame and are dealt to the `RequestStream` that waits for them. When the
core ends, every stream gets an error and `wait_closed()` returns why.
"""

from __future__ import annotations

import asyncio
import logging
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from exo_engine import pulse
from exo_engine.config import EngineConfig
from exo_engine.core.host_memory import num_oom_kills
from exo_engine.core.pooling.requests import PoolingRequest
from exo_engine.core.request import EngineRequest, EngineStats, RequestOutput
from exo_engine.errors import MEMORY_HINT, InternalError, OutOfMemory
from exo_engine.frames import ConnectionEnded, encode, read_frame
from exo_engine.server.core_start import StartedCore
from exo_engine.server.messages import (
    CoreInfo,
    Refusal,
    StepOutput,
    pack_config,
    pack_pooling,
    pack_request,
    unpack_info,
    unpack_output,
    unpack_stats,
)
from exo_engine.structured_output.vocabulary import Vocabulary

logger = logging.getLogger(__name__)

_REAP_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class CoreFailure:
    """Why the core ended."""

    exit_code: int
    message: str
    hint: str | None = None


class RequestStream:
    """Outputs of one HTTP request's sequences, in order, merged while nobody reads."""

    def __init__(self, link: CoreLink, request_ids: Sequence[str], held: Held) -> None:
        self._link = link
        self.held = held
        self._unfinished = set(request_ids)
        self._outputs: list[StepOutput] = []
        self._has_outputs = asyncio.Event()

    @property
    def is_finished(self) -> bool:
        """Whether every sequence has ended and everything was read."""
        return not self._unfinished and not self._outputs

    async def next_outputs(self) -> list[StepOutput]:
        """Wait for outputs and return all there are; must not be called once finished."""
        await self._has_outputs.wait()
        self._has_outputs.clear()
        outputs, self._outputs = self._outputs, []
        return outputs

    def abort(self, request_ids: Iterable[str] | None = None) -> None:
        """End sequences early, all of them by default; their outputs stop coming."""
        chosen = self._unfinished if request_ids is None else self._unfinished & set(request_ids)
        self._link.abort(chosen)
        self._unfinished -= chosen

    def deliver(self, step: StepOutput) -> None:
        """Take one output from the link."""
        self._outputs.append(step)
        if step.output.finish_reason is not None:
            self._unfinished.discard(step.output.request_id)
        self._has_outputs.set()


class Held(NamedTuple):
    """What a sequence has a copy of, in token ids, as `request_size` counts it."""

    parameters: int = 0
    prompt: int = 0
    """0 where no other one answers the same prompt."""


NOTHING = Held()


class CoreLink:
    """A running, or starting, engine core."""

    def __init__(
        self, *, on_step: Callable[[EngineStats, int], None] = lambda stats, num_outputs: None
    ) -> None:
        """Prepare; nothing is started yet.

        Args:
            on_step: called after each step with the core's counters and the number of outputs.
        """
        self.progress = "starting the engine core"
        self.config: EngineConfig | None = None
        """What the core was told to load, once it was."""
        self.info: CoreInfo | None = None
        """Set once the model is loaded."""
        self.stats = EngineStats()
        self.failure: CoreFailure | None = None
        self._on_step = on_step
        self._streams: dict[str, RequestStream] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._reported: CoreFailure | None = None
        self._oom_kills_before = num_oom_kills()
        self.is_vocabulary_told = False
        self._pulse = pulse.OWN
        self._num_commands = 0
        self._work_since = 0.0
        self._is_closing = False
        self._closed = asyncio.Event()
        self._ready = asyncio.Event()

    @property
    def num_unfinished(self) -> int:
        """Sequences that were given to the core and have not ended."""
        return len(self._streams)

    @property
    def held(self) -> Held:
        """What all these sequences together have copies of."""
        held = [stream.held for stream in self._streams.values()]
        return Held(sum(each.parameters for each in held), sum(each.prompt for each in held))

    @property
    def pid(self) -> int | None:
        """The core's process id, once it is started."""
        return self._process.pid if self._process else None

    async def adopt(self, core: StartedCore, config: EngineConfig) -> None:
        """Give a core process its configuration; it is this link's from now on."""
        self._process, self._pulse = core.process, core.pulse
        logger.info("started the engine core", extra={"core_pid": core.process.pid})
        await self.attach(core.connection, config)

    async def attach(self, connection: socket.socket, config: EngineConfig) -> None:
        """Talk to a core at the other end of `connection`."""
        self.config = config
        self._num_commands = self._pulse.num_commands
        connection.setblocking(False)
        reader, self._writer = await asyncio.open_unix_connection(sock=connection)
        self._writer.write(encode("config", pack_config(config)))
        self._reading = asyncio.create_task(self._read(reader), name="engine-core-reader")

    async def wait_ready(self) -> None:
        """Wait until the model is loaded, or the core has failed."""
        await self._ready.wait()

    async def wait_closed(self) -> CoreFailure | None:
        """Wait until the core is gone; return why, or None after `close()`."""
        await self._closed.wait()
        return self.failure

    def use_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Tell the core what tokens stand for, once; before the first request with a grammar."""
        if not self.is_vocabulary_told and self._writer is not None:
            self.is_vocabulary_told = True
            self._tell("vocabulary", vocabulary.pack())

    def reset_prefix_cache(self) -> None:
        """Have the core forget what later prompts could begin with."""
        if self._writer is not None and not self._writer.is_closing():
            self._tell("reset_prefix_cache", None)

    def submit(
        self, requests: Sequence[EngineRequest | PoolingRequest], *, held: Held = NOTHING
    ) -> RequestStream:
        """Give sequences, or texts to embed or score, to the core; their outputs come on one stream.

        Args:
            requests: that are computed.
            held: what each of them has a copy of.
        """
        stream = RequestStream(self, [request.request_id for request in requests], held)
        if self._writer is None or self.failure is not None:
            for request in requests:
                stream.deliver(_error_output(request.request_id, self.failure))
            return stream
        for request in requests:
            self._tell(*_command(request))
            self._streams[request.request_id] = stream
        return stream

    def abort(self, request_ids: Iterable[str]) -> None:
        """End sequences early; unknown ones are ignored."""
        known = [each for each in request_ids if self._streams.pop(each, None) is not None]
        if known and self._writer is not None and not self._writer.is_closing():
            self._tell("abort", known)

    def stalled_seconds(self) -> float:
        """Return for how long nothing has been computed while there was work; 0 while there is none.

        Work is also what the core was told and did not take: a core that is stopped while it is idle.
        """
        if self.info is None or not self._has_work():
            return 0.0
        return max(0.0, time.monotonic() - max(self._pulse.last_beat, self._work_since))

    def _has_work(self) -> bool:
        return bool(self._streams) or self._num_commands > self._pulse.num_commands

    def _tell(self, kind: str, payload: Any) -> None:
        """Send the core a command."""
        assert self._writer is not None, "there is a core"
        if not self._has_work():
            self._work_since = time.monotonic()
        self._num_commands += 1
        self._writer.write(encode(kind, payload))

    async def close(self) -> None:
        """End the core and wait until its process is gone: it is killed if it does not end in a few seconds."""
        self._is_closing = True
        if self.info is None:
            self.kill()  # it may be loading for minutes, and has nothing to save
        self._hang_up()
        if self._reading is not None:
            await self._reading

    def kill(self) -> None:
        """Have `close()` wait no longer for the core to end by itself."""
        if self._process is not None:
            self._process.kill()

    def _hang_up(self) -> None:
        """Leave the core without a last word: it may not read before somebody has read what it sends."""
        if self._writer is not None:
            self._writer.transport.abort()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while self._reported is None:
                kind, payload = await read_frame(reader)
                self._handle(kind, payload)
        except ConnectionEnded:
            pass
        finally:
            status = await self._reap()
            if not self._is_closing:
                self.failure = self._reported or _failure_from_status(
                    status, self._oom_kills_before
                )
            self._end_streams()
            self._hang_up()
            self._ready.set()
            self._closed.set()

    def _handle(self, kind: str, payload: Any) -> None:
        if kind == "step":
            outputs, stats = payload
            self.stats = unpack_stats(stats)
            for values in outputs:
                self._deal(unpack_output(values))
            self._on_step(self.stats, len(outputs))
        elif kind == "progress":
            self._note_progress(str(payload))
        elif kind == "ready":
            self.info = unpack_info(payload)
            self._ready.set()
        elif kind == "failed":
            self._reported = CoreFailure(*payload)

    def _note_progress(self, detail: str) -> None:
        """Keep every step of a start for /health, and log each once, without its percentages."""
        is_same = re.sub(r"\d+", "", detail) == re.sub(r"\d+", "", self.progress)
        self.progress = detail
        logger.log(logging.DEBUG if is_same else logging.INFO, "starting: %s", detail)

    def _deal(self, step: StepOutput) -> None:
        request_id = step.output.request_id
        is_last = step.output.finish_reason is not None
        stream = self._streams.pop(request_id, None) if is_last else self._streams.get(request_id)
        if stream is not None:  # otherwise it was aborted while the step ran
            stream.deliver(step)

    def _end_streams(self) -> None:
        streams, self._streams = self._streams, {}
        for request_id, stream in streams.items():
            stream.deliver(_error_output(request_id, self.failure))

    async def _reap(self) -> int | None:
        """Wait for the core's process to end, killing it if it does not; return its status."""
        process = self._process
        if process is None:
            return None
        try:
            return await asyncio.to_thread(process.wait, _REAP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            return await asyncio.to_thread(process.wait)


def _command(request: EngineRequest | PoolingRequest) -> tuple[str, list[Any]]:
    if isinstance(request, PoolingRequest):
        return "pool", pack_pooling(request)
    return "add", pack_request(request)


def _error_output(request_id: str, failure: CoreFailure | None) -> StepOutput:
    message = "the engine stopped" if failure is None else "the engine failed"
    return StepOutput(
        RequestOutput(request_id=request_id, finish_reason="error"),
        Refusal(f"{message} before the answer was complete", "engine_stopped", is_internal=True),
    )


def _failure_from_status(status: int | None, oom_kills_before: int | None) -> CoreFailure:
    """Explain a core that died without a word."""
    if status == -signal.SIGKILL:
        return _killed(oom_kills_before, num_oom_kills())
    if status is not None and status < 0:
        name = signal.Signals(-status).name
        return CoreFailure(InternalError.exit_code, f"the engine core was ended by {name}")
    if status == OutOfMemory.exit_code:
        return CoreFailure(status, "the engine core ran out of memory", MEMORY_HINT)
    return CoreFailure(
        status or InternalError.exit_code, f"the engine core ended with status {status}"
    )


def _killed(oom_kills_before: int | None, oom_kills: int | None) -> CoreFailure:
    """Say what the kernel's count of processes killed for want of memory tells."""
    message = "the engine core was killed by signal 9"
    hint = "A smaller --max-model-len or KV cache needs less memory."
    if oom_kills_before is None or oom_kills is None:
        guess = f"If the kernel's log says that memory ran out: {hint[0].lower()}{hint[1:]}"
        return CoreFailure(OutOfMemory.exit_code, message, guess)
    if oom_kills > oom_kills_before:
        return CoreFailure(OutOfMemory.exit_code, f"{message}: memory ran out", hint)
    return CoreFailure(
        InternalError.exit_code, f"{message}, and not by the kernel for want of memory"
    )
