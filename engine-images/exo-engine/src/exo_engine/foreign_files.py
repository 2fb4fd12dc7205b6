"""Opens files that came with a model: regular files alone, of a bounded size, and JSON within bounds.

Whoever published the model wrote them. Used by all readers of configuration, headers, tokenizer and
templates; every problem is a `ModelUnusable` that names the file.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from exo_engine.errors import ModelUnusable

MAX_CONFIG_BYTES = 64 * 2**20
"""Of a configuration or index; those in use have well below 20 MiB."""
MAX_TOKENIZER_BYTES = 256 * 2**20
"""Of tokenizer.json; the largest in use has 35 MB."""
MAX_TEMPLATE_BYTES = 2**20
_MAX_ITEMS = 20_000_000
_MAX_DEPTH = 64
_MAX_DIGITS = 40
_MAX_SHOWN = 256
_AGAIN = "Download the model again."


class MissingFile(ModelUnusable):
    """The file is not there."""


@contextmanager
def open_regular(path: Path) -> Iterator[tuple[BinaryIO, os.stat_result]]:
    """Open a file, if it is one, without ever waiting for a named pipe; yield it with its status.

    Raises:
        ModelUnusable: it is missing, no regular file, or cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except FileNotFoundError as exc:
        raise MissingFile(f"{path} does not exist") from exc
    except OSError as exc:
        raise ModelUnusable(f"cannot read {path}: {exc.strerror or exc}") from exc
    except ValueError as exc:  # another file may give names with a zero or half of a surrogate pair
        raise ModelUnusable(f"{shown(str(path))} is no name of a file") from exc
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise ModelUnusable(f"{path} is no regular file", hint="Put the file itself there.")
    with os.fdopen(descriptor, "rb") as file:
        try:
            yield file, status
        except OSError as exc:
            raise ModelUnusable(f"cannot read {path}: {exc.strerror or exc}") from exc


def read_regular(path: Path, max_bytes: int = MAX_CONFIG_BYTES) -> bytes:
    """Return the content of a regular file.

    Raises:
        ModelUnusable: see `open_regular`, or it is too large.
    """
    with open_regular(path) as (file, _):
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ModelUnusable(f"{path} is larger than {max_bytes >> 20} MiB", hint=_AGAIN)
    return data


def parse_object(data: bytes, path: Path) -> dict[str, Any]:
    """Return the JSON object that a file holds.

    Raises:
        ModelUnusable: it holds none, or one beyond the bounds.
    """
    if data.count(b",") + data.count(b"[") + data.count(b"{") > _MAX_ITEMS:
        raise ModelUnusable(f"{path} holds more than {_MAX_ITEMS} values", hint=_AGAIN)
    try:
        value = json.loads(data.decode("utf-8-sig"), parse_int=_integer)
    except RecursionError as exc:
        raise _too_deep(path) from exc
    except ValueError as exc:
        raise ModelUnusable(
            f"cannot read {path}: not valid JSON ({shown(exc)})", hint=_AGAIN
        ) from exc
    if not isinstance(value, dict):
        raise ModelUnusable(f"cannot use {path}: found {shown(value, 120)}, expected a JSON object")
    if not _is_shallow(value):
        raise _too_deep(path)
    return value


def shown(value: object, limit: int = _MAX_SHOWN) -> str:
    """Return a foreign value as one printable line of bounded length."""
    if isinstance(value, list | dict):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)} entries"
    try:
        text = value[: limit + 1] if isinstance(value, str) else str(value)[: limit + 1]
    except (ValueError, RecursionError):  # thousands of digits
        return type(value).__name__
    text = "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode("ascii")
        for each in text
    )
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _integer(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"a number of {len(text)} digits, expected at most {_MAX_DIGITS}")
    return int(text)


def _is_shallow(value: object) -> bool:
    level: list[object] = [value]
    for _ in range(_MAX_DEPTH):
        below: list[object] = []
        for each in level:
            values = each.values() if isinstance(each, dict) else each
            below += [v for v in values if isinstance(v, dict | list)]  # type: ignore[attr-defined]
        if not below:
            return True
        level = below
    return False


def _too_deep(path: Path) -> ModelUnusable:
    return ModelUnusable(f"{path} is nested deeper than {_MAX_DEPTH} levels", hint=_AGAIN)
