"""What is left of a control plane whose files were deleted while it runs, and putting it back.

Ports and addresses are read from what the servers listen on, the zone is asked for. The API's
secret and the database cannot be had back: `find_losses` says so, for `status` and `up`.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from exo_inference.errors import ExoError

if TYPE_CHECKING:
    from exo_inference.cli.control_plane.processes import LocalProcess
    from exo_inference.local_settings import LocalSettings
    from exo_inference.state_dir import StateDir

ANSWER_SECONDS = 2.0

DIRECTORY_LOSS = (
    "its state directory was deleted while it runs: models, deployments and keys are lost"
)


def recover_settings(servers: Sequence[LocalProcess]) -> LocalSettings | None:
    """Return what running servers were started with; None where one of them does not run."""
    from exo_inference.local_settings import LocalSettings

    pids = {process.name: process.pid for process in servers}
    controller = listening_address(pids.get("controller"))
    gateway = listening_address(pids.get("gateway"))
    if controller is None or gateway is None:
        return None
    found = LocalSettings(controller[0], controller[1], gateway[0], gateway[1])
    zone = _ask_zone(found.endpoint)
    return LocalSettings(*controller, *gateway, zone) if zone else None


def listening_address(pid: int | None) -> tuple[str, int] | None:
    """Return host and port of a TCP socket that a process listens on; see proc_net_tcp(5)."""
    if pid is None:
        return None
    try:
        sockets = {os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()}  # noqa: PTH115
    except OSError:
        return None
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            columns = line.split()
            if columns[3] == "0A" and f"socket:[{columns[9]}]" in sockets:
                address, _, port = columns[1].rpartition(":")
                return _host(address), int(port, 16)
    return None


def find_losses(
    state: StateDir, servers: Sequence[LocalProcess], settings: LocalSettings | None
) -> tuple[str, ...]:
    """Say what was deleted or damaged under running servers; empty where nothing was.

    Args:
        state: the directory.
        servers: of it, also those that do not run.
        settings: what they run with; None where that cannot be found out.
    """
    from exo_inference.local_settings import has_damaged_settings

    running = {process.name: process.pid for process in servers if process.pid is not None}
    if not running:
        return ()
    if any(_is_elsewhere(state, pid) for pid in running.values()):
        return (DIRECTORY_LOSS,)
    then = "`up` restores it" if settings else "not all of it runs, so it cannot be restored"
    losses = []
    if not state.settings_file.exists():
        losses.append(f"settings.json was deleted; {then}")
    elif has_damaged_settings(state):
        losses.append(f"settings.json is damaged; {then}")
    if not state.config_file.exists():
        losses.append(
            "exoscale.toml was deleted, with the API's secret; `up` makes new credentials"
        )
    elif damage := _find_damage(state):
        losses.append(
            f"exoscale.toml is damaged: {damage}. The API refuses every request until it is mended"
        )
    if any(p.name == "controller" and p.state == "running" for p in servers):
        if not state.secret_key_file.exists():
            losses.append(
                "secret.key was deleted: after the next start, keys and Hub tokens are unreadable"
            )
        if not state.database_file.exists():
            losses.append(
                "controller.db was deleted: models, deployments and keys are lost at the next start"
            )
    return tuple(losses)


def restore_files(
    state: StateDir, settings: LocalSettings | None, servers: Sequence[LocalProcess]
) -> bool:
    """Write settings and credentials anew where they were deleted under running servers.

    Args:
        state: the directory.
        settings: what the servers run with, as far as that is known.
        servers: those that run.

    Returns:
        Whether something was written.

    Raises:
        ExoError: the whole directory was deleted, or the settings cannot be found out.
        UsageError: the credentials are there and damaged; what there is of them is not thrown away.
    """
    from exo_inference.local_settings import (
        ensure_credentials,
        has_damaged_settings,
        read_credentials,
        save_settings,
        set_aside,
    )

    losses = find_losses(state, servers, settings)
    if DIRECTORY_LOSS in losses:
        raise ExoError(
            f"the control plane of {state.root} still runs, but {DIRECTORY_LOSS}",
            hint="Run `exo dedicated-inference down`, then `up`, which starts with nothing.",
        )
    missing = [path for path in (state.settings_file, state.config_file) if not path.exists()]
    damaged = has_damaged_settings(state)
    if not losses:
        return False
    if not (missing or damaged):
        read_credentials(state)
        return False
    if settings is None:
        what = f"{state.settings_file} was damaged" if damaged else f"{missing[0]} was deleted"
        raise ExoError(
            f"{what} while the control plane runs, and its ports cannot be found out, because not "
            "all of it runs",
            hint="Run `exo dedicated-inference down`, then `up`.",
        )
    if damaged or state.settings_file in missing:
        if damaged:
            set_aside(state)
        save_settings(state, settings)
        what = "damaged, and so was its copy" if damaged else "deleted"
        click.echo(
            f"notice: settings.json was {what}; restored it from what runs, without --simulate-gpus, "
            "which cannot be found out",
            err=True,
        )
    if state.config_file in missing:
        ensure_credentials(state, settings)
        click.echo(
            "warning: exoscale.toml was deleted, and its API key and secret cannot be restored; "
            "wrote new ones. Clients with the old ones are refused; deployments and their keys stay",
            err=True,
        )
    read_credentials(state)
    return True


def mend_settings(state: StateDir) -> None:
    """Restore `settings.json` from its copy where it is damaged, and say so."""
    from exo_inference.errors import UsageError
    from exo_inference.local_settings import repair_settings

    with contextlib.suppress(UsageError):  # what runs may know more; else its hint says what to do
        if done := repair_settings(state):
            click.echo(f"notice: {done}", err=True)


def _find_damage(state: StateDir) -> str:
    """Say what is wrong with the configuration file; empty where nothing is."""
    from exo_inference.errors import ConfigurationError, UsageError
    from exo_inference.local_settings import read_credentials

    try:
        read_credentials(state)
    except UsageError as exc:
        return exc.message
    except ConfigurationError:  # it was deleted in this moment
        return ""
    return ""


def _is_elsewhere(state: StateDir, pid: int) -> bool:
    """Whether a server works in a directory that is no longer the one of this name."""
    try:
        theirs = Path(f"/proc/{pid}/cwd").stat()
    except OSError:
        return False  # it has just ended, or we may not look
    try:
        ours = state.root.stat()
    except OSError:
        return True
    return (ours.st_dev, ours.st_ino) != (theirs.st_dev, theirs.st_ino)


def _host(address: str) -> str:
    """Decode an address of /proc/net/tcp: 32-bit words in the byte order of the machine."""
    words = (bytes.fromhex(address[i : i + 8])[::-1] for i in range(0, len(address), 8))
    return str(ipaddress.ip_address(b"".join(words)))


def get(url: str) -> bytes | None:
    """Return what an HTTP server answers, whatever that says; None where none does."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(
        address.hostname or "", address.port, timeout=ANSWER_SECONDS
    )
    try:
        connection.request("GET", address.path or "/")
        return connection.getresponse().read()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def _ask_zone(endpoint: str) -> str | None:
    try:
        name = json.loads(get(f"{endpoint}/zone") or b"")["zones"][0]["name"]
    except (ValueError, LookupError, TypeError):
        return None
    return name if isinstance(name, str) else None
