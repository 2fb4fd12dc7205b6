"""Output templates: the part of Go's text/template that `--output-template` is used with.

`{{.Name}}` stands for a field of the object printed, by the field's name in Go; everything else is
literal. Actions beyond that (`range`, `if`, pipelines) are refused with a clear error before any
request is sent. Used by `output.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from exo_inference.errors import UsageError

_ACTION = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_FIELD = re.compile(r"\.([A-Za-z_][A-Za-z0-9_]*)\Z")


@dataclass(frozen=True)
class Template:
    """A parsed template.

    Attributes:
        text: what the user wrote.
        parts: literal texts and field names in turn, beginning and ending with a literal.
    """

    text: str
    parts: tuple[str, ...]

    @property
    def fields(self) -> tuple[str, ...]:
        """The field names that appear, in order."""
        return self.parts[1::2]

    def check(self, known: tuple[str, ...]) -> None:
        """Refuse a field that the object to print does not have."""
        for name in self.fields:
            if name not in known:
                close = get_close_matches(name, known, n=1, cutoff=0.5)
                raise UsageError(
                    f"--output-template: there is no field .{name} here",
                    hint=(f"Did you mean {{{{.{close[0]}}}}}? " if close else "")
                    + "The fields are "
                    + ", ".join(f".{field}" for field in known)
                    + ".",
                )

    def render(self, values: Mapping[str, str]) -> str:
        """Fill in the values; a field that the object does not have is empty."""
        return "".join(
            values.get(part, "") if position % 2 else part
            for position, part in enumerate(self.parts)
        )


def parse_template(text: str) -> Template:
    """Parse what the user gave.

    Raises:
        UsageError: an action that is not a field, or braces that do not close.
    """
    parts = _ACTION.split(text)
    for position, part in enumerate(parts):
        if position % 2 == 0:
            if "{{" in part:
                raise UsageError(f"--output-template: a '{{{{' is never closed in {text!r}")
            continue
        action = part.strip()
        field = _FIELD.match(action)
        if field is None:
            raise UsageError(
                f"--output-template: cannot use '{{{{{part}}}}}', only fields such as {{{{.Name}}}}",
                hint="For anything more, use `-O json` and a JSON processor.",
            )
        parts[position] = field[1]
    return Template(text=text, parts=tuple(parts))
