"""The GPUs that a user describes in `gpus.toml` of the state directory; read once, at the start."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from exo_inference.errors import ConfigurationError, UsageError
from exo_inference.planner.gpu_catalog import Gpu
from exo_inference.planner.gpu_file import load_user_gpus
from exo_inference.state_dir import read_file

FILE_NAME = "gpus.toml"


def read_user_gpus(path: Path) -> Mapping[str, Gpu]:
    """Return the user's GPUs by name; none without the file.

    Raises:
        ConfigurationError: the file cannot be read, or what it says makes no GPU.
    """
    try:
        return load_user_gpus(read_file(path).decode())
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"cannot read {path}: {error}", hint="Mend or remove the file, then start again."
        ) from error
    except UsageError as error:
        raise ConfigurationError(f"{path}: {error.message}", hint=error.hint) from error
