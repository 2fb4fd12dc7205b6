"""exo-engine: the project's own engine, served on the local platform.

Its catalogue is `catalog/exo.json`, the output of `exo-engine parameters --json`, verbatim; a test
holds the two equal. Exit codes and the last line of a failed start are the engine's documented contract.
"""

from __future__ import annotations

import functools
import json
import shutil
import signal
import sys
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from exo_inference import __version__
from exo_inference.engines.base import CPU, GPU, EngineNotInstalled, Failure, ReplicaCommand
from exo_inference.engines.flags.catalogue import ReleaseFlags, single_release
from exo_inference.engines.flags.dialects import EXO
from exo_inference.engines.flags.reader import Reading, read_vector
from exo_inference.wire import EngineParameter

_MACHINE = "one replica runs on one machine"
_SOCKET = "replicas listen on a private socket behind the gateway"
_GATEWAY = "the gateway is the only way in"

PLATFORM_OWNED = {
    "model": "it is the deployment's model",
    "served-model-name": "it is the deployment's model name",
    "tokenizer": "the tokenizer comes with the model",
    "revision": "the model's revision was pinned when it was created",
    "download-dir": "the platform keeps the model's files",
    "hf-token": "a Hub token is given when the model is created",
    "host": _SOCKET,
    "port": _SOCKET,
    "uds": _SOCKET,
    "api-key": "the gateway checks keys; use `deployment reveal-api-key`",
    "ssl-keyfile": _GATEWAY,
    "ssl-certfile": _GATEWAY,
    "root-path": _GATEWAY,
    "device": "use the deployment's gpu-type",
    "device-ids": "use the deployment's gpu-count",
    "tensor-parallel-size": "use the deployment's gpu-count",
    "data-parallel-size": "use the deployment's replicas",
    "pipeline-parallel-size": _MACHINE,
}
"""Names of flags that a user must not set, with the reason or the field to use instead."""

_ERROR_PREFIX = "exo-engine: error: "

_EXITS = {
    70: ("the engine failed with an internal error", True),
    71: ("the engine found too few resources (often memory) to start", True),
    75: ("the engine could not start for now", True),
    78: ("the engine cannot work with this model or these parameters", False),
    126: ("the engine's program cannot be executed", False),
    127: ("the engine's program was not found", False),
}


class ExoEngine:
    """The engine that comes with the project.

    Args:
        executable: the program; None looks it up beside this Python and on the PATH.
    """

    name = "exo"
    devices = (CPU, GPU)
    spans_nodes = False

    def __init__(self, executable: Path | None = None) -> None:
        self._executable = executable

    @property
    def version(self) -> str:
        """Release of the engine: that of the project, which ships both together."""
        return __version__

    def parameters(self, version: str | None = None) -> tuple[EngineParameter, ...]:
        """Return the flags a user may set; the same for every vLLM version the engine stands for."""
        return _catalogue()

    def read(self, parameters: Sequence[str], version: str | None = None) -> Reading:
        """Return what a user's flags set, and everything that is wrong with them."""
        return read_vector(parameters, _flags(), PLATFORM_OWNED)

    def command(self, replica: ReplicaCommand) -> tuple[str, ...]:
        """Return the argument vector that starts one replica; the user's flags come last.

        Raises:
            EngineNotInstalled
        """
        device = "cpu" if replica.gpu_type == "cpu" or replica.simulation else "cuda"
        flags = replica.parameters
        if replica.kv_cache_bytes:  # before the user's, which win
            flags = ("--kv-cache-memory-bytes", str(replica.kv_cache_bytes), *flags)
        if replica.simulation:
            flags = ("--simulation", replica.simulation)
        return (
            str(self._executable or find_executable()),
            "serve",
            str(replica.model_path),
            "--served-model-name",
            replica.served_model_name,
            "--uds",
            replica.socket,
            "--device",
            device,
            *flags,
        )

    def diagnose(self, exit_code: int | None, log_tail: Sequence[str]) -> Failure:
        """Say why a replica ended, from its exit code and the engine's last word in the log."""
        said = _last_error(log_tail)
        if exit_code is None:
            return Failure(said or "the engine ended while nobody watched", retry=True)
        if exit_code < 0:
            return _diagnose_signal(-exit_code, said)
        if exit_code == 0:
            return Failure("the engine ended without being asked to", retry=True)
        message, retry = _EXITS.get(exit_code, ("the engine failed", True))
        if said is None and (memory := _find_memory_error(log_tail)):
            return Failure(f"out of memory: {memory}", retry=True)
        return Failure(said or f"{message} (exit code {exit_code})", retry)


ENGINE = ExoEngine()


def find_executable() -> Path:
    """Return the engine's program: beside this Python, else on the PATH.

    Raises:
        EngineNotInstalled
    """
    beside = Path(sys.executable).parent / "exo-engine"
    if beside.is_file():
        return beside
    found = shutil.which("exo-engine")
    if found is None:
        raise EngineNotInstalled(
            f"the engine is not installed: no exo-engine beside {sys.executable} or on the PATH",
            hint="Install it with `pip install 'exo-inference[engine]'`.",
        )
    return Path(found)


def _diagnose_signal(number: int, said: str | None) -> Failure:
    if number == signal.SIGKILL:
        # Whether memory had run out, the kernel's own count says; the platform reads it.
        return Failure("the engine was killed (SIGKILL)", retry=True)
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    return Failure(said or f"the engine was ended by {name}", retry=True)


def _last_error(log_tail: Sequence[str]) -> str | None:
    for line in reversed(log_tail):
        _, found, message = line.partition(_ERROR_PREFIX)
        if found and message.strip():
            return message.strip()
    return None


def _find_memory_error(log_tail: Sequence[str]) -> str | None:
    signatures = ("OutOfMemoryError", "CUDA out of memory", "MemoryError", "Cannot allocate memory")
    for line in reversed(log_tail):
        if any(signature in line for signature in signatures):
            return line.strip()[:256]
    return None


@functools.cache
def _records() -> list[dict[str, Any]]:
    text = (resources.files("exo_inference.engines") / "catalog" / "exo.json").read_text("utf-8")
    records: list[dict[str, Any]] = json.loads(text)
    return records


@functools.cache
def _flags() -> ReleaseFlags:
    return single_release("", __version__, _records(), EXO)


@functools.cache
def _catalogue() -> tuple[EngineParameter, ...]:
    offered = (record for record in _records() if record["name"] not in PLATFORM_OWNED)
    return tuple(EngineParameter.model_validate(record) for record in offered)
