"""From a configuration to a model that embeds or scores: weights, warm-up, and what was measured."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import torch

from exo_engine.config import EngineConfig, ResolvedConfig, resolve
from exo_engine.core.host_memory import free_host_bytes
from exo_engine.core.loading import load_model
from exo_engine.core.measurements import Measurements, cpu_name, peak_rss_bytes
from exo_engine.core.memory import read_device_memory
from exo_engine.core.pooling.settings import check_settings
from exo_engine.core.start_up import StartUp
from exo_engine.errors import OutOfMemory
from exo_engine.kernels.processor import is_fast_in_bfloat16
from exo_engine.models.config_file import limits_of
from exo_engine.models.pooling.config_file import read_pooling_spec
from exo_engine.models.pooling.model import PoolingModel
from exo_engine.models.pooling.spec import PoolingSpec

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedPooling:
    """What `PoolingCore` is made of."""

    spec: PoolingSpec
    config: ResolvedConfig
    model: PoolingModel
    measurements: Measurements


def load_pooling(config: EngineConfig, start_up: StartUp) -> LoadedPooling:
    """Load the model.

    Raises:
        ConfigurationError: a setting is wrong (`ModelUnusable`: the model's files are).
        OutOfMemory: the weights do not fit.
    """
    start_up.begin("reading configuration")
    check_settings(config)
    spec = read_pooling_spec(config)
    asked = replace(config, max_model_len=config.max_model_len or spec.max_length)
    settings = resolve(
        asked,
        limits_of(spec.body),
        has_cuda=torch.cuda.is_available(),
        is_fast_in_bfloat16=is_fast_in_bfloat16,
    )
    at_start = read_device_memory(settings.device)
    try:
        start_up.begin("loading weights", "loading weights 0 %")
        model = load_model(PoolingModel, spec, settings, start_up.report)
        _check_positions_fit(model, settings)
        model.set_num_positions(settings.max_model_len)
        start_up.begin("warming up")
        _warm_up(model)
    except torch.OutOfMemoryError as exc:
        raise OutOfMemory(
            f"loading {config.model_dir} ran out of memory on the {settings.device} device",
            hint="Free memory, or choose a smaller model.",
        ) from exc
    measurements = Measurements(
        device=settings.device,
        device_name=torch.cuda.get_device_name() if settings.device == "cuda" else cpu_name(),
        dtype=settings.dtype,
        max_model_len=settings.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        weights_bytes=model.num_bytes,
        kv_block_size=settings.block_size,
        num_kv_blocks=0,
        kv_capacity_tokens=0,
        device_total_bytes=at_start.total_bytes,
        device_free_bytes=at_start.free_bytes,
        peak_rss_bytes=peak_rss_bytes(),
        start_up_seconds=start_up.finish(),
    )
    return LoadedPooling(spec, settings, model, measurements)


def _check_positions_fit(model: PoolingModel, settings: ResolvedConfig) -> None:
    """Refuse lengths whose tables take more than there is: no KV cache bounds them here."""
    needed, free = model.position_bytes(settings.max_model_len), free_host_bytes()
    if needed > free // 2:
        raise OutOfMemory(
            f"tables for texts of up to {settings.max_model_len} tokens take {needed / 2**30:.1f} GiB, and "
            f"{free / 2**30:.1f} GiB are free, of which they may take half",
            hint="Set --max-model-len to what your texts have.",
        )


@torch.inference_mode()
def _warm_up(model: PoolingModel) -> None:
    """Compute a text, so that the first request does not pay for lazy set-up."""
    zeros = torch.zeros(1, dtype=torch.int32, device=model.device)
    model.forward(zeros, zeros, zeros, [1])
