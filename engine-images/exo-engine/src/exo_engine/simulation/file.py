"""The file of `--simulation`: what it may say, and reading it strictly.

`arguments` reads it once, in the API process; the core gets the same values in its configuration
(`dataclasses.asdict` of a `Simulation` parses to the same again). The names of the fields are the
keys of the file. An unknown key or a value of the wrong type is refused, because a simulation that
ignores a figure would be believed. No torch, no clock.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from exo_engine.errors import ConfigurationError

_T = TypeVar("_T")
_MAX_FILE_BYTES: Final = 4 * 2**20
_MAX_NUM_BLOCKS: Final = 2**22  # what the block manager keeps of them takes about 1 GiB
_MAX_TOKENS: Final = 2**31
_MAX_NUM_SEQS: Final = 65_536  # as --max-num-seqs
_MAX_SECONDS: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Phase:
    """One part of the start, such as loading weights."""

    name: str
    """What /health says meanwhile."""
    seconds: float
    log: tuple[str, ...] = ()
    """Printed to stderr as they are when the phase begins."""


@dataclass(frozen=True, slots=True)
class SimulatedFailure:
    """How the start fails, instead of becoming ready."""

    phase: str
    """The name of the phase at whose end it fails."""
    error: str
    """What follows `exo-engine: error:`."""
    exit_code: int
    log: tuple[str, ...] = ()
    """Printed to stderr as they are before the error."""


@dataclass(frozen=True, slots=True)
class PromptSeconds:
    """How long a prompt of so many tokens takes to compute, alone."""

    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """How long a step takes in which so many sequences get one token each."""

    batch: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Simulation:
    """Everything that is simulated."""

    model: str
    """Name of the big model, for the log."""
    gpu: str
    """Name of the GPU, for the log."""
    gpu_count: int
    kv_capacity_tokens: int
    """Tokens that the KV cache holds."""
    kv_block_size: int
    """Tokens per block."""
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    phases: tuple[Phase, ...] = ()
    step_seconds: tuple[StepSeconds, ...] = ()
    """By rising batch; between two the time is interpolated, beyond the last extrapolated."""
    prefill_seconds_per_token: float | None = None
    """Speed of prompts, where it is the same for every length."""
    prompt_seconds: tuple[PromptSeconds, ...] = ()
    """Speed of prompts, by rising length; the same between and beyond. Exactly one of the two."""
    fail: SimulatedFailure | None = None
    """With it the speeds may be left out and the cache may be too small: nothing is served."""
    engine: str | None = None
    """Name of the engine that is simulated, for the log and /version."""
    engine_version: str | None = None

    @property
    def num_kv_blocks(self) -> int:
        """Whole blocks in the KV cache."""
        return self.kv_capacity_tokens // self.kv_block_size

    @property
    def title(self) -> str:
        """What is simulated, in words."""
        engine = " ".join(word for word in (self.engine, self.engine_version) if word)
        return f"{self.model} on {self.gpu_count} x {self.gpu}" + (engine and f" with {engine}")


def read_simulation(path: Path) -> Simulation:
    """Read the file of `--simulation`.

    Raises:
        ConfigurationError: it cannot be read, or says something that cannot be simulated.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
        if len(data) > _MAX_FILE_BYTES:
            raise ConfigurationError(
                f"cannot read --simulation {path}: it has more than {_MAX_FILE_BYTES} bytes",
                param="simulation",
                hint="Write fewer log lines into it.",
            )
        document = json.loads(data)
    except (OSError, ValueError, RecursionError) as exc:
        what = exc.strerror if isinstance(exc, OSError) else f"it is not JSON ({exc})"
        raise ConfigurationError(
            f"cannot read --simulation {path}: {what}",
            param="simulation",
            hint="Give a JSON file; README.md of exo-engine lists its keys.",
        ) from exc
    return parse_simulation(document)


