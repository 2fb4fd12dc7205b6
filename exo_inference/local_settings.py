"""The options of one local control plane, its ports and its credentials: two files under its directory.

`settings.json` holds what `up` was started with, and `settings.copy.json` the same; `exoscale.toml` (mode 0600) the endpoint, key and
secret, in the form that the `exo` of Exoscale reads as it is. The command line prepares both
before it starts the supervisor; controller and gateway only read them. Imports nothing but the
standard library and our own light modules, because the command line imports it. Starts nothing.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import socket
import tomllib
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from exo_inference.errors import ConfigurationError, UsageError
from exo_inference.state_dir import (
    SERVERS,
    ProcessRecord,
    StateDir,
    find_servers_in_proc,
    read_file,
    read_json,
    write_atomically,
)

ZONES = (
    "at-vie-1",
    "at-vie-2",
    "bg-sof-1",
    "ch-dk-2",
    "ch-gva-2",
    "de-fra-1",
    "de-muc-1",
    "hr-zag-1",
)
"""The zone names of the v2 API (`exoscale` 0.16.4); its clients refuse every other name."""

ACCOUNT = "local"
"""Name of the one account in `exoscale.toml`."""

LISTEN_FD_VARIABLE = "EXO_LISTEN_FD"
"""Environment variable with the number of the listening socket that a server inherits.

