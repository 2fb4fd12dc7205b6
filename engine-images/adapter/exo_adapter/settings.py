"""What the container got: variables, the parameter file, the model. Read once, at the start."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_SIZES = {
    "EXO_TENSOR_PARALLEL_SIZE": (1, 1, 1024),
    "EXO_PIPELINE_PARALLEL_SIZE": (1, 1, 1024),
    "EXO_NODE_COUNT": (1, 1, 1024),
    "EXO_NODE_RANK": (0, 0, 1023),
    "EXO_DRAIN_SECONDS": (120, 0, 86_400),
    "EXO_STALL_SECONDS": (0, 0, 86_400),
    "EXO_HTTP_PORT": (8000, 1, 65_535),
    "EXO_PROBE_PORT": (8001, 0, 65_535),
}
"""Default, lowest and highest value of each number."""


class SettingsError(Exception):
    """Something the container got is wrong; starting it again will not help."""


@dataclass(frozen=True)
class Settings:
    """Everything the adapter needs to know.

    Attributes:
        engine: key of the table in `engines`.
        served_model_name: what clients send as `model`.
        model: directory of the model.
        parameters: the user's flags.
        device: `cuda` or `cpu`.
        tensor_parallel_size: GPUs of this node that share the model.
        pipeline_parallel_size: stages of the model.
        node_count: pods that make up this replica.
        node_rank: this pod's number among them; 0 serves.
        leader_address: of pod 0.
        drain_seconds: how long requests in flight may take after SIGTERM.
        stall_seconds: how long no progress is tolerated; 0 is the engine's own.
        http_port: the engine listens here.
        probe_port: the adapter listens here; 0 takes a free one.
        termination_log: where the adapter's last word goes.
    """

    engine: str
    served_model_name: str
    model: Path
    parameters: tuple[str, ...]
    device: str
    tensor_parallel_size: int
    pipeline_parallel_size: int
    node_count: int
    node_rank: int
    leader_address: str
    drain_seconds: int
    stall_seconds: int
    http_port: int
    probe_port: int
    termination_log: Path


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Read and check everything.

    Raises:
        SettingsError: names what is wrong, what was found and what is expected.
    """
    numbers = {name: _number(environment, name) for name in _SIZES}
    if numbers["EXO_NODE_RANK"] >= numbers["EXO_NODE_COUNT"]:
        raise SettingsError(
            f"EXO_NODE_RANK is {numbers['EXO_NODE_RANK']}, but EXO_NODE_COUNT is "
            f"{numbers['EXO_NODE_COUNT']}: ranks count from 0"
        )
    leader = environment.get("EXO_LEADER_ADDRESS", "")
    if numbers["EXO_NODE_COUNT"] > 1 and not leader:
        raise SettingsError("EXO_LEADER_ADDRESS is not set, but EXO_NODE_COUNT is more than 1")
    device = environment.get("EXO_DEVICE", "cuda")
    if device not in ("cpu", "cuda"):
        raise SettingsError(f"EXO_DEVICE is {device!r}; it must be cpu or cuda")
    return Settings(
        engine=_text(environment, "EXO_ENGINE"),
        served_model_name=_text(environment, "EXO_SERVED_MODEL_NAME"),
        model=_model(Path(environment.get("EXO_MODEL_PATH", "/model"))),
        parameters=_parameters(
            Path(environment.get("EXO_PARAMETERS_FILE", "/etc/exo/parameters.json"))
        ),
        device=device,
        tensor_parallel_size=numbers["EXO_TENSOR_PARALLEL_SIZE"],
        pipeline_parallel_size=numbers["EXO_PIPELINE_PARALLEL_SIZE"],
        node_count=numbers["EXO_NODE_COUNT"],
        node_rank=numbers["EXO_NODE_RANK"],
        leader_address=leader,
        drain_seconds=numbers["EXO_DRAIN_SECONDS"],
        stall_seconds=numbers["EXO_STALL_SECONDS"],
        http_port=numbers["EXO_HTTP_PORT"],
        probe_port=numbers["EXO_PROBE_PORT"],
        termination_log=termination_log(environment),
    )


def termination_log(environment: Mapping[str, str]) -> Path:
    """Return where the adapter's last word goes; known before anything is checked."""
    return Path(environment.get("EXO_TERMINATION_LOG", "/dev/termination-log"))


def probe_port(environment: Mapping[str, str]) -> int:
    """Return the port of the probes alone, for the health check of Docker and Podman.

    Raises:
        SettingsError
    """
    return _number(environment, "EXO_PROBE_PORT")


def _text(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "")
    if not value:
        raise SettingsError(f"{name} is not set")
    return value


def _number(environment: Mapping[str, str], name: str) -> int:
    default, lowest, highest = _SIZES[name]
    text = environment.get(name, "")
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or not lowest <= int(text) <= highest:
        raise SettingsError(
            f"{name} is {text[:64]!r}; it must be a whole number from {lowest} to {highest}"
        )
    return int(text)


def _model(path: Path) -> Path:
    try:
        is_empty = next(path.iterdir(), None) is None
    except OSError as exc:
        raise SettingsError(f"cannot read the model at {path}: {exc.strerror}") from exc
    if is_empty:
        raise SettingsError(f"there is no model at {path}: the directory is empty")
    return path


def _parameters(path: Path) -> tuple[str, ...]:
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError) as exc:
        raise SettingsError(f"cannot read the parameters in {path}: {exc}") from exc
    try:
        words = json.loads(text)
    except json.JSONDecodeError as exc:
        raise SettingsError(f"the parameters in {path} are not JSON: {exc}") from exc
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise SettingsError(f'the parameters in {path} must be an array of strings, ["--flag", …]')
    if any("\0" in word for word in words):
        raise SettingsError(f"a parameter in {path} has a zero byte in it")
    return tuple(words)
