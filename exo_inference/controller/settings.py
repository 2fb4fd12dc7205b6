"""The controller's settings: built once from the command line and `settings.json`, then frozen.

`__main__.py` builds them; tests build their own. Ports and zone are what `up` saved.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from exo_inference.errors import ConfigurationError
from exo_inference.local_settings import load_settings
from exo_inference.settings import resolve_state_dir
from exo_inference.simulated_gpus import SimulatedGpus, parse_simulated_gpus
from exo_inference.state_dir import StateDir


@dataclass(frozen=True)
class ControllerSettings:
    """Everything the controller is told at its start."""

    state: StateDir
    """Where all state is kept."""

    host: str = "127.0.0.1"
    """Address to listen on."""

    port: int = 0
    """TCP port to listen on; 0 takes any free one, which only tests use."""

    zone: str = "ch-dk-2"
    """The one zone this control plane offers."""

    gateway_url: str = "http://127.0.0.1:0"
    """Base URL of the gateway as clients reach it; deployment URLs begin with it."""

    public_endpoint: str | None = None
    """What the zone list says; None derives it from each request's Host and X-Forwarded headers."""

    simulated_gpus: tuple[SimulatedGpus, ...] = ()
    """GPU families that are offered without being there; with any, models of the Hub are simulated too."""

    simulation_speedup: int = 1
    """Durations on simulated GPUs are divided by it; 1 is real time."""

    resync_seconds: float = 30.0
    """How often orphans are looked for and every object is looked at again."""

    model_retry_seconds: float = 2.0
    """How long the first retry of a failed fetch waits; it doubles up to a minute."""

    num_workers: int = 8
    """Objects that are reconciled at the same time."""

    gateway_timeout_seconds: float = 5.0
    """A gateway silent for so long is taken to send no requests any more."""


def read_settings(argv: Sequence[str] | None = None) -> ControllerSettings:
    """Build the settings of this process.

    Raises:
        UsageError: settings.json is not readable, or names GPUs that nobody knows.
        ConfigurationError: this control plane was never prepared.
    """
    parser = argparse.ArgumentParser(
        prog="python -m exo_inference.controller", description="Run the controller."
    )
    parser.add_argument("--state-dir", type=Path, default=None, help="its state directory")
    parser.add_argument("--public-endpoint", default=None, help="what the zone list says")
    arguments = parser.parse_args(argv)
    state = StateDir(resolve_state_dir(arguments.state_dir))
    saved = load_settings(state)
    if saved is None:
        raise ConfigurationError(
            f"there is no {state.settings_file}: this control plane was never started",
            hint="Run `exo dedicated-inference up`.",
        )
    return ControllerSettings(
        state=state,
        host=saved.host,
        port=saved.port,
        zone=saved.zone,
        gateway_url=saved.gateway_url,
        public_endpoint=arguments.public_endpoint,
        simulated_gpus=parse_simulated_gpus(saved.simulate_gpus),
        simulation_speedup=saved.simulate_speedup,
    )
