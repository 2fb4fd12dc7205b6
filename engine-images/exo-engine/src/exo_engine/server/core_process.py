"""The engine-core process: owns the model, steps it, and tells the API process what came out.

Started only by `exo_engine.server.core_start`, with one end of a socket pair. It never outlives the
API process: the kernel kills it when its parent dies (PR_SET_PDEATHSIG), and it ends by itself when
the socket closes. Signals from a terminal or a process group are the API process's business and
ignored here. A start that fails is told in a `failed` frame, with the exit status to end with.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import logging
import signal
import socket
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol

from exo_engine import garbage, pulse
from exo_engine.clock import Clock
from exo_engine.config import EngineConfig
from exo_engine.core.parent import die_with_parent
from exo_engine.core.pooling.requests import PoolingRequest
from exo_engine.core.request import NOTHING_LEFT, EngineRequest, EngineStats, RequestOutput
from exo_engine.core.start_up import StartUp
from exo_engine.errors import (
    MEMORY_HINT,
    EngineError,
    InternalError,
    InvalidSamplingParams,
    OutOfMemory,
    RequestError,
    has_no_memory,
)
from exo_engine.frames import ConnectionEnded, FrameSocket, Message
from exo_engine.models.pooling.spec import PoolingSpec
from exo_engine.models.spec import DecoderSpec
from exo_engine.process_end import leave
from exo_engine.server.logs import configure_logging
from exo_engine.server.messages import (
    CoreInfo,
    PoolingInfo,
    Refusal,
    pack,
    pack_info,
    pack_output,
    unpack_config,
    unpack_pooling,
    unpack_request,
)
from exo_engine.server.torch_import import import_torch
from exo_engine.structured_output.compiler import PARAM
from exo_engine.structured_output.vocabulary import Vocabulary

logger = logging.getLogger("exo_engine.server.core_process")  # not __main__, as which it runs


class Core(Protocol):
    """What the loop needs of an engine core."""

    def add_request(self, request: Any) -> None:
        """Queue one request, of the kind that this core serves."""

    def use_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Take what tokens stand for; before the first request with a grammar."""

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        """Forget requests; unknown ids are ignored."""

    def reset_prefix_cache(self) -> None:
        """Forget what later prompts could begin with."""

    def has_unfinished_requests(self) -> bool:
        """Say whether a step would do anything."""

    def step(self) -> list[RequestOutput]:
        """Compute one step."""

    def check_processes(self) -> Sequence[int]:
        """Return sockets that hang up when a process that computes is gone; raises EngineError if one is."""

    def stats(self) -> EngineStats:
        """Return a snapshot of the counters."""


CoreFactory = Callable[[EngineConfig, Callable[[str], None]], tuple[Core, CoreInfo]]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the core on the socket that the API process opened."""
    begun = Clock().now()
    garbage.pause()
    parser = argparse.ArgumentParser(prog="exo-engine core", allow_abbrev=False)
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--log-level", required=True)
    parser.add_argument("--pulse", type=int, required=True)
    options = parser.parse_args(argv)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    die_with_parent(options.parent)
    pulse.OWN.share(options.pulse)
    configure_logging(options.log_level)
    link = FrameSocket(socket.socket(fileno=options.socket))
    # While the API process imports its own; what goes wrong here goes wrong once more below, and is told.
    with contextlib.suppress(Exception):
        import_torch()
    return serve(link, partial(_build_core, begun=begun))


def serve(link: FrameSocket, build: CoreFactory) -> int:
    """Build a core and run it until the API process is gone; return the exit status."""
    try:
        messages = link.receive(is_waiting=True)
        assert messages[0][0] == "config", "the first frame is the configuration"
        try:
            config = unpack_config(messages[0][1])
            core, info = build(config, lambda detail: link.send("progress", detail))
            link.send("ready", pack_info(info))
            _loop(link, core, messages[1:])
        except ConnectionEnded:
            raise
        except (
            Exception
        ) as exc:  # the edge of the process: whatever it was, the other end must know
            return _report(link, exc)
    except ConnectionEnded:
        logger.info("the API process is gone; ending")
    return 0


def _loop(link: FrameSocket, core: Core, messages: list[Message]) -> None:
    """Take commands and step, for ever; ends by `ConnectionEnded` or the core's own error."""
    commands = _Commands(core)
    while True:
        refused = []
        for message in messages:  # each is progress: thousands of long texts take seconds
            refused += commands.carry_out(*message)
            pulse.OWN.count_commands(1)
        outputs = []
        if has_stepped := core.has_unfinished_requests():
            outputs = [pack_output(output, _refusal_of(output)) for output in core.step()]
        # Also of a chunk of a prompt, which gives nothing yet: what a step computed is observed per step.
        if messages or has_stepped:
            link.send("step", [refused + outputs, pack(core.stats())])
        is_waiting = not core.has_unfinished_requests()
        if is_waiting:
            link.wait_beside(core.check_processes())
            core.check_processes()
        messages = link.receive(is_waiting=is_waiting)


