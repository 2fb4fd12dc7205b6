"""Models of the Hub on a control plane whose GPUs are simulated: known, but never downloaded.

A model of the planner's catalogue becomes ready in a moment: its directory gets a marker, and its
config.json where the catalogue has one. Nothing is asked of the Hub. What runs on simulated GPUs is
a small model; see `platforms/local/simulation.py`.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from exo_inference.errors import UsageError
from exo_inference.hub.base import (
    InvalidModelName,
    ModelFile,
    ModelNotFound,
    ModelUnusable,
    ProgressCallback,
    ResolvedModel,
)
from exo_inference.planner import EngineParameters, find_gpu, find_model, load_models, plan
from exo_inference.simulated_gpus import FLAG, MODEL_MARKER, MODEL_REVISION
from exo_inference.state_dir import write_atomically

_FETCH_SECONDS = 0.4
"""How long a pretended download takes, so that its states are seen."""

_NUM_REPORTS = 4


class SimulatedSource:
    """Serves names of the Hub, without the Hub."""

    async def resolve(
        self, source: str, *, revision: str | None, token: str | None
    ) -> ResolvedModel:
        """Find a model in the planner's catalogue; its size is that of its checkpoint.

        Raises:
            InvalidModelName, ModelNotFound, ModelUnusable
        """
        if revision not in (None, MODEL_REVISION):
            raise InvalidModelName(
                f"a revision ({revision[:64]!r}) was given for {source!r}, and with simulated GPUs "
                "models are not downloaded and have none",
                hint=f"Create the model without a revision, or start without {FLAG}.",
            )
        size_bytes = await asyncio.to_thread(_checkpoint_bytes, source)
        return ResolvedModel(source, MODEL_REVISION, (ModelFile("model.safetensors", size_bytes),))

    async def fetch(
        self,
        model: ResolvedModel,
        directory: Path,
        *,
        token: str | None,
        progress: ProgressCallback,
    ) -> Path:
        """Mark the directory as simulated.

        Raises:
            FetchCancelled
        """
        for part in range(_NUM_REPORTS):
            progress(model.size_bytes * part // _NUM_REPORTS)
            await asyncio.sleep(_FETCH_SECONDS / _NUM_REPORTS)
        await asyncio.to_thread(_write, directory, model.source)
        progress(model.size_bytes)
        return directory


def _checkpoint_bytes(name: str) -> int:
    """Return the size of a checkpoint: as published, else as it would be planned on one GPU.

    Raises:
        ModelNotFound: the catalogue does not have the model.
        ModelUnusable: nothing can be planned for it.
    """
    try:
        model = find_model(name)
    except UsageError as error:
        raise ModelNotFound(
            f"{error.message}, and with simulated GPUs nothing is downloaded from the Hub",
            hint=f"{error.hint or ''} Or start without {FLAG} to download models.".strip(),
        ) from error
    if model.cannot_size is not None:
        raise ModelUnusable(
            f"cannot simulate {name}: it cannot be sized, because {model.cannot_size}",
            hint=f"Choose another model, or start without {FLAG}.",
        )
    if published := load_models().get(name, {}).get("published_bytes"):
        return int(published)
    return plan(model, find_gpu("gpub300"), 1, EngineParameters()).weights_bytes_per_gpu


def _write(directory: Path, name: str) -> None:
    entry = load_models().get(name, {})
    if "config" in entry:
        write_atomically(directory / "config.json", json.dumps(entry["config"], indent=2))
    about = {"model": name, "weights": "not downloaded: the GPUs are simulated"}
    write_atomically(directory / MODEL_MARKER, json.dumps(about))
