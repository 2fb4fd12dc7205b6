"""Replicas on GPUs that are not there: what is offered, and what such a replica is told to be.

`simulation_document` is asked before each start of a replica on a family of `--simulate-gpus`. It
plans the deployment as admission did and returns the file that `exo-engine serve --simulation`
reads: the size of the KV cache, limits, speed, the phases of the start, and the failure where the
plan does not fit. The figures are the planner's; `simulated_start.py` adds durations and log lines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exo_inference.engine_names import facts_of
from exo_inference.engines.registry import engine_release
from exo_inference.errors import ExoError
from exo_inference.planner import Architecture, Plan, find_draft, find_model, plan
from exo_inference.platforms.base import DesiredDeployment
from exo_inference.platforms.local.placement import Obstacle
from exo_inference.platforms.local.simulated_start import (
    explain_failure,
    failing_start,
    start_phases,
)
from exo_inference.preflight import read_settings
from exo_inference.simulated_gpus import FLAG, MODEL_MARKER, SimulatedGpus

_MAX_BLOCKS = 2**22
"""What exo-engine simulates at most; more is never used, because sequences are limited too."""

_MAX_SEQS = 65_536
_BLOCK_TOKENS = 16
"""Where a model has no KV cache, so that the plan names no block size."""


ReadModel = Callable[[Path, str], Architecture]
"""Returns what the planner knows of the model of a name in a directory; raises ExoError."""


def find_by_name(directory: Path, name: str) -> Architecture:
    """Return a model of the planner's catalogue, whatever is in the directory.

    Raises:
        UsageError: the catalogue does not have it.
    """
    return find_model(name)


@dataclass(frozen=True, slots=True)
class Simulation:
    """What `--simulate-gpus` asks of the local platform.

    Attributes:
        gpus: the families that are offered without being there.
        speedup: durations of start and steps are divided by it.
        stand_in: directory of the small model that runs in place of the one asked for.
        read_model: for models whose files are there.
    """

    gpus: tuple[SimulatedGpus, ...] = ()
    speedup: int = 1
    stand_in: Path = field(default_factory=Path)
    read_model: ReadModel = find_by_name


def has_no_weights(directory: Path) -> bool:
    """Whether a model is simulated: it was created, and its weights were never downloaded."""
    return (directory / MODEL_MARKER).exists()


def find_mismatch(desired: DesiredDeployment, gpus: SimulatedGpus | None) -> Obstacle | None:
    """Say why a deployment cannot run on its family for good; None when it can.

    Args:
        desired: the deployment.
        gpus: what its family stands for; None for a real one.
    """
    if gpus is not None:
        return None
    if has_no_weights(Path(desired.model_path)):
        text = (
            f"the model {desired.spec.model} is simulated: its weights were not downloaded, so it "
            f"does not run on {desired.spec.gpu_type}, which is real. Choose a gpu-type of {FLAG}, or "
            f"run `down` and `up {FLAG} none`, delete the model and create it again"
        )
        return Obstacle(text, final=True)
    engine = facts_of(desired.engine)
    if not engine.is_ours:
        text = (
            f"{engine.title} is not started on {desired.spec.gpu_type}: here it runs on simulated GPUs only. "
            "Create the deployment with the engine `exo`"
        )
        return Obstacle(text, final=True)
    return None


def simulation_document(
    desired: DesiredDeployment, gpus: SimulatedGpus, simulation: Simulation
) -> dict[str, Any]:
    """Return the content of the simulation file of one replica.

    What cannot be planned becomes a start that fails and says why.
    """
    head = {
        "model": desired.spec.model,
        "gpu": gpus.gpu.name,
        "gpu_count": desired.spec.gpu_count,
        "engine": desired.engine,
        "engine_version": engine_release(desired.engine, desired.spec.engine.version),
    }
    try:
        parameters = read_settings(
            desired.spec.engine_parameters, desired.engine, desired.spec.engine.version
        )
        directory = Path(desired.model_path)
        read_model = find_by_name if has_no_weights(directory) else simulation.read_model
        model = read_model(directory, desired.spec.model)
    except ExoError as error:
        return {**head, **_NOTHING, **failing_start(f"cannot be simulated: {error.text}")}
    draft = find_draft(parameters.draft_name)
    found = plan(model, gpus.gpu, desired.spec.gpu_count, parameters, draft=draft)
    if failure := explain_failure(found):
        limits = _limits(found) if found.components else _NOTHING
        return {**head, **limits, **failing_start(failure, found, simulation.speedup)}
    return {
        **head,
        **_limits(found),
        **_speed(found, simulation.speedup),
        "phases": start_phases(found, simulation.speedup),
    }


_NOTHING = {
    "kv_capacity_tokens": 0,
    "kv_block_size": _BLOCK_TOKENS,
    "max_model_len": 1,
    "max_num_seqs": 1,
    "max_num_batched_tokens": 1,
}
"""Limits of a replica that is never served."""


def _limits(found: Plan) -> dict[str, int]:
    """Return the cache and the limits; data-parallel ranks are simulated as one engine."""
    ranks = max(1, found.ranks.data)
    block = found.kv_block_size or _BLOCK_TOKENS
    one_request = -(-found.max_model_len // block) * block
    seqs = max(1, min(found.max_num_seqs * ranks, _MAX_SEQS))
    useful = min(seqs * one_request, _MAX_BLOCKS * block)
    return {
        # Hybrid models hold a request in fewer tokens of cache than it has.
        "kv_capacity_tokens": max(
            min(found.kv_capacity_tokens * ranks, useful), one_request * found.fits_nominally
        ),
        "kv_block_size": block,
        "max_model_len": max(1, found.max_model_len),
        "max_num_seqs": seqs,
        "max_num_batched_tokens": max(seqs, found.max_num_batched_tokens * ranks),
    }


def _speed(found: Plan, speedup: int) -> dict[str, Any]:
    """Return the seconds of steps and of prompts, by the plan."""
    assert found.speed is not None, "explain_failure refuses plans without a speed"
    steps = [(each.batch, each.inter_token_seconds) for each in found.speed.batches]
    # What writes nothing has no steps; the simulation wants one, which nothing takes.
    steps = steps or [(1, found.speed.prompts[0].ttft_seconds)]
    return {
        "step_seconds": [{"batch": size, "seconds": seconds / speedup} for size, seconds in steps],
        "prompt_seconds": [
            {"tokens": each.num_tokens, "seconds": each.ttft_seconds / speedup}
            for each in found.speed.prompts
        ],
    }
