"""Prints what a command found: as a table, as JSON or YAML, as text, or through a template.

Commands hand over `Field`s, which `views.py` makes from the API's objects; the keys, their order and
the exact form are those of the `exo` CLI and are frozen by tests. Data goes to stdout; progress,
warnings and errors go to stderr elsewhere.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import click

from exo_inference.cli.rendering.colours import as_it_is, by_state, takes_colour
from exo_inference.cli.rendering.table import draw_list, draw_rows
from exo_inference.cli.rendering.template import Template
from exo_inference.cli.rendering.terminal import (
    display_width,
    harmless,
    is_hazardous,
    print_data,
    print_drawn,
    terminal_columns,
)

Format = Literal["table", "json", "yaml", "text"]

Value = str | int | bool | list[dict[str, Any]] | list[str] | dict[str, int]


@dataclass(frozen=True)
class Field:
    """One field of an object, with its name in each form of output.

    Attributes:
        key: in JSON.
        go_name: in templates.
        label: in tables; empty for a field that tables leave out.
        value: what it holds.
        added: ours, not known to the `exo` CLI: left out of text, last in JSON.
        other_name: a second name in templates.
    """

    key: str
    go_name: str
    label: str
    value: Value
    added: bool = False
    other_name: str = ""

    @property
    def text(self) -> str:
        """The value as it stands in tables, text and templates."""
        if isinstance(self.value, bool):
            return "true" if self.value else "false"
        if isinstance(self.value, (list, dict)):
            return to_json(self.value)
        return str(self.value)


Record = tuple[Field, ...]


@dataclass(frozen=True)
class Output:
    """Where and how one command prints.

    Attributes:
        format: `table`, `json`, `yaml` or `text`.
        template: beats the format.
        quiet: print no success lines.
    """

    format: Format = "table"
    template: Template | None = None
    quiet: bool = False

    @property
    def is_structured(self) -> bool:
        """Whether stdout is JSON or YAML."""
        return self.template is None and self.format in ("json", "yaml")

    @property
    def is_for_programs(self) -> bool:
        """Whether stdout holds one object and nothing else: JSON, YAML, or what a template says."""
        return self.template is not None or self.is_structured

    def show(
        self,
        record: Record,
        *,
        rows: Sequence[tuple[str, str]] = (),
        manifest: Callable[[], str] | None = None,
    ) -> None:
        """Print one object.

        Args:
            record: its fields.
            rows: further rows that only the table has.
            manifest: the object as `apply` takes it, where it does; YAML is that then.
        """
        if self.template is not None:
            _print_last_line(self.template.render(_template_values(record)))
        elif self.format == "yaml" and manifest is not None:
            _print(manifest())
        elif self.is_structured:
            self.print_value(_json_object(record))
        elif self.format == "text":
            _print_last_line(_text_line(record))
        else:
            cells = [(field.label, field.text) for field in record if field.label]
            paint = by_state if takes_colour(sys.stdout) else as_it_is
            columns = terminal_columns() if sys.stdout.isatty() else None
            print_drawn(draw_rows([*cells, *rows], columns=columns, paint=paint))

    def show_line(self, record: Record) -> None:
        """Print one object of a stream: a line of JSON, a document of YAML, or through the template."""
        if self.template is not None:
            _print(self.template.render(_template_values(record)) + "\n")
        elif self.format == "yaml":
            _print("---\n" + _to_yaml(_json_object(record)))
        else:
            _print(to_json(_json_object(record)) + "\n")

    def show_list(
        self,
        records: Sequence[Record],
        headers: Sequence[str],
        *,
        manifests: Callable[[], Iterable[str]] | None = None,
    ) -> None:
        """Print a list of objects of one kind.

        Args:
            records: the objects.
            headers: labels of the fields, for when there is no object to take them from.
            manifests: the objects as `apply` takes them, where it does; YAML is those then.
        """
        if self.template is not None:
            for record in records:
                _print(self.template.render(_template_values(record)) + "\n")
        elif self.format == "yaml" and manifests is not None:
            _print("---\n".join(manifests()))
        elif self.is_structured:
            self.print_value([_json_object(record) for record in records])
        elif self.format == "text":
            _print("".join(_text_line(record) + "\n" for record in records))
        else:
            paint = by_state if takes_colour(sys.stdout) else as_it_is
            columns = terminal_columns() if sys.stdout.isatty() else None
            drawn_headers, rows = _cells(records, headers)
            print_drawn(draw_list(drawn_headers, rows, columns=columns, paint=paint))

    def fits(self, records: Sequence[Record], headers: Sequence[str]) -> bool:
        """Whether `show_list` would print all of these, cutting nothing to the terminal's width."""
        columns = terminal_columns() if sys.stdout.isatty() else None
        if columns is None or self.format != "table" or self.template is not None:
            return True
        first_line, _, _ = draw_list(*_cells(records, headers)).partition("\n")
        return display_width(first_line) <= columns

    def print_value(self, value: object) -> None:
        """Print any data as YAML where that was asked for, and as one line of JSON elsewhere."""
        _print(_to_yaml(value) if self.format == "yaml" else to_json(value) + "\n")

    def success(self, line: str) -> None:
        """Say that a change was made, unless `-Q` was given; on stderr where stdout is data."""
        if self.quiet:
            return
        if self.is_for_programs:
            click.echo(harmless(line), err=True)
        else:
            _print(line + "\n")


def _known(record: Record) -> Record:
    return tuple(field for field in record if not field.added)


def _cells(records: Sequence[Record], headers: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Return the headers of a table with those of added fields, and its rows."""
    labels = _added_labels(records)
    rows = [[f.text for f in _known(record)] + _added_texts(record, labels) for record in records]
    return [*headers, *labels], rows


def _added_labels(records: Sequence[Record]) -> list[str]:
    """Return the labels of the added fields that any of the objects has, in their order."""
    added = (field.label for record in records for field in record if field.added and field.label)
    return list(dict.fromkeys(added))


def _added_texts(record: Record, labels: Sequence[str]) -> list[str]:
    texts = {field.label: field.text for field in record if field.added}
    return [texts.get(label, "") for label in labels]


def _text_line(record: Record) -> str:
    return "\t".join(field.text for field in _known(record))


def _template_values(record: Record) -> dict[str, str]:
    return {
        name: field.text for field in record for name in (field.go_name, field.other_name) if name
    }


def _json_object(record: Record) -> dict[str, Value]:
    ordered = sorted(record, key=lambda field: field.added)
    return {field.key: field.value for field in ordered}


def to_json(value: object) -> str:
    """Return compact JSON in which nothing is left that a terminal might act on."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if text.isascii() and text.isprintable():
        return text
    return "".join(f"\\u{ord(c):04x}" if is_hazardous(c) else c for c in text)


def _to_yaml(value: object) -> str:
    import yaml

    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100)
    return text


def _print_last_line(text: str) -> None:
    """Print without a final newline into a pipe, as the `exo` CLI does; with one on a terminal."""
    _print(text + "\n" if sys.stdout.isatty() else text)


def _print(text: str) -> None:
    if text:
        print_data(text)
