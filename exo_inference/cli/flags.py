"""The global flags: accepted by every command, before and after any subcommand.

`tree.py` adds them to each command; what was given is collected in the context that all nested
commands share, and `given_flags` hands it out once, frozen. A flag given twice counts where it
stands last. Values that only the environment or the configuration file know are not resolved here:
that is `exo_inference.settings`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import click

from exo_inference.cli.completing import complete_zones
from exo_inference.cli.durations import Limit

_META_KEY = "exo_inference.cli.flags"

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


def global_options() -> list[click.Option]:
    """Build the global options, in the order in which help lists them."""
    return [
        _option(
            "zone",
            ["-z", "--zone"],
            metavar="<zone>",
            shell_complete=complete_zones,
            help="Zone to work in [env EXOSCALE_ZONE]; list commands take every zone without it.",
        ),
        _option(
            "output_format",
            ["-O", "--output-format"],
            metavar="<format>",
            type=click.Choice(OUTPUT_FORMATS, case_sensitive=False),
            help="Output format: table, json, yaml (what `apply` takes) or text.",
        ),
        _option(
            "output_template",
            ["--output-template"],
            metavar="<template>",
            help="Print each object through a template such as '{{.Name}} {{.State}}'.",
        ),
        _option(
            "quiet",
            ["-Q", "--quiet"],
            is_flag=True,
            help="Print only data and errors.",
        ),
        _option(
            "config_file",
            ["-C", "--config"],
            metavar="<file>",
            type=click.Path(dir_okay=False, path_type=Path),
            help="Configuration file to use [env EXOSCALE_CONFIG].",
        ),
        _option(
            "account",
            ["-A", "--use-account"],
            metavar="<name>",
            help="Account of the configuration file [env EXOSCALE_ACCOUNT].",
        ),
        _option(
            "timeout_seconds",
            ["--timeout"],
            metavar="<duration>",
            type=Limit(),
            help="Limit per zone of list commands, -1s for none [env EXOSCALE_TIMEOUT] "
            "(default 15s).",
        ),
        _option(
            "state_dir",
            ["--state-dir"],
            metavar="<dir>",
            type=click.Path(file_okay=False, path_type=Path),
            help="Directory of the local control plane to work with [env EXO_STATE_DIR].",
        ),
    ]


def is_global(option: click.Parameter) -> bool:
    """Tell a global option from one of the command's own."""
    return option.callback is _collect


def _option(name: str, spellings: list[str], **attributes: Any) -> click.Option:
    assert name in {field.name for field in fields(GlobalFlags)}, f"no such global flag: {name}"
    return click.Option(
        [*spellings, name], expose_value=False, callback=_collect, default=None, **attributes
    )


def _collect(ctx: click.Context, option: click.Parameter, value: Any) -> Any:
    if value is not None and option.name is not None:
        ctx.meta.setdefault(_META_KEY, {})[option.name] = value
    return value
