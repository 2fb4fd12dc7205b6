"""What one flag of `exo-engine serve` is. The tables are `flags.py` and `server_flags.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["integer", "float", "string", "boolean", "enum", "json", "strings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One flag: how it is spelt, what it takes, what it is for."""

    name: str
    """Canonical name without the leading dashes, as in the catalogue."""
    kind: Kind
    """What the value is; `strings` takes one or more words."""
    section: str
    """The group of the help page; vLLM's name for it."""
    description: str
    """One paragraph for people, in the help page and in the catalogue."""
    default: object = None
    aliases: tuple[str, ...] = ()
    """Further spellings, with their dashes."""
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    is_above_minimum: bool = False
    """The minimum itself is excluded."""
    human: bool = False
    """The integer may carry a suffix: k, m, g, t (decimal) or K, M, G, T (binary)."""
    auto_words: tuple[str, ...] = ()
    """Values that mean "left out"."""
    only_values: tuple[object, ...] = ()
    """The only values this version can run; others are refused with `only_reason`."""
    only_reason: str = ""
    is_platform_owned: bool = False
    """Set by whoever starts the engine, never by a deployment's parameters."""

    @property
    def spellings(self) -> tuple[str, ...]:
        """Every spelling with its dashes that can be used, the canonical one first."""
        names = (f"--{self.name}", *self.aliases)
        can_be_off = self.kind == "boolean" and self.only_values != (True,)
        return (*names, f"--no-{self.name}") if can_be_off else names

    @property
    def attribute(self) -> str:
        """The name of the parsed value."""
        return self.name.replace("-", "_")


def catalogue_entry(flag: Flag) -> dict[str, Any]:
    """Return a flag as the catalogue of flags has it."""
    entry: dict[str, Any] = {
        "name": flag.name,
        "flags": list(flag.spellings),
        "type": "string" if flag.kind == "strings" else flag.kind,
        "default": str(flag.default),
        "section": flag.section,
        "description": flag.description,
    }
    if flag.kind == "boolean":
        return entry
    if choices := flag.choices or flag.only_values:
        entry["allowed-values"] = [str(each) for each in choices]
    if flag.human:
        entry["suffixed"] = True
    if flag.auto_words:
        entry["auto"] = list(flag.auto_words)
    if bounds := _bounds(flag):
        entry["bounds"] = bounds
    return entry


def _bounds(flag: Flag) -> dict[str, float]:
    least = "gt" if flag.is_above_minimum else "ge"
    limits = {least: flag.minimum, "le": flag.maximum}
    return {name: limit for name, limit in limits.items() if limit is not None}
