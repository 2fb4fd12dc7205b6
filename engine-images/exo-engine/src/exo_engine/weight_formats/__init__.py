"""Weight formats: how the matrices of a model are stored, loaded and multiplied.

One file with one class each; `base.WeightFormat` says what a class must do. The table names them, so
that the command line and the readers of config.json can ask without loading torch, which the classes
need. A new format is a file and a row; no layer and no model changes.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from exo_engine.weight_formats.base import WeightFormat

PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class FormatEntry:
    """Where a format is, and when it is used."""

    location: str
    """`module:class`."""
    is_made_at_load: bool = False
    """A value of --quantization: made from a checkpoint of plain numbers while it is loaded."""
    quant_methods: tuple[str, ...] = ()
    """Values of `quant_method` in config.json whose checkpoints it reads."""
    group: int = 1
    """Inputs that share a scale, of which a rank has all or none."""


FORMATS: dict[str, FormatEntry] = {
    PLAIN: FormatEntry("exo_engine.weight_formats.plain:Plain"),
    "fp8": FormatEntry("exo_engine.weight_formats.fp8:Fp8", is_made_at_load=True),
    "fp8_per_tensor": FormatEntry(
        "exo_engine.weight_formats.fp8:Fp8PerTensor", is_made_at_load=True
    ),
    "fp8_per_block": FormatEntry("exo_engine.weight_formats.fp8:Fp8PerBlock", is_made_at_load=True),
    "int8": FormatEntry("exo_engine.weight_formats.int8:Int8", is_made_at_load=True),
    "int4": FormatEntry("exo_engine.weight_formats.int4:Int4", is_made_at_load=True, group=32),
    "int4_per_group_64": FormatEntry(
        "exo_engine.weight_formats.int4:Int4PerGroup64", is_made_at_load=True, group=64
    ),
    "int4_per_group_128": FormatEntry(
        "exo_engine.weight_formats.int4:Int4PerGroup128", is_made_at_load=True, group=128
    ),
}


def formats_made_at_load() -> tuple[str, ...]:
    """Return what --quantization may be."""
    return tuple(name for name, entry in FORMATS.items() if entry.is_made_at_load)


def format_of_checkpoint(quant_method: str) -> str | None:
    """Return the format that reads checkpoints of a `quant_method`; None where there is none."""
    return next(
        (name for name, entry in FORMATS.items() if quant_method in entry.quant_methods), None
    )


def load_format(name: str) -> type[WeightFormat]:
    """Return the class of a format."""
    module, _, class_name = FORMATS[name].location.partition(":")
    found: type[WeightFormat] = getattr(importlib.import_module(module), class_name)
    return found
