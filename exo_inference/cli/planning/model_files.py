"""The model that `deployment plan --model` names: a config.json, or a directory with its checkpoint.

Damaged files are refused with their names, so that no plan is made of half a model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from exo_inference.errors import UsageError
from exo_inference.model_description import (
    CONFIG_NAME,
    MAX_CONFIG_BYTES,
    DescriptionError,
    describe,
    read_object,
    read_quantization,
    with_checkpoint,
)
from exo_inference.planner import Architecture


def read_model(path: Path) -> Architecture:
    """Return the model in a directory, or the one that a config.json describes.

    Raises:
        UsageError: there is nothing, or something in it cannot be read.
    """
    if not path.exists():
        raise UsageError(
            f"--model: {path} does not exist, expected a directory or a config.json",
            hint="To plan a model by its name, use --model-name.",
        )
    if path.is_dir() and not (path / CONFIG_NAME).is_file():
        raise UsageError(
            f"--model: there is no config.json in {path}",
            hint="Give the directory that the model was saved in, or its config.json.",
        )
    try:
        return _read(path)
    except DescriptionError as error:
        raise UsageError(
            f"--model: {error}",
            hint="Mend or fetch that file again; a config.json alone can be planned as well.",
        ) from error


def _read(path: Path) -> Architecture:
    config_file = path / CONFIG_NAME if path.is_dir() else path
    config = read_object(config_file, MAX_CONFIG_BYTES)
    quantization = read_quantization(path) if path.is_dir() else None
    model = describe(config, quantization, _name(config, path), str(config_file))
    return with_checkpoint(model, path) if path.is_dir() else model


def _name(config: dict[str, Any], path: Path) -> str:
    own = config.get("_name_or_path")
    if isinstance(own, str) and own and not Path(own).is_absolute():
        return own
    resolved = path.resolve()
    return resolved.name if path.is_dir() else resolved.parent.name
