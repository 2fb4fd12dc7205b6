"""The values of the global flags, which every command accepts, before and after any subcommand.

`global_options.py` has the options; what was given is collected in the context that all nested
commands share, and `given_flags` hands it out once, frozen. A flag given twice counts where it
stands last. Values that only the environment or the configuration file know are not resolved here:
that is `exo_inference.settings`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

_META_KEY = "exo_inference.cli.global_flags"

OUTPUT_FORMATS = ("table", "json", "yaml", "text")


@dataclass(frozen=True)
class GlobalFlags:
    """The global flags as given; None where a flag was not given.

    Attributes:
        zone: zone to work in.
        output_format: `table`, `json`, `yaml` or `text`.
        output_template: template for each object; beats `output_format`.
        quiet: leave out what is not data or an error.
        config_file: configuration file to read instead of the usual places.
        account: account of the configuration file.
        timeout_seconds: limit per zone of list commands; infinity is none.
        state_dir: directory of the control plane of this machine to work with.
    """

    zone: str | None = None
    output_format: str | None = None
    output_template: str | None = None
    quiet: bool = False
    config_file: Path | None = None
    account: str | None = None
    timeout_seconds: float | None = None
    state_dir: Path | None = None

    @property
    def to_paste(self) -> tuple[str, ...]:
        """What a command needs to reach the same control plane, as words."""
        given = {
            "--zone": self.zone,
            "--config": self.config_file,
            "--use-account": self.account,
            "--state-dir": self.state_dir,
        }
        return tuple(w for name, value in given.items() if value for w in (name, str(value)))


def given_flags(ctx: click.Context) -> GlobalFlags:
    """Return what was given on the whole command line so far."""
    given: dict[str, Any] = ctx.meta.get(_META_KEY, {})
    return GlobalFlags(**given)


def collect(ctx: click.Context, option: click.Parameter, value: Any) -> Any:
    """Keep what a global option was given; its callback."""
    if value is not None and option.name is not None:
        ctx.meta.setdefault(_META_KEY, {})[option.name] = value
    return value
