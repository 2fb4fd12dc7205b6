"""What every command that talks to the API starts from: flags, settings, clients, output.

A `Session` is made once per command line. It reads the settings when they are first needed, so that
help and usage errors need neither a configuration nor the libraries that read it.
"""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar, cast

import click

from exo_inference.cli.errors.text import name_flags
from exo_inference.cli.global_flags import OUTPUT_FORMATS, GlobalFlags, given_flags
from exo_inference.cli.rendering.output import Format, Output
from exo_inference.cli.rendering.template import parse_template
from exo_inference.cli.rendering.terminal import harmless
from exo_inference.errors import ApiError, ConfigurationError, ConnectionFailed

if TYPE_CHECKING:
    from exo_inference.sdk import Client
    from exo_inference.settings import Settings
    from exo_inference.state_dir import StateDir

P = ParamSpec("P")
R = TypeVar("R")

LIST_TIMEOUT_SECONDS = 15.0


class Session:
    """One run of one command.

    Attributes:
        flags: the global flags as given.
    """

    def __init__(self, flags: GlobalFlags) -> None:
        self.flags = flags

    @classmethod
    def of(cls, ctx: click.Context) -> Session:
        """Make the session of a command line from its context; `main` finds it there."""
        session = cls(given_flags(ctx))
        started = ctx.find_root().obj
        if isinstance(started, list):
            started.append(session)
        return session

    @functools.cached_property
    def settings(self) -> Settings:
        """The resolved settings.

        Raises:
            ConfigurationError: there are no credentials; the hint says how to get some.
            UsageError: a variable or the configuration file is malformed.
        """
        from exo_inference.settings import Flags, load_settings

        return load_settings(
            Flags(
                zone=self.flags.zone,
                config_file=self.flags.config_file,
                account=self.flags.account,
                state_dir=self.flags.state_dir,
                output_format=self.flags.output_format,
                timeout_seconds=self.flags.timeout_seconds,
            )
        )

    @property
    def quiet(self) -> bool:
        """Whether only data and errors are printed."""
        return self.flags.quiet

    @property
    def list_timeout_seconds(self) -> float:
        """How long a list command waits for one zone; infinity for no limit."""
        chosen = self.settings.timeout_seconds
        return LIST_TIMEOUT_SECONDS if chosen is None else chosen

    def connect(self, *, timeout_seconds: float | None = None) -> Client:
        """Return a client of the configured endpoint, to be used as a context manager.

        Args:
            timeout_seconds: limit for one request; the library's own by default.
        """
        from exo_inference.sdk import Client

        # The limit of the settings is that of list commands; other requests may take longer.
        return Client(settings=replace(self.settings, timeout_seconds=timeout_seconds))

    def local_control_plane(self) -> StateDir | None:
        """Return the state directory that the account came from, if its controller is down."""
        from exo_inference.state_dir import StateDir

        if self.settings.config_file is None:
            return None
        state = StateDir(self.settings.config_file.parent)
        if not state.settings_file.exists():
            return None
        record = state.read_record("controller")
        return None if record is not None and record.alive else state

    def output(self, field_names: tuple[str, ...], *, configured: bool = True) -> Output:
        """Return how to print, with the template checked against what it may use.

        Args:
            field_names: the fields of what will be printed.
            configured: whether the account's format counts; not for commands that need no account.

        Raises:
            UsageError: the template is malformed or uses an unknown field.
        """
        template = None
        if self.flags.output_template is not None:
            template = parse_template(self.flags.output_template)
            template.check(field_names)
        chosen = self.flags.output_format or (self.settings.output_format if configured else "")
        known = chosen if chosen in OUTPUT_FORMATS else "table"
        return Output(
            format=cast(Format, known),
            template=template,
            quiet=self.quiet,
        )

    @property
    def known_format(self) -> str:
        """The format of the output as far as it is known without reading the settings for it."""
        read: Settings | None = vars(self).get("settings")
        return self.flags.output_format or (read.output_format if read is not None else "")

    def success(self, line: str) -> None:
        """Say that a change was made, unless `-Q` was given; on stderr where stdout is data."""
        if self.flags.output_template is not None or self.known_format in ("json", "yaml"):
            self.remark(line)
        else:
            Output(quiet=self.quiet).success(line)

    def remark(self, line: str) -> None:
        """Say something on stderr, where stdout has data, unless `-Q` was given."""
        if not self.quiet:
            click.echo(harmless(line), err=True)


def pass_session(function: Callable[Concatenate[Session, P], R]) -> Callable[P, R]:
    """Hand a command its session as the first argument."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        session = Session.of(click.get_current_context())
        try:
            return function(session, *args, **kwargs)
        except ApiError as error:
            name_flags(error, click.get_current_context().command)
            raise
        except ConnectionFailed as error:
            state = None if error.request_sent else session.local_control_plane()
            if state is None:
                raise
            raise _unreachable(state) from error

    return run


class ControlPlaneStopped(ConfigurationError):
    """There is no control plane to talk to: it was stopped."""


def _unreachable(state: StateDir) -> ConnectionFailed | ControlPlaneStopped:
    """Say what runs of a control plane whose controller does not, and what to do about it."""
    from exo_inference.cli.control_plane.processes import find_servers

    servers = {process.name: process for process in find_servers(state)}
    up = f"Run `exo dedicated-inference up{_where(state)}`."
    if not any(process.pid for process in servers.values()):
        return ControlPlaneStopped(f"no control plane is running in {state.root}", hint=up)
    details = servers["controller"].details
    what = f"the controller of {state.root} does not answer" + (details and f" ({details})")
    hint = up
    if servers["supervisor"].pid:
        log = state.logs_dir / "controller.log"
        hint = f"It is being started again: repeat this in a moment, or look into {log}."
    return ConnectionFailed(what, request_sent=False, hint=hint)


def _where(state: StateDir) -> str:
    from exo_inference.settings import resolve_state_dir
    from exo_inference.state_dir import StateDir

    is_default = StateDir(resolve_state_dir()).root == state.root
    return "" if is_default else f" --state-dir {shlex.quote(str(state.root))}"