The supervisor listens for controller and gateway, so that a socket stays open while its server is
restarted.
"""


@dataclass(frozen=True)
class LocalSettings:
    """What `up` was started with.

    Attributes:
        host: address the controller listens on.
        port: its TCP port; never 0 once saved.
        gateway_host: address the gateway listens on.
        gateway_port: its TCP port; never 0 once saved.
        zone: the one zone this control plane offers.
        simulate_gpus: GPU families that are offered without being there, as `FAMILY=COUNT,…`.
        simulate_speedup: durations on simulated GPUs are divided by it.
    """

    host: str = "127.0.0.1"
    port: int = 0
    gateway_host: str = "127.0.0.1"
    gateway_port: int = 0
    zone: str = "ch-dk-2"
    simulate_gpus: str = ""
    simulate_speedup: int = 1

    @property
    def endpoint(self) -> str:
        """Base URL of the API as a client on this machine reaches it; ends in `/v2`."""
        return f"http://{_reachable(self.host)}:{self.port}/v2"

    @property
    def simulated(self) -> str:
        """What is simulated, for people; empty where nothing is."""
        if not self.simulate_gpus or self.simulate_speedup == 1:
            return self.simulate_gpus
        return f"{self.simulate_gpus}, {self.simulate_speedup} times faster"

    @property
    def gateway_url(self) -> str:
        """Base URL of the gateway as a client on this machine reaches it; no trailing slash."""
        return f"http://{_reachable(self.gateway_host)}:{self.gateway_port}"


@dataclass(frozen=True)
class PreparedSettings:
    """Settings with both ports chosen, and what the user should be told about them."""

    settings: LocalSettings
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Credentials:
    """The one account of `exoscale.toml`. The secret never shows in `repr`."""

    key: str
    secret: str
    endpoint: str
    zone: str

    def __repr__(self) -> str:
        return f"Credentials(key={self.key!r}, endpoint={self.endpoint!r}, zone={self.zone!r})"


def load_settings(state: StateDir) -> LocalSettings | None:
    """Return the saved settings, or None when this control plane was never started.

    Where `settings.json` is damaged its copy counts, until `up` puts it right (`repair_settings`).

    Raises:
        UsageError: neither the file nor its copy can be read, or they are not what we write.
    """
    try:
        return _read_settings(state.settings_file)
    except UsageError:
        with contextlib.suppress(UsageError):
            if (kept := _read_settings(state.settings_copy)) is not None:
                return kept
        raise


def has_damaged_settings(state: StateDir) -> bool:
    """Whether `settings.json` is there and cannot be read, whatever its copy says."""
    try:
        _read_settings(state.settings_file)
    except UsageError:
        return True
    return False


def repair_settings(state: StateDir) -> str:
    """Write `settings.json` from its copy where it is damaged; what it held is kept beside it.

    Returns:
        What was done, for people; empty where nothing was.

    Raises:
        UsageError: both are damaged.
    """
    try:
        _read_settings(state.settings_file)
        return ""
    except UsageError as damaged:
        with contextlib.suppress(UsageError):
            if (kept := _read_settings(state.settings_copy)) is not None:
                aside = set_aside(state)
                save_settings(state, kept)
                return (
                    f"{damaged.message}; restored it from {state.settings_copy.name}, and kept what it held "
                    f"as {aside.name}"
                )
        raise


def set_aside(state: StateDir) -> Path:
    """Keep a damaged `settings.json` under another name, which is returned."""
    with contextlib.suppress(FileNotFoundError):
        state.settings_file.replace(state.settings_aside)
    return state.settings_aside


def _read_settings(path: Path) -> LocalSettings | None:
    try:
        data = read_json(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as exc:
        raise _bad_settings(path, str(exc)) from exc
    if not isinstance(data, dict):
        raise _bad_settings(path, f"expected an object, found {type(data).__name__}")
    kinds = {"port": int, "gateway_port": int, "simulate_speedup": int}
    known: dict[str, Any] = {f.name: data[f.name] for f in fields(LocalSettings) if f.name in data}
    for name, value in known.items():
        kind = kinds.get(name, str)
        if type(value) is not kind:
            raise _bad_settings(path, f"{name} is {value!r}, expected {kind.__name__}")
    if known.get("simulate_speedup", 1) < 1:
        raise _bad_settings(
            path, f"simulate_speedup is {data['simulate_speedup']}, expected 1 or more"
        )
    return LocalSettings(**known)


def save_settings(state: StateDir, settings: LocalSettings) -> None:
    """Write `settings.json`, atomically, and its copy."""
    text = json.dumps(asdict(settings), indent=2) + "\n"
    write_atomically(state.settings_file, text)
    write_atomically(state.settings_copy, text)


def prepare_settings(
    state: StateDir,
    *,
    host: str | None = None,
    port: int | None = None,
    gateway_host: str | None = None,
    gateway_port: int | None = None,
    zone: str | None = None,
    simulate_gpus: str | None = None,
    simulate_speedup: int | None = None,
) -> PreparedSettings:
    """Merge flags over the saved settings and choose the ports. Saves nothing.

    A port given by a flag must be free. One that was kept from an earlier start and is taken now
    is replaced by a free one, which a notice says. A port that a process of this very control
    plane holds counts as free: it will be adopted, or has just been told to go.

    Raises:
        UsageError: a given port is taken or out of range, a host is not of this machine, or the
            zone is unknown.
    """
    saved = load_settings(state) or LocalSettings()
    if zone is not None and zone not in ZONES:
        raise UsageError(
            f"unknown zone {zone!r} for --zone; found none of that name in the v2 API",
            hint=f"Use one of: {', '.join(ZONES)}.",
        )
    merged = replace(
        saved,
        host=host or saved.host,
        gateway_host=gateway_host or saved.gateway_host,
        zone=zone or saved.zone,
        simulate_gpus=saved.simulate_gpus if simulate_gpus is None else simulate_gpus,
        simulate_speedup=simulate_speedup or saved.simulate_speedup,
    )
    with ExitStack() as held:  # both stay bound until both are chosen, so they never coincide
        ports = _PortChooser(state, held)
        merged = replace(merged, port=ports.choose("--port", merged.host, port, saved.port))
        chosen = ports.choose(
            "--gateway-port", merged.gateway_host, gateway_port, saved.gateway_port
        )
    return PreparedSettings(replace(merged, gateway_port=chosen), tuple(ports.notices))


def ensure_credentials(state: StateDir, settings: LocalSettings) -> Credentials:
    """Write `exoscale.toml` (0600): key and secret once, endpoint and zone anew on every start.

    Raises:
        UsageError: the file is there but is not one of ours; it is left as it is.
    """
    path = state.config_file
    if path.exists():
        present = read_credentials(state)
        wanted = replace(present, endpoint=settings.endpoint, zone=settings.zone)
        if wanted == present and path.stat().st_mode & 0o777 == 0o600:
            return present
    else:
        key = "EXO" + secrets.token_hex(12)
        wanted = Credentials(key, secrets.token_urlsafe(32), settings.endpoint, settings.zone)
    write_atomically(path, _to_toml(wanted), mode=0o600)
    return wanted


def read_credentials(state: StateDir) -> Credentials:
    """Return the account that the controller accepts and clients use.

    Raises:
        ConfigurationError: the file is missing.
        UsageError: it is unreadable, or lacks the account.
    """
    path = state.config_file
    hint = "Run `exo dedicated-inference up`, which writes it when it is missing."
    move = (
        "Correct the file, or move it away and run `exo dedicated-inference up` again, which makes a "
        "new key."
    )
    try:
        data = tomllib.loads(read_file(path).decode())
    except FileNotFoundError as exc:
        raise ConfigurationError(f"no credentials: {path} does not exist", hint=hint) from exc
    except (OSError, ValueError, RecursionError) as exc:
        raise UsageError(f"cannot read credentials from {path}: {exc}", hint=move) from exc
    accounts = data.get("accounts")
    for account in accounts if isinstance(accounts, list) else []:
        if isinstance(account, dict) and account.get("name") == ACCOUNT:
            values = [account.get(name) for name in ("key", "secret", "endpoint", "defaultZone")]
            if all(isinstance(value, str) and value for value in values):
                return Credentials(*map(str, values))
    raise UsageError(
        f"{path} has no account {ACCOUNT!r} with key, secret, endpoint and defaultZone",
        hint=move,
    )


class _PortTakenError(Exception):
    """Someone listens there already."""


class _PortChooser:
    """Chooses the ports of one start and keeps them bound until `held` closes."""

    def __init__(self, state: StateDir, held: ExitStack) -> None:
        self._state = state
        self._held = held
        self.notices: list[str] = []

    def choose(self, flag: str, host: str, given: int | None, kept: int) -> int:
        if given is not None and not 0 <= given <= 65535:
            raise UsageError(f"{flag} is {given}, expected 0 (any free port) to 65535")
        wanted = kept if given is None else given
        try:
            return _bind(self._held, flag, host, wanted)
        except _PortTakenError:
            holder = find_listener(wanted)
        if holder is not None and _is_own(self._state, holder):
            return wanted
        who = "another process"
        if holder is not None:
            mine = holder.pid == os.getpid()
            who = "--port of this command" if mine else f"process {holder.pid} ({holder.name})"
        if given is not None:
            raise UsageError(
                f"cannot listen on {host}:{wanted}: the port is held by {who}",
                hint=f"Stop it, or choose another port with {flag}.",
            )
        chosen = _bind(self._held, flag, host, 0)
        self.notices.append(
            f"port {wanted} of the last start is held by {who}; {flag} {chosen} is used instead"
        )
        return chosen


def _bind(held: ExitStack, flag: str, host: str, port: int) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = held.enter_context(socket.socket(family, socket.SOCK_STREAM))
    # As the servers do: a port whose last connections are still in TIME_WAIT is free.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(1)  # with SO_REUSEADDR, only listen() notices another listener on 0.0.0.0
    except PermissionError as exc:
        raise UsageError(
            f"cannot listen on {host}:{port}: ports below 1024 need privileges",
            hint=f"Choose a higher port with {flag}.",
        ) from exc
    except OSError as exc:
        if port and exc.errno == errno.EADDRINUSE:
            raise _PortTakenError from exc
        raise UsageError(
            f"cannot listen on {host!r}: {exc.strerror or exc}",
            hint="Give an address of this machine, for example 127.0.0.1.",
        ) from exc
    return int(listener.getsockname()[1])


def take_inherited_listener() -> socket.socket | None:
    """Return the listening socket that this process inherits, once; None if there is none.

    Raises:
        UsageError: the variable names no such socket.
    """
    number = os.environ.pop(LISTEN_FD_VARIABLE, None)
    if number is None:
        return None
    try:
        os.set_inheritable(int(number), False)
        listener = socket.socket(fileno=int(number))
    except (ValueError, OSError) as exc:
        raise UsageError(
            f"{LISTEN_FD_VARIABLE} is {number!r}, expected the descriptor of a listening socket"
        ) from exc
    listener.setblocking(False)
    return listener


def find_listener(port: int) -> ProcessRecord | None:
    """Return the process that listens on a TCP port, as far as /proc lets us see; else None.

    The record's name is the command's short name (`comm`).
    """
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            columns = line.split()
            # local_address is HEX_ADDRESS:HEX_PORT; state 0A is LISTEN. See proc_net_tcp(5).
            if columns[3] == "0A" and int(columns[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{columns[9]}]")
    if not inodes:
        return None
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(str(fd.readlink()) in inodes for fd in (process / "fd").iterdir()):
                pid = int(process.name)
                return ProcessRecord((process / "comm").read_text().strip(), pid, 0)
        except OSError:
            continue  # it has just ended, or belongs to another user
    return None


def _is_own(state: StateDir, holder: ProcessRecord) -> bool:
    records = (state.read_record(name) for name in SERVERS)
    if any(r is not None and r.pid == holder.pid and r.alive for r in records):
        return True
    return any(record.pid == holder.pid for record in find_servers_in_proc(state.root))


def _reachable(host: str) -> str:
    """Return the host part of a URL for an address that a server listens on."""
    if host in ("0.0.0.0", ""):  # noqa: S104 -- compared, not bound
        return "127.0.0.1"
    if host == "::":
        return "[::1]"
    return f"[{host}]" if ":" in host else host


def _bad_settings(path: Path, found: str) -> UsageError:
    return UsageError(
        f"cannot read the settings of this control plane from {path}: {found}",
        hint="Mend it, or move it away and run `exo dedicated-inference up` with the --port and --zone that "
        "exoscale.toml beside it names; --gateway-port is chosen anew if it is not given. Models, deployments "
        "and keys stay.",
    )


def _to_toml(credentials: Credentials) -> str:
    # A JSON string is a TOML basic string as long as it holds no DEL, and ours never does.
    quote = json.dumps
    return (
        f"defaultAccount = {quote(ACCOUNT)}\n\n"
        "[[accounts]]\n"
        f"name = {quote(ACCOUNT)}\n"
        f"key = {quote(credentials.key)}\n"
        f"secret = {quote(credentials.secret)}\n"
        f"endpoint = {quote(credentials.endpoint)}\n"
        f"defaultZone = {quote(credentials.zone)}\n"
    )
