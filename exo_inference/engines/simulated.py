"""vLLM: its flags, and on one machine, where its GPUs are simulated, exo-engine's process.

The local platform starts it on families of `--simulate-gpus` alone. What vLLM would do there is in
the simulation file that the platform writes; exo-engine behaves by that file. On a cluster vLLM runs
in pods, and only its flags are asked for here.
"""

from __future__ import annotations

from collections.abc import Sequence

from exo_inference.engines import vllm
from exo_inference.engines.base import GPU, EngineNotInstalled, Failure, ReplicaCommand
from exo_inference.engines.exo import ExoEngine
from exo_inference.engines.flags.reader import Reading
from exo_inference.engines.versions import DEFAULT_VERSION
from exo_inference.wire import EngineParameter


class SimulatedVllm:
    """The engine `vllm` of simulated GPU families.

    Args:
        stand_in: what is started in its place.
    """

    name = "vllm"
    devices = (GPU,)
    spans_nodes = True

    def __init__(self, stand_in: ExoEngine | None = None) -> None:
        self._stand_in = stand_in or ExoEngine()

    @property
    def version(self) -> str:
        """The release whose flags are meant where a deployment names none."""
        return DEFAULT_VERSION

    def parameters(self, version: str | None = None) -> tuple[EngineParameter, ...]:
        """Return the flags a user may set in a release of vLLM."""
        return vllm.parameters(version)

    def read(self, parameters: Sequence[str], version: str | None = None) -> Reading:
        """Return what a user's flags set, and everything that is wrong with them."""
        return vllm.read(parameters, version)

    def command(self, replica: ReplicaCommand) -> tuple[str, ...]:
        """Return the argument vector that starts one simulated replica.

        Raises:
            EngineNotInstalled: the replica is not simulated.
        """
        if replica.simulation is None:
            raise EngineNotInstalled(
                f"vLLM is not started on {replica.gpu_type}: here it runs on simulated GPUs only",
                hint="Create the deployment with the engine `exo`.",
            )
        return self._stand_in.command(replica)

    def diagnose(self, exit_code: int | None, log_tail: Sequence[str]) -> Failure:
        """Say why a replica ended."""
        return self._stand_in.diagnose(exit_code, log_tail)
