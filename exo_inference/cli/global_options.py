"""The options of the global flags; `tree.py` adds them to each command. Their values are in `global_flags.py`."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from exo_inference.cli.completion.names import complete_zones
from exo_inference.cli.durations import Limit
from exo_inference.cli.global_flags import OUTPUT_FORMATS, GlobalFlags, collect


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
    return option.callback is collect


def _option(name: str, spellings: list[str], **attributes: Any) -> click.Option:
    assert name in {field.name for field in fields(GlobalFlags)}, f"no such global flag: {name}"
    return click.Option(
        [*spellings, name], expose_value=False, callback=collect, default=None, **attributes
    )
