"""Finds the safetensors files of a model and reads their headers.

So it is known before loading that all is there and whole. Called by `weights`; no torch here.

The format (github.com/huggingface/safetensors): 8 bytes little-endian header length, a JSON header
from tensor name to dtype, shape and byte range, then the data.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exo_engine.errors import ModelUnusable
from exo_engine.foreign_files import open_regular, parse_object, read_regular, shown

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
_MAX_HEADER_BYTES = 20_000_000  # 100,000 tensors take 12 MB; the format allows five times as much
_MAX_RANK = 64
_MAX_NAME = 200
_AGAIN = "Download the model again; the file is incomplete or damaged."


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where one tensor lies, and what it is."""

    path: Path
    dtype: str
    """As in the header, such as `BF16`."""
    shape: tuple[int, ...]
    num_bytes: int
    name: str
    """In the file."""


def read_checkpoint(model_dir: Path) -> dict[str, TensorEntry]:
    """Return every tensor of the model in `model_dir`, by name.

    Raises:
        ModelUnusable: there are no safetensors files, or one is missing, truncated or corrupt.
    """
    entries: dict[str, TensorEntry] = {}
    for path in _files(model_dir):
        for name, entry in _read_header(path):
            entries[name] = entry
    return entries


def _files(model_dir: Path) -> list[Path]:
    if (model_dir / SINGLE_FILE).exists():
        return [model_dir / SINGLE_FILE]
    index = model_dir / INDEX_FILE
    if index.exists():
        return _indexed_files(index)
    found = sorted(
        path
        for path in model_dir.glob("*.safetensors")
        if not path.name.startswith(("consolidated", "adapter"))
    )
    if found:
        return found
    others = sorted(path.name for path in model_dir.glob("*.bin")) + sorted(
        path.name for path in model_dir.glob("*.gguf")
    )
    raise ModelUnusable(
        f"{model_dir} has no *.safetensors file"
        + (f", only {', '.join(others[:3])}" if others else ""),
        hint="Use a model that is published as safetensors, or convert it.",
    )


def _indexed_files(index: Path) -> list[Path]:
    weight_map = parse_object(read_regular(index), index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(v, str) for v in weight_map.values()):
        raise ModelUnusable(
            f"cannot read {index}: expected a JSON object with weight_map", hint=_AGAIN
        )
    names = sorted(set(weight_map.values()))
    for name in names:
        if not name.isprintable() or len(name) > _MAX_NAME:
            raise ModelUnusable(f"{index} names {shown(name, 64)}, which is no file", hint=_AGAIN)
    paths = [index.parent / name for name in names]
    for path in paths:
        if path.parent != index.parent:
            raise ModelUnusable(f"{index} names the file {path.name!r} outside its directory")
        if not path.exists():
            raise ModelUnusable(
                f"{index} names {path.name}, which does not exist in {index.parent}",
                hint="Download the model again; a part of it is missing.",
            )
    return paths


def _read_header(path: Path) -> Iterator[tuple[str, TensorEntry]]:
    with open_regular(path) as (file, status):
        size = status.st_size
        prefix = file.read(8)
        if prefix.startswith(b"version "):
            raise ModelUnusable(
                f"{path} is a Git LFS pointer, not the file itself",
                hint="Run `git lfs pull` in the model's directory, or download the model again.",
            )
        header_bytes = int.from_bytes(prefix, "little")
        if len(prefix) < 8 or header_bytes > min(size - 8, _MAX_HEADER_BYTES):
            wanted = f"a header of {header_bytes} bytes" if len(prefix) == 8 else "a header"
            raise ModelUnusable(
                f"{path} is not a whole safetensors file: it has {size} bytes, expected {wanted} and data after it",
                hint=_AGAIN,
            )
        raw = file.read(header_bytes)
    try:
        header = parse_object(raw, path)
        entries = [
            _entry(path, name, value) for name, value in header.items() if name != "__metadata__"
        ]
    except (
        ModelUnusable,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
    ) as exc:
        raise ModelUnusable(
            f"{path} has a damaged safetensors header ({type(exc).__name__}: {shown(exc)})",
            hint=_AGAIN,
        ) from exc
    expected = 8 + header_bytes + sum(entry.num_bytes for _, entry in entries)
    if expected != size:
        raise ModelUnusable(
            f"{path} has {size} bytes, expected {expected} from its header", hint=_AGAIN
        )
    yield from entries


def _entry(path: Path, name: str, value: dict[str, Any]) -> tuple[str, TensorEntry]:
    begin, end = value["data_offsets"]
    shape, dtype = tuple(value["shape"]), value["dtype"]
    sizes = (begin, end, *shape)
    if len(shape) > _MAX_RANK or not all(type(n) is int and 0 <= n < 2**63 for n in sizes):
        raise ValueError(f"tensor {shown(name, 128)} has sizes that are none")
    if begin > end or not isinstance(dtype, str):
        raise ValueError(f"tensor {shown(name, 128)} has no type, or ends before it begins")
    return name, TensorEntry(path, dtype, shape, end - begin, name)
