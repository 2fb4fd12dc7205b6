"""GPUs that a user describes: a TOML file with one table each, checked field by field.

The command line and the controller read the file and hand its text to `load_user_gpus`; `find_gpu` takes
the result and prefers it to the bundled catalogue. The format is in docs/reference/gpu-file.md.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any

from exo_inference.errors import UsageError
from exo_inference.planner.gpu_catalog import GIB, MIB, Gpu, kept_mib
from exo_inference.planner.speed.constants import load_speed_constants

_NUMBERS = (
    "memory-gib", "memory-mib", "bandwidth-gbps", "compute-capability", "link-gbps", "usd-per-hour",
)  # fmt: skip
_FIELDS = frozenset(
    {*_NUMBERS, "name", "vendor", "tflops", "native", "nvlink", "max-count", "processor"}
)
_VENDORS = ("nvidia", "amd")
_NATIVE = ("fp16", "bf16", "fp8", "int8", "mxfp4", "nvfp4")
_ARITHMETIC = ("fp16", "bf16", "fp8", "int8", "fp4")
_EXAMPLE = "For example: memory-mib = 24564, bandwidth-gbps = 768, tflops = {bf16 = 111}."
_FORM = "Write one table per GPU: [my-gpu]."
_LEAST = 1e-3
"""Of all numbers: far below any GPU's, and no time that is divided by it is endless."""
_SOURCE = "the user's GPU file"


def load_user_gpus(text: str) -> Mapping[str, Gpu]:
    """Return the GPUs of a user's file by table name.

    Args:
        text: the file's content, TOML with one table per GPU.

    Raises:
        UsageError: it is not TOML, or a table or field is wrong; the message names both.
    """
    try:
        tables = tomllib.loads(text)
    except RecursionError as exc:
        raise UsageError("the GPU file is nested too deeply", hint=_FORM) from exc
    except ValueError as exc:  # also of a number of thousands of digits, which Python does not read
        raise UsageError(f"the GPU file is not valid TOML: {exc}", hint=_FORM) from exc
    found: dict[str, Gpu] = {}
    for key, entry in tables.items():
        if not isinstance(entry, dict):
            raise UsageError(
                f"the GPU file has {key!r} outside a table",
                hint="Write one table per GPU: [my-gpu], and the fields below it.",
            )
        found[key] = parse_gpu(key, entry)
    return found


def parse_gpu(key: str, entry: Mapping[str, Any]) -> Gpu:
    """Return a GPU that a user described (one table of the user's file).

    Args:
        key: its name.
        entry: `memory-mib` (as nvidia-smi reports) or `memory-gib`, `bandwidth-gbps`, and optionally
            `name`, `vendor`, `tflops` by type, `native` types, `compute-capability`, `link-gbps`, `nvlink`,
            `usd-per-hour`, `max-count` and the `processor` of its host.

    Raises:
        UsageError: a field is missing, unknown or of the wrong kind.
    """
    unknown = sorted(set(entry) - _FIELDS)
    if unknown:
        known = ", ".join(sorted(_FIELDS))
        raise UsageError(
            f"GPU {key!r} has an unknown field {unknown[0]!r}", hint=f"Known fields: {known}."
        )
    size, unit = ("memory-mib", MIB) if "memory-mib" in entry else ("memory-gib", GIB)
    memory = int(_number(key, entry, size) * unit)
    vendor = _choice(key, "vendor", entry.get("vendor", "nvidia"), _VENDORS)
    kept, error = kept_mib(vendor)
    if memory <= kept * MIB:
        raise _wrong(key, size, entry[size], f"more than the {kept} MiB the driver keeps")
    price = _optional(key, entry, "usd-per-hour")
    return Gpu(
        key=key,
        name=_text(key, entry, "name", key),
        vendor=vendor,
        reported_bytes=memory - kept * MIB,
        reported_error_bytes=error * MIB,
        bandwidth=_number(key, entry, "bandwidth-gbps") * 1e9,
        tflops=_tflops(key, entry),
        capability=_optional(key, entry, "compute-capability"),
        native=_native(key, entry),
        link_bandwidth=(_optional(key, entry, "link-gbps") or 16) * 1e9,
        has_nvlink=_flag(key, entry, "nvlink"),
        host_bandwidth=_host_gbps(key, entry) * 1e9,
        processor=_processor(key, entry),
        usd_per_hour={} if price is None else {1: price},
        price_source=_SOURCE,
        max_count=_count(key, entry, "max-count", 8),
        source=_SOURCE,
    )


def _tflops(key: str, entry: Mapping[str, Any]) -> Mapping[str, float]:
    rates = entry.get("tflops", {})
    if not isinstance(rates, Mapping):
        raise _wrong(key, "tflops", rates, "numbers by type")
    for kind in rates:
        _choice(key, "a type of tflops", kind, _ARITHMETIC)
    return {kind: _number(key, rates, kind, shown=f"tflops.{kind}") for kind in rates}


def _native(key: str, entry: Mapping[str, Any]) -> frozenset[str]:
    kinds = entry.get("native", ["fp16", "bf16"])
    if not isinstance(kinds, list | tuple) or not kinds:
        raise _wrong(key, "native", kinds, "a list of number types")
    return frozenset(_choice(key, "a type of native", kind, _NATIVE) for kind in kinds)


def _processor(key: str, entry: Mapping[str, Any]) -> str:
    """Return the host's processor; only of those that are known does anybody know how fast they are."""
    if "processor" not in entry:
        return ""
    return _choice(key, "processor", entry["processor"], tuple(load_speed_constants().hosts))


def _number(key: str, entry: Mapping[str, Any], name: str, *, shown: str = "") -> float:
    value = entry.get(name)
    if value is None:
        raise UsageError(f"GPU {key!r} has no {shown or name}", hint=_EXAMPLE)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
        raise _wrong(key, shown or name, value, "a number above 0")
    if value < _LEAST:
        raise _wrong(key, shown or name, value, f"at least {_LEAST:g}")
    return float(value)


def _host_gbps(key: str, entry: Mapping[str, Any]) -> float:
    """Return the link to the host: PCIe as between GPUs, or third-generation PCIe beside NVLink."""
    link = _optional(key, entry, "link-gbps")
    return 16.0 if link is None or _flag(key, entry, "nvlink") else link


def _optional(key: str, entry: Mapping[str, Any], name: str) -> float | None:
    return _number(key, entry, name) if name in entry else None


def _count(key: str, entry: Mapping[str, Any], name: str, default: int) -> int:
    value = _number(key, entry, name) if name in entry else default
    if value != int(value):
        raise _wrong(key, name, value, "a whole number")
    return int(value)


def _flag(key: str, entry: Mapping[str, Any], name: str) -> bool:
    value = entry.get(name, False)
    if not isinstance(value, bool):
        raise _wrong(key, name, value, "true or false")
    return value


def _text(key: str, entry: Mapping[str, Any], name: str, default: str) -> str:
    value = entry.get(name, default)
    if not isinstance(value, str) or not value.strip():
        raise _wrong(key, name, value, "a text")
    return value


def _choice(key: str, name: str, value: object, choices: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in choices:
        raise _wrong(key, name, value, f"one of {', '.join(choices)}")
    return value


def _wrong(key: str, name: str, value: object, expected: str) -> UsageError:
    try:
        shown = f"{value!r:.40}"
    except ValueError:  # hexadecimal digits are read without a limit, and not written so
        shown = "a number of thousands of digits"
    except RecursionError:  # keys with thousands of dots
        shown = "nested too deeply"
    return UsageError(f"GPU {key!r}: {name} is {shown}, expected {expected}", hint=_EXAMPLE)
