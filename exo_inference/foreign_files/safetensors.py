"""Checks safetensors files without loading them: header, offsets and sizes.

Used on every model before it is called ready, so that a truncated or damaged file is told apart
from a failing engine. Reads headers only: a file of 40 GB takes milliseconds. Runs in the child.

Format: 8 bytes little-endian header length N, N bytes of JSON, then the tensors' bytes
(https://github.com/huggingface/safetensors#format).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from exo_inference.foreign_files.bounded_reads import open_regular, parse_object
from exo_inference.foreign_files.errors import ForeignFileError, shown
from exo_inference.planner.model.checkpoint import TensorSize

MAX_HEADER_BYTES = 20_000_000
"""A fifth of what the format allows, and more than any file in use has: 100,000 tensors take 12 MB."""
_MAX_RANK = 64
_MAX_SIZE = 2**63 - 1
_DTYPE = re.compile(r"[A-Z][A-Z0-9_]{0,15}")
_DTYPE_BITS = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "U16": 16,
    "I16": 16,
    "F16": 16,
    "BF16": 16,
    "U32": 32,
    "I32": 32,
    "F32": 32,
    "C64": 64,
    "U64": 64,
    "I64": 64,
    "F64": 64,
}


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says it holds.

    Attributes:
        raw: the header's bytes.
        tensors: name, type and shape of each.
        data_bytes: where the last of them ends.
    """

    raw: bytes
    tensors: tuple[TensorSize, ...]
    data_bytes: int


def read_header(path: Path) -> Header:
    """Read and check one file's header against the file's size.

    Raises:
        ForeignFileError: the file is truncated or damaged; the message has the numbers.
    """
    with open_regular(path) as (file, status):
        raw = _read_raw(path.name, file, status)
    header = parse_header(raw, path.name)
    if header.data_bytes != status.st_size - 8 - len(raw):
        raise _damaged(
            path.name,
            f"its tensors need {8 + len(raw) + header.data_bytes} bytes, and the file has "
            f"{status.st_size}",
        )
    return header


def read_tensors(path: Path) -> tuple[TensorSize, ...]:
    """Return the tensors of a file of which perhaps only the header is there.

    Raises:
        ForeignFileError: the header is damaged.
    """
    with open_regular(path) as (file, status):
        raw = _read_raw(path.name, file, status)
    return parse_header(raw, path.name).tensors


def parse_header(raw: bytes, name: str) -> Header:
    """Check a header by itself.

    Args:
        raw: its JSON.
        name: of the file, for messages.

    Raises:
        ForeignFileError: it is not of the format.
    """
    try:
        document = parse_object(raw, "its header", allows_constants=False)
    except ForeignFileError as error:
        raise _damaged(name, error.message) from error
    metadata = document.pop("__metadata__", None)
    if metadata is not None and not isinstance(metadata, dict):
        raise _damaged(name, f"its __metadata__ is {shown(metadata, 40)}, expected an object")
    tensors, ranges = [], []
    for tensor, entry in document.items():
        tensors.append(_check_tensor(name, tensor, entry))
        ranges.append(tuple(entry["data_offsets"]))
    return Header(raw, tuple(tensors), _end_of(ranges, name))


def _end_of(ranges: list[tuple[int, ...]], name: str) -> int:
    """Return where the last tensor ends; the format lets no byte be in two of them, or in none."""
    end = 0
    for begin, next_end in sorted(ranges):
        if begin != end:
            raise _damaged(
                name, f"its header places a tensor at byte {begin}, expected it at {end}"
            )
        end = next_end
    return end


def _read_raw(name: str, file: BinaryIO, status: os.stat_result) -> bytes:
    prefix = file.read(8)
    length = int.from_bytes(prefix, "little")
    if len(prefix) < 8 or length > status.st_size - 8:
        raise _damaged(
            name, f"its header should have {length} bytes, and the file has {status.st_size}"
        )
    if length > MAX_HEADER_BYTES:
        raise _damaged(name, f"its header has {length} bytes, expected at most {MAX_HEADER_BYTES}")
    raw = file.read(length)
    if len(raw) < length:
        raise _damaged(name, f"its header should have {length} bytes, and {len(raw)} could be read")
    return raw


def _check_tensor(file: str, name: str, entry: Any) -> TensorSize:
    """Check one tensor and return its size."""
    found = entry if isinstance(entry, dict) else {}
    dtype: Any = found.get("dtype")
    shape: Any = found.get("shape")
    offsets: Any = found.get("data_offsets")
    is_type = isinstance(dtype, str) and _DTYPE.fullmatch(dtype) is not None
    if not is_type or not _is_sizes(offsets, 2) or not _is_sizes(shape, None):
        raise _damaged(file, f"its header's entry of tensor {shown(name, 128)!r} is malformed")
    begin, end = offsets
    num_elements = 1
    for size in shape:
        num_elements *= size
        if num_elements > _MAX_SIZE:
            raise _damaged(file, f"tensor {shown(name, 128)!r} has more than 2^63 elements")
    bits = _DTYPE_BITS.get(dtype)
    if begin > end or (bits is not None and num_elements * bits != (end - begin) * 8):
        raise _damaged(
            file,
            f"tensor {shown(name, 128)!r} of type {dtype} and shape "
            f"{shown(str(shape[:16]), 128)} does not fit its {end - begin} bytes",
        )
    return TensorSize(name, dtype, tuple(shape))


def _is_sizes(value: Any, length: int | None) -> bool:
    """Whether a value is a list of whole numbers from 0 that a file can have."""
    if (
        not isinstance(value, list)
        or len(value) > _MAX_RANK
        or len(value) != (length or len(value))
    ):
        return False
    return all(type(each) is int and 0 <= each <= _MAX_SIZE for each in value)


def _damaged(name: str, reason: str) -> ForeignFileError:
    return ForeignFileError(
        f"{shown(name)} is damaged: {reason}", hint="Copy or download the file again."
    )
