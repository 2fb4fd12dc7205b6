"""`serve`: run the control plane in the foreground."""

from __future__ import annotations

import os
import sys

from exo_inference.cli.control_plane.launch import (
    LaunchOptions,
    check_installation,
    configure,
    launch_options,
    only_one_start,
    paused_option,
    server_environment,
    set_paused,
    state_dir_of,
    supervisor_command,
    wait_for_stop,
)
from exo_inference.cli.control_plane.processes import find_servers
from exo_inference.cli.control_plane.recovery import mend_settings
from exo_inference.cli.rendering.output import Field
from exo_inference.cli.session import Session, pass_session
from exo_inference.cli.tree import Example, command
from exo_inference.errors import ExoError

FIELD_NAMES = ("Endpoint", "ConfigFile")
STOP_SECONDS = 90.0
"""So long a `down` may take by itself; one that does is waited for."""


@command(
    "serve",
    examples=[
        Example("Run a control plane until Ctrl-C", "exo dedicated-inference serve"),
        Example(
            "Run it under a service manager or in a container",
            "exo dedicated-inference serve --state-dir /var/lib/exo-inference --port 8080",
        ),
        Example(
            "Let other machines send inference requests",
            "exo dedicated-inference serve --gateway-host 0.0.0.0 --gateway-port 8081",
        ),
    ],
)
@launch_options
@paused_option
@pass_session
def serve(
    session: Session,
    options: LaunchOptions,
    paused: bool,
) -> None:
    """Run a control plane on this machine, in the foreground.

    The same as `up`, but it logs to stderr and ends with Ctrl-C or SIGTERM, and everything it
    started ends with it. For service managers and containers.
    """
    state = state_dir_of(session)
    check_installation()
    wait_for_stop(state, STOP_SECONDS, quiet=session.quiet)
    with only_one_start(state):
        if any(p.name == "supervisor" and p.alive for p in find_servers(state)):
            raise ExoError(
                f"a control plane is already running in {state.root}",
                hint="Run `exo dedicated-inference down` first, or choose another --state-dir.",
            )
        set_paused(state, paused=paused)
        mend_settings(state)
        settings = configure(state, options)
        output = session.output(FIELD_NAMES, configured=False)
        session.success(f"Endpoint {settings.endpoint}, configuration {state.config_file}")
        if output.is_for_programs:
            endpoint = Field("endpoint", "Endpoint", "Endpoint", settings.endpoint)
            file = Field("config_file", "ConfigFile", "Configuration", str(state.config_file))
            output.show_line((endpoint, file))
        sys.stdout.flush()
        arguments = [*supervisor_command(state), "--foreground"]
        os.chdir(state.root)
        # This process becomes the supervisor, so that signals reach it without a go-between.
        os.execve(sys.executable, arguments, server_environment())  # noqa: S606 -- no shell
