"""Puts a simulated core together: the big deployment's limits around the small model.

Scheduler and block manager are the real ones, with the figures of the file. The block manager's
blocks take no memory: keys and values are in `WindowRunner`'s own small cache. The core calls
`load_simulated` in place of `load`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from exo_engine.attention.layer import Reach
from exo_engine.config import EngineConfig, ResolvedConfig, resolve
from exo_engine.core.block_manager import BlockManager
from exo_engine.core.loading import (
    LoadedCore,
    load_decoder,
    make_executor,
    make_runner,
    warm_up,
)
from exo_engine.core.measurements import Measurements, cpu_name, peak_rss_bytes
from exo_engine.core.memory import block_demand, cache_plan
from exo_engine.core.start_up import StartUp
from exo_engine.errors import InternalError
from exo_engine.models.config_file import limits_of, read_spec
from exo_engine.models.spec import DecoderSpec
from exo_engine.simulation.file import Simulation
from exo_engine.simulation.pace import Pace, PacedRunner
from exo_engine.simulation.start import play
from exo_engine.simulation.window_runner import WINDOW_TOKENS, WindowRunner

_MAX_CACHE_BYTES: Final = 128 * 2**20
"""Of the small model's own cache: about 80 full windows of the built-in model."""
_BLOCK_SIZE: Final = 16
"""Of that cache; the simulated block size may be much larger than a window."""


def load_simulated(config: EngineConfig, start_up: StartUp) -> LoadedCore:
    """Play the start of a simulated deployment and return a core with its limits.

    Raises:
        ConfigurationError: a setting is wrong (`ModelUnusable`: the small model's files are).
        CoreFailed: the start was told to fail.
    """
    simulation = config.simulation
    if simulation is None:
        raise InternalError("asked to simulate without a simulation")
    parts = play(simulation, start_up, lambda: _load(config, simulation))
    runner = PacedRunner(parts.runner, Pace(simulation), start_up.clock)
    settings = parts.settings
    return LoadedCore(
        parts.spec,
        settings,
        make_executor(runner, settings),
        simulation.num_kv_blocks,
        Measurements(
            simulated=True,
            device=settings.device,
            device_name=cpu_name(),
            dtype=settings.dtype,
            max_model_len=settings.max_model_len,
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            kv_block_size=settings.block_size,
            num_kv_blocks=simulation.num_kv_blocks,
            kv_capacity_tokens=simulation.num_kv_blocks * settings.block_size,
            peak_rss_bytes=peak_rss_bytes(),
            start_up_seconds=start_up.finish(),
        ),
        reaches=(Reach(),),
        max_scored_tokens=parts.window_tokens,
    )


def simulated_settings(
    config: EngineConfig, simulation: Simulation, spec: DecoderSpec
) -> ResolvedConfig:
    """Return the settings of the big deployment, of which the small model runs on the CPU."""
    asked = replace(
        config,
        dtype="auto",
        quantization=None,
        device="cpu",
        block_size=simulation.kv_block_size,
        num_gpu_blocks_override=simulation.num_kv_blocks,
        kv_cache_bytes=None,
        max_model_len=simulation.max_model_len,
        max_num_seqs=simulation.max_num_seqs,
        max_num_batched_tokens=simulation.max_num_batched_tokens,
        # Several replicas share this machine, and threads that wait for each other are slower there
        # than one alone.
        num_threads=config.num_threads or 1,
    )
    limits = replace(limits_of(spec), max_position_embeddings=simulation.max_model_len)
    return resolve(asked, limits, has_cuda=False)


@dataclass(frozen=True, slots=True)
class _SmallModel:
    spec: DecoderSpec
    settings: ResolvedConfig
    runner: WindowRunner
    window_tokens: int


def _load(config: EngineConfig, simulation: Simulation) -> _SmallModel:
    """Load the small model, without a word to /health: that speaks of the big one."""
    spec = read_spec(config.model_dir)
    settings = simulated_settings(config, simulation, spec)
    decoder = load_decoder(spec, settings, lambda detail: None)
    window = min(WINDOW_TOKENS, spec.max_position_embeddings)
    decoder.set_num_positions(window)
    small = replace(settings, block_size=_BLOCK_SIZE, max_model_len=window)
    plan = cache_plan(spec, small)
    per_window = block_demand(plan, small).most_blocks(window)
    num_blocks = min(
        settings.max_num_seqs * per_window,
        max(_MAX_CACHE_BYTES // plan.block_bytes, per_window),
    )
    blocks = BlockManager(
        num_blocks, _BLOCK_SIZE, enable_prefix_caching=False, reaches=plan.reaches
    )
    small_runner = make_runner(decoder, small, num_blocks)
    runner = WindowRunner(small_runner, blocks, window, settings.max_num_seqs)
    warm_up(runner, spec, small, num_blocks)
    return _SmallModel(spec, settings, runner, window)
