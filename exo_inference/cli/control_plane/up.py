"""`up`: start the control plane of this machine in the background."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from exo_inference.cli.control_plane.launch import (
    LaunchOptions,
    check_installation,
    launch_options,
    only_one_start,
    paused_option,
    refuse_changes,
    set_paused,
    state_dir_of,
    wait_for_stop,
)
from exo_inference.cli.control_plane.overview import FIELD_NAMES, look_at
from exo_inference.cli.control_plane.recovery import mend_settings, restore_files
from exo_inference.cli.control_plane.start import start_servers
from exo_inference.cli.durations import Limit
from exo_inference.cli.session import Session, pass_session
from exo_inference.cli.tree import Example, command

if TYPE_CHECKING:
    from exo_inference.state_dir import StateDir

START_SECONDS = 60.0


@command(
    "up",
    examples=[
        Example("Start a control plane, or see that it runs", "exo dedicated-inference up"),
        Example(
            "Keep another one apart in a directory of its own",
            "exo dedicated-inference up --state-dir ./inference",
        ),
        Example(
            "Start it without its replicas, to delete what was too much for the machine",
            "exo dedicated-inference up --paused",
        ),
        Example(
            "Choose the ports",
            "exo dedicated-inference up --port 8080 --gateway-port 8081",
        ),
        Example(
            "Try deployments on GPUs that this machine lacks, 20 times faster",
            "exo dedicated-inference up --simulate-gpus gpua5000=4,h100=8 --simulate-speedup 20",
        ),
    ],
)
@launch_options
@click.option(
    "--timeout",
    "start_timeout",
    metavar="<duration>",
    type=Limit(),
    default=START_SECONDS,
    help="How long to wait until it answers (default 60s).",
)
@paused_option
@pass_session
def up(
    session: Session,
    options: LaunchOptions,
    start_timeout: float,
    paused: bool,
) -> None:
    """Start a control plane on this machine, in the background.

    It keeps everything it owns in one directory, so several can run side by side. What was deployed
    when it was stopped is started again, a few replicas at a time; with `--paused` nothing is, until
    this is run without it. Running it again changes nothing else.
    """
    output = session.output(FIELD_NAMES, configured=False)
    state = state_dir_of(session)
    check_installation()
    wait_for_stop(state, start_timeout, quiet=session.quiet)
    with only_one_start(state):
        set_paused(state, paused=paused)
        mend_settings(state)
        overview = look_at(state)
        headline = "The control plane is already running."
        if overview.settings is not None and overview.has_servers:
            refuse_changes(options, overview.settings)
        if restore_files(state, overview.settings, overview.servers):
            overview = look_at(state)
        if not overview.answers:
            headline = "The control plane is running."
            overview = start_servers(session, state, options, start_timeout)
    is_for_people = output.format == "table" and output.template is None
    if is_for_people:
        session.success(headline)
    output.show(overview.record(), rows=overview.rows())
    if paused:
        session.remark("paused: no replica is started until `up` is run without --paused")
    overview.warn()
    if is_for_people and _is_unused(state):
        _suggest(session)


def _is_unused(state: StateDir) -> bool:
    """Whether there is no model yet."""
    return not any(state.models_dir.iterdir())


def _suggest(session: Session) -> None:
    """Print what to type next; nothing is needed to make these find this control plane."""
    chosen = session.flags.state_dir
    where = f" --state-dir {shlex.quote(str(chosen))}" if chosen else ""
    session.success(
        f"""
Next:
  exo dedicated-inference model create exo/tiny-chat --wait{where}
  exo dedicated-inference deployment create demo --model-name exo/tiny-chat \\
      --gpu-type cpu --gpu-count 1 --wait{where}
  exo dedicated-inference chat demo{where}"""
    )
