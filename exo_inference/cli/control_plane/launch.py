"""What `up` and `serve` share: their flags, the checks before a start, settings and credentials."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import click

from exo_inference.cli.global_flags import given_flags
from exo_inference.cli.rendering.progress import step
from exo_inference.cli.rendering.terminal import harmless
from exo_inference.errors import ExoError, NotReady, UsageError
from exo_inference.simulated_gpus import (
    FLAG,
    MAX_SPEEDUP,
    NO_GPUS,
    format_simulated_gpus,
    parse_simulated_gpus,
)

if TYPE_CHECKING:
    from pathlib import Path

    from click.shell_completion import CompletionItem

    from exo_inference.cli.session import Session
    from exo_inference.local_settings import LocalSettings
    from exo_inference.state_dir import StateDir

R = TypeVar("R")

_SERVER_PACKAGES = ("aiohttp", "cryptography", "starlette", "huggingface_hub", "uvicorn")
_POLL_SECONDS = 0.05
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
# Not for the servers: tokens come with each request, and credentials are in their own file.
_PRIVATE_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_HUB_TOKEN")
_PRIVATE_PREFIXES = ("EXOSCALE_", "CLOUDSTACK_")


@dataclass(frozen=True)
class LaunchOptions:
    """What a control plane is started with; None keeps what it had the last time."""

    host: str | None
    port: int | None
    gateway_host: str | None
    gateway_port: int | None
    zone: str | None
    simulate_gpus: str | None = None
    simulate_speedup: int | None = None


def launch_options(function: Callable[..., R]) -> Callable[..., R]:
    """Add the flags of a start to a command, which takes them as `options`."""
    options = [
        click.option(
            "--host", metavar="<address>", help="Address the API listens on (default 127.0.0.1)."
        ),
        click.option(
            "--port",
            metavar="<port>",
            type=click.IntRange(0, 65535),
            help="Port of the API; a free one is chosen at the first start, and kept.",
        ),
        click.option(
            "--gateway-host",
            metavar="<address>",
            help="Address that inference requests go to (default 127.0.0.1).",
        ),
        click.option(
            "--gateway-port",
            metavar="<port>",
            type=click.IntRange(0, 65535),
            help="Port that inference requests go to; chosen and kept like the other.",
        ),
        click.option(
            "-z",
            "--zone",
            metavar="<zone>",
            shell_complete=_complete_zones,
            help="Name of the one zone it offers (default ch-dk-2).",
        ),
        click.option(
            "--simulate-gpus",
            metavar="<family=count,...>",
            callback=_read_gpus,
            help="Offer GPUs that are not there, such as gpua5000=4,h100=8: memory and speed are "
            "the planner's, a small model answers. Kept until changed; none switches it off.",
        ),
        click.option(
            "--simulate-speedup",
            metavar="<factor>",
            type=click.IntRange(1, MAX_SPEEDUP),
            help="Let simulated GPUs start and compute so many times faster (default 1).",
        ),
    ]

    @functools.wraps(function)
    def run(*args: Any, **given: Any) -> R:
        zone = given.pop("zone") or given_flags(click.get_current_context()).zone
        chosen = {
            each.name: given.pop(each.name) for each in fields(LaunchOptions) if each.name in given
        }
        return function(*args, options=LaunchOptions(zone=zone, **chosen), **given)

    command: Callable[..., R] = run
    for option in reversed(options):
        command = option(command)
    return command


paused_option = click.option(
    "--paused",
    is_flag=True,
    help="Start no replica, so that deployments can be scaled down or deleted first.",
)


def set_paused(state: StateDir, *, paused: bool) -> None:
    """Have the local platform start no replica, or let it again; one that runs goes on.

    Raises:
        UsageError: the directory cannot be written to.
    """
    try:
        if paused:
            state.paused_file.touch(mode=0o600)
        else:
            state.paused_file.unlink(missing_ok=True)
    except OSError as exc:
        raise _cannot_use(state, exc) from exc


def _read_gpus(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Check the families and return them in the form that is saved."""
    if value is None:
        return None
    if not value.strip():
        raise UsageError(
            f"{FLAG} is empty, expected GPU families with their counts",
            hint=f"To simulate none any more, write {FLAG} {NO_GPUS}.",
        )
    return format_simulated_gpus(parse_simulated_gpus(value))


