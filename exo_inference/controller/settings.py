"""The controller's settings: built once from the command line and where it runs, then frozen.

`__main__.py` builds them; tests build their own. On one machine ports and zone are what `up` saved, in
a pod they are what the chart exo-inference says through the environment.
"""

from __future__ import annotations

import argparse
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import exo_inference
from exo_inference.controller.user_gpus import FILE_NAME as GPUS_FILE_NAME
from exo_inference.errors import ConfigurationError
from exo_inference.kubernetes_api.pod import PodSettings, read_pod, read_text
from exo_inference.local_settings import ZONES, load_settings
from exo_inference.settings import resolve_state_dir
from exo_inference.simulated_gpus import SimulatedGpus, parse_simulated_gpus
from exo_inference.state_dir import StateDir

_ZONE = "ch-dk-2"


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """How patient everyone is. All candidates should have the same."""

    duration_seconds: float = 12.0
    """A Lease that stayed as it is for so long may be taken."""

    renew_seconds: float = 8.0
    """A leader that did not manage to renew for so long stops. What is left until the Lease may be
    taken is for its work to end."""

    retry_seconds: float = 2.0
    """How often a leader renews and a candidate looks."""


@dataclass(frozen=True)
class ClusterSettings:
    """What a controller on a cluster is told besides."""

    pod: PodSettings
    """Which pod this is, and where it answers."""

    lease: str
    """Name of the Lease that makes one controller the leader."""

    credentials_secret: str
    """Name of the Secret with the API's signing key; it is made if it is not there."""

    gateway_namespace: str
    """Namespace of the gateways, which alone may reach engines."""

    platform_file: Path
    """File with what every release begins with."""

    gpus_file: Path
    """GPUs that the administrator described; it need not be there."""

    charts_dir: Path
    """Directory with the charts that are installed for models and deployments."""

    work_dir: Path
    """Where Helm keeps its cache."""

    lease_times: LeaseTimes | None = None
    """How patient leader and candidates are; None is the usual."""


@dataclass(frozen=True)
class ControllerSettings:
    """Everything the controller is told at its start."""

    state: StateDir
    """Where all state is kept."""

    host: str = "127.0.0.1"
    """Address to listen on."""

    port: int = 0
    """TCP port to listen on; 0 takes any free one, which only tests use."""

    zone: str = _ZONE
    """The one zone this control plane offers."""

    gateway_url: str = "http://127.0.0.1:0"
    """Base URL of the gateway as clients reach it; deployment URLs begin with it."""

    public_endpoint: str | None = None
    """What the zone list says; None chooses among our own addresses by each request's Host header."""

    api_addresses: tuple[str, ...] = ()
    """Base URLs that clients may reach the API under, without its path; on one machine, where none are
    given, it is the address that a request came to."""

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

    cluster: ClusterSettings | None = None
    """None on one machine."""


def read_settings(
    argv: Sequence[str] | None = None, environment: Mapping[str, str] | None = None
) -> ControllerSettings:
    """Build the settings of this process.

    Args:
        argv: the command line; None is that of the process.
        environment: None is that of the process; only a pod is told something by it.

    Raises:
        UsageError: settings.json is not readable, or names GPUs that nobody knows.
        ConfigurationError: this control plane was never prepared, or the environment makes no sense.
    """
    parser = argparse.ArgumentParser(
        prog="python -m exo_inference.controller", description="Run the controller."
    )
    parser.add_argument("--platform", choices=("local", "kubernetes"), default="local")
    local = parser.add_argument_group("on one machine")
    local.add_argument("--state-dir", type=Path, default=None, help="its state directory")
    local.add_argument("--public-endpoint", default=None, help="what the zone list says")
    pod = parser.add_argument_group("in a pod")
    pod.add_argument("--namespace", help="of the inference objects; the pod's own if not given")
    pod.add_argument("--kubeconfig", type=Path, help="instead of the pod's service account")
    arguments = parser.parse_args(argv)
    if arguments.platform == "kubernetes":
        told = os.environ if environment is None else environment
        return _read_cluster_settings(arguments, told)
    return _read_local_settings(arguments)


def _read_local_settings(arguments: argparse.Namespace) -> ControllerSettings:
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


def _read_cluster_settings(
    arguments: argparse.Namespace, environment: Mapping[str, str]
) -> ControllerSettings:
    pod = read_pod(environment, arguments.namespace, arguments.kubeconfig)
    zone = environment.get("EXO_ZONE") or _ZONE
    if zone not in ZONES:
        raise ConfigurationError(
            f"EXO_ZONE is {zone[:64]!r}, which is no zone of the v2 API",
            hint=f"Set the chart's value zone to one of: {', '.join(ZONES)}.",
        )
    platform_file = Path(read_text(environment, "EXO_PLATFORM_FILE"))
    scratch = Path(tempfile.gettempdir()) / "exo-controller"
    cluster = ClusterSettings(
        pod=pod,
        lease=read_text(environment, "EXO_LEASE"),
        credentials_secret=read_text(environment, "EXO_CREDENTIALS_SECRET"),
        gateway_namespace=environment.get("EXO_GATEWAY_NAMESPACE") or pod.namespace,
        platform_file=platform_file,
        gpus_file=platform_file.parent / GPUS_FILE_NAME,
        charts_dir=Path(exo_inference.__file__).resolve().parents[1] / "charts",
        work_dir=scratch / "helm",
    )
    return ControllerSettings(
        state=StateDir(scratch),
        port=pod.listen_port,
        zone=zone,
        gateway_url=read_text(environment, "EXO_GATEWAY_URL").rstrip("/"),
        public_endpoint=environment.get("EXO_PUBLIC_ENDPOINT") or None,
        api_addresses=_read_addresses(environment),
        resync_seconds=60.0,
        num_workers=16,
        cluster=cluster,
    )


def _read_addresses(environment: Mapping[str, str]) -> tuple[str, ...]:
    addresses = tuple((environment.get("EXO_API_ADDRESSES") or "").split())
    for address in addresses:
        if not re.fullmatch(r"https?://[A-Za-z0-9.-]{1,253}(:[0-9]{1,5})?", address):
            raise ConfigurationError(
                f"EXO_API_ADDRESSES has {address[:256]!r}, which is no URL of a host",
                hint="Give URLs as http://exo-controller.inference.svc, separated by blanks.",
            )
    return addresses
