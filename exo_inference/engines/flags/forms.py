"""Read texts that are more than a word, a number or JSON, such as the shares of GPUs. Pure.

A flag's catalogue names the form of its value; `values.py` has it read here. Forms are those of llama-server's own
parser (common/arg.cpp of https://github.com/ggml-org/llama.cpp, b11243), without what means nothing there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

_MOST_PARTS = 15
"""One less than the devices that a build knows (`llama_max_devices`)."""
_MOST_SLOTS = 256
"""`LLAMA_MAX_SEQ`."""
_LAYER_WORDS = {"auto": -1, "all": -2}
_SHARE = re.compile(r"[0-9]{1,12}(\.[0-9]{0,12})?|\.[0-9]{1,12}")
"""A share as people write one; llama-server ends at values beyond float32, of which sums are none."""


@dataclass(frozen=True, slots=True)
class Form:
    """How a text is read.

    Attributes:
        expected: what it is, in words.
        read: what it means; None where it is not of the form.
    """

    expected: str
    read: Callable[[str], object | None]


def _slots(text: str) -> int | None:
    """Return how many requests are answered at once; -1 leaves it to the engine."""
    if not re.fullmatch(r"[+-]?[0-9]{1,9}", text):
        return None
    number = int(text)
    return number if number == -1 or 1 <= number <= _MOST_SLOTS else None


def _layers(text: str) -> int | None:
    """Return how many layers are meant: -1 leaves it to the engine, less is all of them."""
    if text in _LAYER_WORDS:
        return _LAYER_WORDS[text]
    return int(text) if re.fullmatch(r"-?[0-9]{1,9}", text) else None


def _shares(text: str) -> tuple[float, ...] | None:
    parts = _parts(text)
    if not all(_SHARE.fullmatch(each) for each in parts):
        return None
    shares = tuple(float(each) for each in parts)
    return shares if sum(shares) else None


def _mebibytes(text: str) -> tuple[int, ...] | None:
    parts = _parts(text)
    are_numbers = all(re.fullmatch(r"[0-9]{1,9}", each) for each in parts)
    return tuple(map(int, parts)) if parts and are_numbers else None


def _parts(text: str) -> list[str]:
    """Return the parts of a list of GPUs; nothing of one that is longer than llama-server takes."""
    parts = re.split(r"[,/]+", text[: _MOST_PARTS * 40])
    parts = parts if parts[-1] else parts[:-1]
    return parts if len(parts) <= _MOST_PARTS and len(text) <= _MOST_PARTS * 40 else []


def _buffers(text: str) -> tuple[tuple[str, str], ...] | None:
    """Return pairs of a pattern, which llama-server alone tries on names of tensors, and a buffer."""
    pairs = [each.partition("=") for each in text.split(",")]
    if not all(equals for _, equals, _ in pairs):
        return None
    return tuple((pattern, buffer) for pattern, _, buffer in pairs)


FORMS: Mapping[str, Form] = {
    "slots": Form(f"1 or more, up to {_MOST_SLOTS}, or -1 for as many as llama-server takes", _slots),
    "layers": Form("a number, auto or all", _layers),
    "shares": Form("the shares of GPUs, such as 3,1", _shares),
    "mebibytes": Form("MiB, or MiB of each GPU such as 1024,512", _mebibytes),
    "buffers": Form("PATTERN=BUFFER, such as exps=CPU", _buffers),
}  # fmt: skip
"""By the names that catalogues have for them."""