def _complete_zones(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    from exo_inference.local_settings import ZONES

    return [CompletionItem(zone) for zone in ZONES if zone.startswith(incomplete)]


def state_dir_of(session: Session) -> StateDir:
    """Return the directory that is meant, by the first of these that is given.

    `--state-dir`, the directory of `-C`, EXO_STATE_DIR, that of EXOSCALE_CONFIG if its file is that of
    a control plane of this machine, the default.

    Raises:
        UsageError: the file of `-C` is not that of a control plane of this machine.
    """
    from exo_inference.settings import resolve_state_dir
    from exo_inference.state_dir import StateDir

    named, file = session.flags.state_dir, session.flags.config_file
    if named is None and file is None and not os.environ.get("EXO_STATE_DIR"):
        named = _directory_of(os.environ.get("EXOSCALE_CONFIG", ""))
    if named is None and file is not None:
        named = file.expanduser().absolute().parent
        if not StateDir(named).settings_file.exists():
            raise UsageError(
                f"-C {file} is not the file of a control plane of this machine",
                hint="Such a file is exoscale.toml in a state directory; name that with --state-dir.",
            )
    state = StateDir(resolve_state_dir(named))
    if state.root.exists() and not state.root.is_dir():
        raise UsageError(
            f"the state directory {state.root} is not a directory",
            hint="Choose another one with --state-dir or EXO_STATE_DIR.",
        )
    return state


def _directory_of(config_file: str) -> Path | None:
    """Return the state directory that a configuration file lies in; None where it is no such."""
    from pathlib import Path

    from exo_inference.state_dir import StateDir

    if not config_file:
        return None
    state = StateDir(Path(config_file).expanduser().absolute().parent)
    is_ours = state.settings_file.exists() and state.config_file.name == Path(config_file).name
    return state.root if is_ours else None


def check_installation() -> None:
    """Refuse to start what is not installed; warn where deployments could not run.

    Raises:
        ExoError: the packages of the `server` extra are missing.
    """
    missing = [name for name in _SERVER_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ExoError(
            f"cannot start a control plane: not installed: {', '.join(missing)}",
            hint="Run `pip install 'exo-inference[server,engine]'`.",
        )
    if importlib.util.find_spec("exo_engine") is None:
        click.echo(
            "warning: no engine is installed, so no deployment can start; "
            "run `pip install 'exo-inference[engine]'`.",
            err=True,
        )


@contextmanager
def starts_wait(state: StateDir) -> Iterator[None]:
    """Have `wait_for_stop` wait until the block ends; it stops the control plane of this directory."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # nothing of ours is there
            descriptor = os.open(state.logs_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield


def wait_for_stop(state: StateDir, limit_seconds: float, *, quiet: bool) -> None:
    """Wait for a `down` in this directory that is at work: it would end what is started now.

    Raises:
        NotReady: it takes longer.
    """
    deadline = time.monotonic() + limit_seconds
    with contextlib.ExitStack() as stack:
        try:
            descriptor = os.open(state.logs_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return  # it was never started, or the start says what is wrong with it
        stack.callback(os.close, descriptor)
        is_told = False
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            if not is_told:
                stack.enter_context(step("Waiting for `down` to end", quiet=quiet))
                is_told = True
            if time.monotonic() >= deadline:
                raise NotReady(
                    f"`down` is still at work in {state.root} after {limit_seconds:g} s; nothing was started",
                    state="stopping",
                    hint="Run this again when it has ended.",
                )
            time.sleep(_POLL_SECONDS)


@contextmanager
def only_one_start(state: StateDir) -> Iterator[None]:
    """Keep two starts in one directory apart: the second waits for the first.

    A directory that was made for a start that is refused goes again.

    Raises:
        UsageError: the directory cannot be made or written to.
    """
    is_new = not state.root.exists()
    try:
        state.create()
        # Not the state directory itself: that is what the supervisor locks.
        descriptor = os.open(state.run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as exc:
        raise _cannot_use(state, exc) from exc
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    except ExoError:
        if is_new:
            _remove_empty(state)
        raise
    finally:
        os.close(descriptor)


def _cannot_use(state: StateDir, exc: OSError) -> UsageError:
    at = f" ({exc.filename})" if exc.filename not in (None, str(state.root)) else ""
    return UsageError(
        f"cannot use {state.root} as state directory: {exc.strerror or exc}{at}",
        hint="Choose another one with --state-dir.",
    )


def open_private_log(path: Path) -> BinaryIO:
    """Open a log for appending; it is readable by its owner alone, whatever the umask is."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    os.fchmod(descriptor, 0o600)
    return os.fdopen(descriptor, "ab")


def _remove_empty(state: StateDir) -> None:
    with contextlib.suppress(OSError):
        for path in (state.run_dir, state.models_dir, state.replicas_dir, state.logs_dir):
            path.rmdir()
        state.root.rmdir()


def configure(state: StateDir, options: LaunchOptions) -> LocalSettings:
    """Choose the ports, and write settings and credentials.

    Raises:
        UsageError: a port is taken or an address is not of this machine; the flag is named.
    """
    from exo_inference.local_settings import ensure_credentials, prepare_settings, save_settings

    prepared = prepare_settings(
        state,
        **vars(options),
    )
    for notice in prepared.notices:
        click.echo(f"notice: {harmless(notice)}", err=True)
    settings = prepared.settings
    for flag, host in (("--host", settings.host), ("--gateway-host", settings.gateway_host)):
        if host not in _LOOPBACK:
            click.echo(
                f"warning: {flag} {harmless(host)} can be reached from other machines, unencrypted; "
                "put a proxy with TLS in front of it.",
                err=True,
            )
    save_settings(state, settings)
    ensure_credentials(state, settings)
    if state.secret_key_file.exists() and not state.database_file.exists():
        click.echo(
            f"warning: {harmless(str(state.database_file))} is missing, though there was one: begins "
            "anew, without the models, deployments and keys of before; engines of theirs are stopped",
            err=True,
        )
    return settings


def refuse_changes(options: LaunchOptions, settings: LocalSettings) -> None:
    """Refuse flags that differ from what a running control plane was started with.

    Raises:
        UsageError: one does.
    """
    for name, wanted in vars(options).items():
        present = getattr(settings, name)
        if wanted not in (None, 0) and wanted != present:
            flag = "--" + name.replace("_", "-")
            raise UsageError(
                f"{flag} is {wanted or NO_GPUS}, but the control plane is running with "
                f"{present or NO_GPUS}",
                hint="Run `exo dedicated-inference down` first.",
            )


def supervisor_command(state: StateDir) -> list[str]:
    """Return the command line of the supervisor."""
    module = "exo_inference.supervisor"
    # -P: it runs in the state directory, whose files must not be imported in place of modules.
    return [sys.executable, "-P", "-m", module, "--state-dir", str(state.root)]


def server_environment() -> dict[str, str]:
    """Return the environment of the servers: ours without what is private to the user."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in _PRIVATE_VARIABLES and not name.startswith(_PRIVATE_PREFIXES)
    }
