"""What an engine is to the control plane: a catalogue, a command line, and a reader of failures.

Admission calls `parameters` and `read`; a platform calls `command` to start one replica and
`diagnose` when it has ended. Implementations: `exo.py`, `vllm.py`, and `cluster_engine.py` for the other engines
that only a cluster runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from exo_inference.engine_names import facts_of
from exo_inference.engines.flags.reader import Reading
from exo_inference.errors import PlatformError, UsageError
from exo_inference.wire import EngineParameter

CPU, GPU = "cpu", "gpu"
"""What an engine runs on."""


class UnknownEngine(PlatformError):
    """No engine has that name."""


class UnknownEngineRelease(UsageError):
    """The flags of that release of the engine are not known."""


class EngineNotInstalled(PlatformError):
    """The engine's program is not on this machine."""


@dataclass(frozen=True, slots=True)
class ReplicaCommand:
    """Everything one replica is started from.

    Attributes:
        model_path: directory with the model's files.
        served_model_name: what clients send as `model`.
        socket: unix socket to listen on, relative to the replica's working directory.
        gpu_type: family of the deployment; `cpu` runs without a GPU.
        gpu_count: GPUs of this one replica.
        parameters: the user's flags, found good by `Engine.read` before.
        simulation: file with what is simulated, relative to the working directory; the flags are
            in it already. None for a replica that runs on what it says.
        kv_cache_bytes: on the CPU, unless the flags say it; 0 leaves it to the engine.
    """

    model_path: Path
    served_model_name: str
    socket: str
    gpu_type: str
    gpu_count: int
    parameters: tuple[str, ...] = ()
    simulation: str | None = None
    kv_cache_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a replica ended.

    Attributes:
        message: for people, with the next step where there is one.
        retry: starting it again as it is may help.
    """

    message: str
    retry: bool


class Engine(Protocol):
    """The seam. All methods are pure, but for `command` looking up the program."""

    @property
    def name(self) -> str:
        """What deployments call it: one of `engine_names.ENGINES`."""
        ...

    @property
    def devices(self) -> tuple[str, ...]:
        """What it runs on: `CPU`, `GPU` or both."""
        ...

    @property
    def spans_nodes(self) -> bool:
        """Whether the GPUs of one replica may be on several nodes."""
        ...

    @property
    def version(self) -> str:
        """Release of the engine that the catalogue was made from."""
        ...

    def parameters(self, version: str | None = None) -> tuple[EngineParameter, ...]:
        """Return the catalogue of flags a user may set."""
        ...

    def read(self, parameters: Sequence[str], version: str | None = None) -> Reading:
        """Return what a user's flags set, and everything that is wrong with them.

        Raises:
            UsageError: the flags of that release are not known.
        """
        ...

    def command(self, replica: ReplicaCommand) -> tuple[str, ...]:
        """Return the argument vector that starts one replica.

        Raises:
            EngineNotInstalled
        """
        ...

    def diagnose(self, exit_code: int | None, log_tail: Sequence[str]) -> Failure:
        """Say why a replica ended.

        Args:
            exit_code: as `subprocess` has it, negative for a signal; None if nobody saw the end.
            log_tail: its last log lines, oldest first.
        """
        ...


class ClusterOnly:
    """What engines have in common that run in pods alone: nothing of them is started by this process."""

    name: str

    @property
    def title(self) -> str:
        """The engine's name for people."""
        return facts_of(self.name).title

    def command(self, replica: ReplicaCommand) -> tuple[str, ...]:
        """Refuse: its command line is made by the entrypoint of its image.

        Raises:
            EngineNotInstalled
        """
        raise EngineNotInstalled(
            f"{self.title} runs on a cluster only, not as a process of this machine",
            hint="Create the deployment with the engine `exo`.",
        )

    def diagnose(self, exit_code: int | None, log_tail: Sequence[str]) -> Failure:
        """Say no more than the exit code does; on a cluster `container_failures.py` reads the log."""
        return Failure(f"{self.title} ended (exit code {exit_code})", retry=True)