def _refusal_of(output: RequestOutput) -> Refusal | None:
    if output.fault is None:
        return None
    if output.fault == NOTHING_LEFT:
        return Refusal(output.fault, InvalidSamplingParams.code)
    return Refusal(f"the answer's grammar: {output.fault}", "invalid_schema", PARAM)


class _Commands:
    """Carries out what the API process sends, in the order in which it comes."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._last_prompt: tuple[int, ...] = ()
        """Of the last request; its siblings come behind it, without the prompt that they share."""

    def carry_out(self, kind: str, payload: Any) -> list[list[Any]]:
        """Carry out a command; return an output where it was a request, and refused."""
        if kind == "abort":
            self._core.abort_requests(payload)
        elif kind == "reset_prefix_cache":
            self._core.reset_prefix_cache()
        elif kind == "vocabulary":
            self._core.use_vocabulary(Vocabulary.unpack(payload))
        else:
            try:
                self._core.add_request(self._unpack(kind, payload))
            except RequestError as exc:
                refusal = Refusal(exc.message, exc.code, exc.param)
                output = RequestOutput(request_id=payload[0], finish_reason="error")
                return [pack_output(output, refusal)]
        return []

    def _unpack(self, kind: str, payload: Sequence[Any]) -> EngineRequest | PoolingRequest:
        if kind == "pool":
            return unpack_pooling(payload)
        if (prompt := payload[1]) is not None:
            self._last_prompt = tuple(prompt)
        return unpack_request(payload, self._last_prompt)


def _build_core(
    config: EngineConfig, progress: Callable[[str], None], *, begun: float
) -> tuple[Core, CoreInfo]:
    start_up = StartUp(progress)
    if config.simulation is None:  # whose phases are its own
        start_up.begin("loading PyTorch", since=begun)
    # They import torch, so not before it is needed.
    from exo_engine.core.engine import EngineCore
    from exo_engine.core.pooling.core import PoolingCore
    from exo_engine.models.pooling.config_file import is_pooling

    kind = PoolingCore if is_pooling(config) else EngineCore
    core = kind(config, start_up=start_up)
    resolved, stats = core.config, core.stats()
    info = CoreInfo(
        vocabulary_size=core.spec.vocab_size,
        max_model_len=resolved.max_model_len,
        max_num_seqs=resolved.max_num_seqs,
        num_blocks=stats.num_blocks,
        block_size=stats.block_size,
        dtype=resolved.dtype,
        device=resolved.device,
        gpu_memory_utilization=resolved.gpu_memory_utilization,
        is_prefix_caching_on=resolved.enable_prefix_caching,
        measurements=dataclasses.asdict(core.measurements),
        pooling=_pooling_info(core.spec),
    )
    garbage.resume()
    return core, info


def _pooling_info(spec: PoolingSpec | DecoderSpec) -> PoolingInfo | None:
    if not isinstance(spec, PoolingSpec):
        return None
    return PoolingInfo(
        task=spec.task,
        num_dimensions=spec.num_dimensions,
        dimensions=spec.dimensions,
        is_activated=spec.is_activated,
        lowers_case=spec.lowers_case,
        labels=spec.labels,
    )


def _report(link: FrameSocket, exc: Exception) -> int:
    """Tell the API process why the core ends; return the exit status."""
    if isinstance(exc, EngineError):
        status, message, hint = exc.exit_code, exc.message, exc.hint
        logger.debug("the core failed", exc_info=exc)
    elif has_no_memory(exc):
        status, message, hint = (
            OutOfMemory.exit_code,
            "the engine core ran out of memory",
            MEMORY_HINT,
        )
    else:
        status = InternalError.exit_code
        message = f"the engine core broke: {type(exc).__name__}: {exc}"
        hint = "The traceback is in the log above; please report it."
        logger.error("the engine core broke", exc_info=exc)
    with contextlib.suppress(MemoryError):  # the status says it, too
        link.send("failed", [status, message, hint])
    return status


if __name__ == "__main__":
    leave(main())
