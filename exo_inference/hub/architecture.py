"""What a model is, for the planner: from its directory, or from the Hub without fetching it.

`foreign_files` reads in a child process what there is. The controller calls both ways; what they return
may carry `cannot_size`, which is no error here.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from pathlib import Path

from exo_inference import foreign_files
from exo_inference.hub.model_directory import explained
from exo_inference.planner.model.architecture import Architecture


def read_directory(directory: Path, name: str) -> Architecture:
    """Return the architecture of a model whose files are here; waits, so not for an event loop.

    Weights that are damaged do not count: that is said when they are loaded.

    Raises:
        ModelUnusable: there is no config.json that can be read.
        SourceUnreachable: it could not be read in time.
    """
    with explained():
        return foreign_files.describe_model(directory, name)


async def read_directory_async(directory: Path, name: str) -> Architecture:
    """Return the architecture of a model whose files are here; see `read_directory`."""
    with explained():
        return await foreign_files.describe_model_async(directory, name)


async def fetch_architecture(
    name: str,
    *,
    revision: str | None = None,
    token: str | None = None,
    endpoint: str | None = None,
    timeout_seconds: float = 8.0,
) -> Architecture:
    """Return the architecture of a model of the Hub; its weights stay there.

    Args:
        name: ORG/NAME.
        revision: a branch, a tag or a commit.
        token: of the Hub; None asks without one, also where the user has stored one.
        endpoint: of the Hub; None is what `HF_ENDPOINT` says, else huggingface.co.
        timeout_seconds: for all of it together.

    Raises:
        HubError: the Hub cannot be asked, or does not show this model.
    """
    # It brings huggingface_hub, for which the loop shall not wait.
    await asyncio.to_thread(import_module, "exo_inference.hub.remote_architecture")
    from exo_inference.hub.remote_architecture import fetch

    return await fetch(name, revision, token, endpoint, timeout_seconds)