def parse_simulation(document: object) -> Simulation:
    """Turn the document of a simulation file into a `Simulation`.

    Raises:
        ConfigurationError: a key is unknown or missing, or a value cannot be simulated.
    """
    with_keys = _Keys(document, "the file")
    simulation = Simulation(
        model=with_keys.string("model"),
        gpu=with_keys.string("gpu"),
        gpu_count=with_keys.integer("gpu_count", 1, 4096),
        kv_capacity_tokens=with_keys.integer("kv_capacity_tokens", 0, _MAX_TOKENS),
        kv_block_size=with_keys.integer("kv_block_size", 1, 2**20),
        max_model_len=with_keys.integer("max_model_len", 1, _MAX_TOKENS),
        max_num_seqs=with_keys.integer("max_num_seqs", 1, _MAX_NUM_SEQS),
        max_num_batched_tokens=with_keys.integer("max_num_batched_tokens", 1, _MAX_TOKENS),
        phases=with_keys.objects("phases", _phase),
        step_seconds=with_keys.objects("step_seconds", _step_seconds),
        prefill_seconds_per_token=with_keys.optional("prefill_seconds_per_token", _Keys.seconds),
        prompt_seconds=with_keys.objects("prompt_seconds", _prompt_seconds),
        fail=with_keys.optional("fail", _failure),
        engine=with_keys.optional("engine", _Keys.string),
        engine_version=with_keys.optional("engine_version", _Keys.string),
    )
    with_keys.check_no_others()
    _check_together(simulation)
    return simulation


def _phase(keys: _Keys) -> Phase:
    return Phase(keys.string("name"), keys.seconds("seconds"), keys.strings("log"))


def _step_seconds(keys: _Keys) -> StepSeconds:
    return StepSeconds(keys.integer("batch", 1, _MAX_NUM_SEQS), keys.seconds("seconds"))


def _prompt_seconds(keys: _Keys) -> PromptSeconds:
    return PromptSeconds(keys.integer("tokens", 1, _MAX_TOKENS), keys.seconds("seconds"))


def _failure(parent: _Keys, name: str) -> SimulatedFailure:
    keys = _Keys(parent.take(name), f"{name} of the file")
    failure = SimulatedFailure(
        phase=keys.string("phase"),
        error=keys.string("error"),
        exit_code=keys.integer("exit_code", 1, 255),
        log=keys.strings("log"),
    )
    keys.check_no_others()
    return failure


def _check_together(simulation: Simulation) -> None:
    """Refuse values that contradict each other."""
    names = [phase.name for phase in simulation.phases]
    if len(set(names)) != len(names):
        raise _refused("phases", f"names that differ, got {', '.join(names)[:256]}")
    for key, steps in (
        ("step_seconds", [(each.batch, each.seconds) for each in simulation.step_seconds]),
        ("prompt_seconds", [(each.tokens, each.seconds) for each in simulation.prompt_seconds]),
    ):
        if any(one[0] >= two[0] or one[1] > two[1] for one, two in itertools.pairwise(steps)):
            raise _refused(key, "entries that rise, in their first number and in seconds")
    if simulation.num_kv_blocks > _MAX_NUM_BLOCKS:
        raise _refused(
            "kv_block_size",
            f"large enough for at most {_MAX_NUM_BLOCKS} blocks, got {simulation.num_kv_blocks}",
        )
    if simulation.fail is None:
        _check_can_serve(simulation)
    elif simulation.fail.phase not in names:
        raise _refused(
            "phase",
            f"one of {', '.join(names)[:256] or 'phases, which are none'}, "
            f"got {simulation.fail.phase!r}",
            "fail of the file",
        )


