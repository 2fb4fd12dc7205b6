"""The model that `deployment plan --model` names: a config.json, or a directory with its checkpoint.

Damaged files are refused with their names, so that no plan is made of half a model.
"""

from __future__ import annotations

from pathlib import Path

from exo_inference import foreign_files
from exo_inference.errors import UsageError
from exo_inference.foreign_files import ForeignFileError, ReadingFailed
from exo_inference.model_description import CONFIG_NAME
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
        return foreign_files.describe_model(path, is_strict=True)
    except (ForeignFileError, ReadingFailed) as error:
        raise UsageError(
            f"--model: {error.message}",
            hint="Mend or fetch that file again; a config.json alone can be planned as well.",
        ) from error
