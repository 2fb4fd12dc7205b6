"""What `up` and `status` print: where the control plane of a directory answers, and its processes.

The secret is read nowhere here; users find it in the configuration file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from exo_inference.cli.control_plane.processes import (
    LocalProcess,
    describe_unrecorded,
    find_replicas,
    find_servers,
    find_strays,
)
from exo_inference.cli.control_plane.recovery import find_losses, get, recover_settings
from exo_inference.cli.rendering.output import Field, Record

if TYPE_CHECKING:
    from exo_inference.errors import UsageError
    from exo_inference.local_settings import LocalSettings
    from exo_inference.state_dir import StateDir


@dataclass(frozen=True)
class Overview:
    """One control plane at one moment.

    Attributes:
        state_dir: its directory.
        settings: what it was started with; None when it never was.
        api_key: the public half of its credentials; empty when there are none.
        processes: supervisor, controller and gateway, then the engines.
        losses: what was deleted under them.
    """

    state_dir: StateDir
    settings: LocalSettings | None
    api_key: str
    processes: tuple[LocalProcess, ...]
    losses: tuple[str, ...] = ()

    @property
    def servers(self) -> tuple[LocalProcess, ...]:
        """Supervisor, controller and gateway, also those that do not run."""
        return tuple(process for process in self.processes if process.role == "server")

    @property
    def answers(self) -> bool:
        """Whether all servers run and answer."""
        return all(process.state == "running" for process in self.servers)

    @property
    def has_servers(self) -> bool:
        """Whether any server runs."""
        return any(process.pid for process in self.servers)

    @property
    def has_engines(self) -> bool:
        """Whether any engine runs."""
        return any(process.pid for process in self.processes if process.role == "engine")

    @property
    def state(self) -> str:
        """`running`, `stopped`, or `degraded` for what is between: see processes and losses."""
        if not self.has_servers and not self.has_engines:
            return "stopped"
        return "running" if self.answers and not self.losses else "degraded"

    def warn(self) -> None:
        """Say on stderr what was lost."""
        for loss in self.losses:
            click.echo(f"warning: {loss}", err=True)

    def record(self) -> Record:
        """Return the fields to print."""
        settings = self.settings
        simulated = settings.simulated if settings else ""
        return (
            Field("state", "State", "State", self.state),
            Field("endpoint", "Endpoint", "Endpoint", settings.endpoint if settings else ""),
            Field("zone", "Zone", "Zone", settings.zone if settings else ""),
            Field("gateway", "Gateway", "Gateway", settings.gateway_url if settings else ""),
            Field("api_key", "APIKey", "API Key", self.api_key),
            Field("config_file", "ConfigFile", "Configuration", str(self.state_dir.config_file)),
            Field("state_dir", "StateDir", "State Directory", str(self.state_dir.root)),
            *(
                [Field("simulated_gpus", "SimulatedGPUs", "Simulated GPUs", simulated, added=True)]
                * bool(simulated)
            ),
            Field(
                "processes",
                "Processes",
                "",
                [_process_object(process) for process in self.processes],
                added=True,
            ),
            *(
                [Field("problems", "Problems", "", list(self.losses), added=True)]
                * bool(self.losses)
            ),
        )

    def rows(self) -> list[tuple[str, str]]:
        """Return one table row for each process and each loss."""
        losses = [("Problem", loss) for loss in self.losses]
        return losses + [
            (
                f"Replica {process.name}"
                if process.role == "engine"
                else process.name.capitalize(),
                ", ".join(filter(None, (process.state, _pid(process), process.details))),
            )
            for process in self.processes
        ]


FIELD_NAMES = ("State", "Endpoint", "Zone", "Gateway", "APIKey", "ConfigFile", "StateDir")


def look_at(state: StateDir) -> Overview:
    """Find out how a control plane stands; asks its servers whether they answer.

    Raises:
        UsageError: nothing of it runs, and its settings or its configuration file cannot be read.
    """
    from exo_inference.errors import ConfigurationError, UsageError
    from exo_inference.local_settings import load_settings, read_credentials

    servers, engines = find_servers(state), _find_engines(state)
    runs = any(process.pid for process in (*servers, *engines))
    damage: list[str] = []
    try:
        settings = load_settings(state)
    except UsageError as exc:  # what runs may know them
        settings = recover_settings(servers)
        if settings is None and not runs:
            raise
        if settings is None:
            damage.append(_refused("settings.json", exc))
    try:
        api_key = read_credentials(state).key
    except ConfigurationError:
        api_key = ""
    except UsageError as exc:  # of what runs it is a loss
        if not runs:
            raise
        api_key = ""
        damage.append(_refused("exoscale.toml", exc))
    if settings is None:
        settings = recover_settings(servers)
    servers = [_with_answer(process, settings) for process in servers]
    losses = find_losses(state, servers, settings) or tuple(damage)
    return Overview(state, settings, api_key, (*servers, *engines), losses)


def _refused(name: str, damage: UsageError) -> str:
    return f"{name} is damaged: {damage.message}. `up` refuses it until it is mended"


def _find_engines(state: StateDir) -> list[LocalProcess]:
    """Return one process for each replica, also for one whose record is to come, or was deleted."""
    recorded = find_replicas(state)
    engines = {process.name: process for process in recorded if process.role == "engine"}
    known = {process.name for process in recorded}
    for process in find_strays(state, recorded):
        if process.role == "stray" and process.name not in known:
            engines.setdefault(process.name, describe_unrecorded(state, process))
    return list(engines.values())


def does_answer(url: str) -> bool:
    """Tell whether an HTTP server answers there, whatever it says."""
    return get(url) is not None


def _with_answer(process: LocalProcess, settings: LocalSettings | None) -> LocalProcess:
    if settings is None or process.state != "running" or process.name == "supervisor":
        return process
    is_gateway = process.name == "gateway"
    url = settings.gateway_url + "/healthz" if is_gateway else settings.endpoint + "/zone"
    return process if does_answer(url) else replace(process, state="starting")


def _pid(process: LocalProcess) -> str:
    return f"pid {process.pid}" if process.pid else ""


def _process_object(process: LocalProcess) -> dict[str, Any]:
    known: dict[str, Any] = {
        "name": process.name,
        "pid": process.pid,
        "state": process.state,
    }
    if process.details:
        known["details"] = process.details
    if process.role == "engine":
        known |= {"deployment": process.deployment, "replica": process.name}
    return known
