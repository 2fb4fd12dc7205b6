"""Engine flags, read once: what they set goes on as values. Pure.

Whoever has flags asks `read_flags`; the same flags are read once in a process, however many ask. What the
planner takes are the values of `read_settings`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from exo_inference.engine_names import GPU_ENGINE
from exo_inference.engines import DEFAULT_VERSION, get_engine
from exo_inference.engines.flags.reader import Reading
from exo_inference.errors import ExoError, UsageError
from exo_inference.planner.parameters import SETTINGS, EngineParameters
from exo_inference.planner.written_flags import WrittenFlag

_MAX_KEPT = 32
"""Vectors that are kept, which may be as large as a request: enough for those that are asked about at once."""


@functools.lru_cache(maxsize=_MAX_KEPT)
def read_flags(
    flags: tuple[str, ...], engine: str = GPU_ENGINE, version: str | None = None
) -> Reading:
    """Return what flags set, and everything that is wrong with them; it is shared and does not change.

    Args:
        flags: the argument vector.
        engine: its name, as in `engine_names.py`.
        version: a release of the engine; None is the platform's default.

    Raises:
        UsageError: the flags of that release are not known.
        UnknownEngine
    """
    return get_engine(engine).read(flags, version)


def read_settings(
    flags: tuple[str, ...],
    engine: str = GPU_ENGINE,
    version: str | None = None,
    given: Mapping[str, Any] | None = None,
) -> EngineParameters:
    """Return what the planner takes of flags; what is wrong with single flags is not said here.

    Args:
        flags: the argument vector.
        engine: its name, as in `engine_names.py`; one whose memory is planned by vLLM's rules, or by rules like them.
        version: the release whose rules apply; None is the platform's default.
        given: values that the platform sets where the flags do not, by the names of flags.

    Raises:
        WrongSetting: no engine can be planned with a value.
        UsageError: the flags of that release are not known.
    """
    reading = read_flags(flags, engine, version)
    return settings_of(reading, engine, version or DEFAULT_VERSION, given or {})


def settings_of(
    reading: Reading, engine: str, version: str, given: Mapping[str, Any]
) -> EngineParameters:
    """Return what the planner takes of flags that were read; the arguments are those of `read_settings`.

    Raises:
        WrongSetting: no engine can be planned with a value.
    """
    values = {**given, **reading.values}
    return EngineParameters.of(
        {name.replace("-", "_"): value for name, value in values.items()},
        engine=engine,
        engine_version=version,
        others=_others(reading),
    )


def read_draft_name(flags: tuple[str, ...], engine: str, version: str | None) -> str | None:
    """Return the draft model that flags name, if they can be read."""
    try:
        return read_settings(flags, engine, version).draft_name
    except ExoError:  # it is judged elsewhere
        return None


def is_written(name: str, flags: tuple[str, ...], engine: str, version: str | None) -> bool:
    """Whether a flag is among flags; of a release that is not known, by the list of the default one.

    Raises:
        UnknownEngine
    """
    try:
        reading = read_flags(flags, engine, version)
    except UsageError:
        reading = read_flags(flags, engine)
    return reading.find(name) is not None


def written_flags(reading: Reading) -> tuple[WrittenFlag, ...]:
    """Return an argument vector flag by flag, as it was written."""
    uses = {use.index: use for use in reading.uses}
    flags, index = [], 0
    while index < len(reading.items):
        use = uses.get(index)
        end = index + (1 if use is None else use.items)
        name = "" if use is None or use.flag is None else use.flag.name
        flags.append(WrittenFlag(name, reading.items[index:end]))
        index = end
    return tuple(flags)


def _others(reading: Reading) -> tuple[WrittenFlag, ...]:
    """Return the flags that are no settings."""
    written = written_flags(reading)
    return tuple(flag for flag in written if flag.name.replace("-", "_") not in SETTINGS)