def _check_can_serve(simulation: Simulation) -> None:
    if not simulation.step_seconds:
        raise _refused("step_seconds", "at least one entry")
    if (simulation.prefill_seconds_per_token is None) == (not simulation.prompt_seconds):
        raise _refused("prompt_seconds", "given, or prefill_seconds_per_token, and not both")
    capacity = simulation.num_kv_blocks * simulation.kv_block_size
    if simulation.max_model_len > capacity:
        raise _refused(
            "max_model_len",
            f"at most what the KV cache holds, {capacity} tokens, got {simulation.max_model_len}",
        )
    if simulation.max_num_seqs > simulation.max_num_batched_tokens:
        raise _refused(
            "max_num_seqs",
            f"at most max_num_batched_tokens, {simulation.max_num_batched_tokens}, "
            f"got {simulation.max_num_seqs}",
        )


def _refused(key: str, expected: str, where: str = "the file") -> ConfigurationError:
    return ConfigurationError(
        f"cannot use --simulation: {key} in {where} must be {expected}",
        param="simulation",
        hint="Correct the file; README.md of exo-engine lists its keys.",
    )


class _Keys:
    """One JSON object, of which every key must be asked for."""

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, Mapping):
            raise ConfigurationError(
                f"cannot use --simulation: {where} must be a JSON object, got {_shown(value)}",
                param="simulation",
                hint="Correct the file; README.md of exo-engine lists its keys.",
            )
        self._values: Mapping[str, Any] = value
        self._where = where
        self._asked: set[str] = set()

    def take(self, name: str) -> Any:
        """Return a value as it is; None if it is missing."""
        self._asked.add(name)
        return self._values.get(name)

    def optional(self, name: str, read: Callable[[_Keys, str], _T]) -> _T | None:
        """Read a value that may be missing."""
        return None if self.take(name) is None else read(self, name)

    def string(self, name: str) -> str:
        """Read a string with something in it."""
        value = self.take(name)
        if not isinstance(value, str) or not value.strip():
            raise self._wrong(name, "a string that is not empty", value)
        return value

    def integer(self, name: str, minimum: int, maximum: int) -> int:
        """Read a whole number within limits."""
        value = self.take(name)
        if type(value) is not int or not minimum <= value <= maximum:
            raise self._wrong(name, f"a whole number from {minimum} to {maximum}", value)
        return value

    def seconds(self, name: str) -> float:
        """Read a duration."""
        value = self.take(name)
        is_number = type(value) in (int, float) and math.isfinite(value)
        if not is_number or not 0 <= value <= _MAX_SECONDS:
            raise self._wrong(name, f"a number of seconds from 0 to {_MAX_SECONDS:.0f}", value)
        return float(value)

    def strings(self, name: str) -> tuple[str, ...]:
        """Read a list of strings; a missing one is empty."""
        value = self._list(name, "a list of strings")
        for each in value:
            if not isinstance(each, str):
                raise self._wrong(name, "a list of strings", value)
        return tuple(value)

    def objects(self, name: str, read: Callable[[_Keys], _T]) -> tuple[_T, ...]:
        """Read a list of objects; a missing one is empty."""
        found = []
        for index, value in enumerate(self._list(name, "a list of objects")):
            keys = _Keys(value, f"{name}[{index}] of {self._where}")
            found.append(read(keys))
            keys.check_no_others()
        return tuple(found)

    def check_no_others(self) -> None:
        """Refuse keys that nobody asked for."""
        unknown = [str(key) for key in self._values if key not in self._asked]
        if unknown:
            known = ", ".join(sorted(self._asked))
            raise ConfigurationError(
                f"cannot use --simulation: unknown key {unknown[0][:64]!r} in {self._where}, "
                f"expected {known}",
                param="simulation",
                hint="Correct the file, or use the control plane of the same version.",
            )

    def _list(self, name: str, expected: str) -> list[Any] | tuple[Any, ...]:
        value = self.take(name)
        if value is None:
            return []
        if not isinstance(value, list | tuple):
            raise self._wrong(name, expected, value)
        return value

    def _wrong(self, name: str, expected: str, value: object) -> ConfigurationError:
        found = _shown(value) if name in self._values else "nothing"
        return _refused(name, f"{expected}, got {found}", self._where)


def _shown(value: object) -> str:
    return repr(value)[:64]
