"""How many KV blocks there is room for.

`EngineCore` asks once, after the weights are loaded. On a CPU the size is a setting; on CUDA it is
what `gpu_memory_utilization` leaves after weights and a profiled worst step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from exo_engine.attention.cache_plan import CachePlan, fit_block_size, plan_cache
from exo_engine.attention.kv_format import KV_FORMATS
from exo_engine.config import ResolvedConfig, default_cpu_kv_cache_bytes
from exo_engine.core.block_demand import BlockDemand
from exo_engine.core.host_memory import free_host_bytes, total_host_bytes
from exo_engine.errors import ConfigurationError, OutOfMemory
from exo_engine.models.spec import DecoderSpec
from exo_engine.weight_formats import PLAIN

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """A device's memory at one moment; on a CPU torch keeps no books."""

    total_bytes: int
    free_bytes: int
    reserved_bytes: int = 0
    """Held by torch's allocator in this process."""
    allocated_bytes: int = 0
    """In tensors of this process."""

    @property
    def outside_bytes(self) -> int:
        """In use by others than torch's allocator: this process's context, other processes."""
        return self.total_bytes - self.free_bytes - self.reserved_bytes


@dataclass(frozen=True, slots=True)
class KVBudget:
    """How many blocks there will be, and what that was reckoned from."""

    num_blocks: int
    available_bytes: int
    """For the cache, before it was capped or rounded to blocks."""
    activation_peak_bytes: int | None = None
    """What the largest step took; None where it was not run."""
    non_torch_bytes: int | None = None
    graph_bytes: int = 0
    """Left free for graphs that are captured later."""


def read_device_memory(device: str) -> DeviceMemory:
    """Return the memory of `cpu` or `cuda` as it stands."""
    if device == "cpu":
        return DeviceMemory(total_host_bytes(), free_host_bytes())
    free, total = torch.cuda.mem_get_info()
    return DeviceMemory(total, free, torch.cuda.memory_reserved(), torch.cuda.memory_allocated())


def cache_plan(spec: DecoderSpec, config: ResolvedConfig) -> CachePlan:
    """Return how the cache of a model is laid out under these settings."""
    kv_format = KV_FORMATS[config.kv_cache_dtype]
    return plan_cache(spec.attention_layers, config.block_size, kv_format)


def fitting_block_size(spec: DecoderSpec, config: ResolvedConfig) -> int:
    """Return the tokens per block: what is asked for, or more where a block must hold a state."""
    kv_format = KV_FORMATS[config.kv_cache_dtype]
    size = fit_block_size(spec.attention_layers, config.block_size, kv_format)
    if size != config.block_size:
        logger.info("a KV block has %d tokens, as much as one of the model's states takes", size)
    return size


def block_demand(plan: CachePlan, config: ResolvedConfig) -> BlockDemand:
    """Return how many blocks sequences take."""
    return BlockDemand(plan.reaches, plan.block_size, config.max_num_batched_tokens)


def capacity_tokens(plan: CachePlan, config: ResolvedConfig, num_blocks: int) -> int:
    """Return how many tokens of sequences of full length the cache holds."""
    if all(reach.sees_all for reach in plan.reaches):
        return num_blocks // len(plan.reaches) * plan.block_size
    each = block_demand(plan, config).most_blocks(config.max_model_len)
    return num_blocks * config.max_model_len // each


def check_weights_fit(needed: int, config: ResolvedConfig) -> None:
    """Refuse, before anything is allocated, weights that the device has no room for.

    Args:
        needed: bytes of all layers' weights, as each rank will hold them.
        config: the settings.

    Raises:
        OutOfMemory: with what is needed and what is free.
    """
    free = torch.cuda.mem_get_info()[0] if config.device == "cuda" else free_host_bytes()
    needed *= config.tensor_parallel_size
    if needed > free:
        smaller = " or --dtype bfloat16" if config.dtype == "float32" else ""
        if config.weight_format == PLAIN:
            smaller += " or --quantization int8"
        raise OutOfMemory(
            f"loading the weights of {config.model_dir} in {config.dtype} takes "
            f"{_size(needed)}, but only {_size(free)} are free on the {config.device} device",
            hint=f"Free memory, or use a smaller model{smaller}.",
        )


def check_asked_cache(spec: DecoderSpec, config: ResolvedConfig, *, was_length_asked: bool) -> None:
    """Refuse, before anything is loaded, a cache that was asked for too small for one sequence.

    Args:
        spec: the model.
        config: the settings.
        was_length_asked: whether `max_model_len` was set by the user; else a cache for one token is enough.

    Raises:
        ConfigurationError: with the least that is enough.
    """
    plan = cache_plan(spec, config)
    demand = block_demand(plan, config)
    size, given = plan.block_bytes * config.tensor_parallel_size, config.num_gpu_blocks_override
    param, each = "num-gpu-blocks-override", 1
    if given is None:
        param, each, given = "kv-cache-memory-bytes", size, config.kv_cache_bytes
    blocks = demand.most_blocks(config.max_model_len if was_length_asked else 1)
    if given is None or given // each >= blocks:
        return
    what = f"a block of {config.block_size} tokens"
    what += "" if blocks == 1 else f" in each of {blocks} groups of layers"
    shorter = ""
    if was_length_asked:
        what = f"one sequence of --max-model-len {config.max_model_len} tokens"
        if capacity := demand.longest(given // each):
            shorter = f", or use --max-model-len {capacity} or less"
    needed = f"{blocks} KV blocks" if each == 1 else f"{blocks * size} bytes of KV cache"
    raise ConfigurationError(
        f"--{param} is {given}, but {what} needs {needed}",
        param=param,
        hint=f"Give --{param} {blocks * each} or more, or leave it out{shorter}.",
    )


def choose_num_blocks(
    spec: DecoderSpec, config: ResolvedConfig, profile: Callable[[], Callable[[], int]]
) -> KVBudget:
    """Decide how many KV blocks to allocate.

    Args:
        spec: the model.
        config: its settings.
        profile: runs the largest step, so that its peak memory can be read (CUDA only), and returns what then tells
            the bytes of graphs.

    Raises:
        OutOfMemory: not even one block fits.
    """
    plan = cache_plan(spec, config)
    size = plan.block_bytes * config.tensor_parallel_size
    most = config.max_num_seqs * block_demand(plan, config).most_blocks(config.max_model_len)
    cuda = None
    if config.num_gpu_blocks_override is not None:
        budget, source = config.num_gpu_blocks_override * size, "--num-gpu-blocks-override"
        most = config.num_gpu_blocks_override
    elif config.kv_cache_bytes is not None:
        budget, source = config.kv_cache_bytes, "the KV cache size asked for"
    elif config.device == "cpu":
        budget, source = default_cpu_kv_cache_bytes(free_host_bytes()), "the default KV cache size"
    else:
        cuda = _profile(config, profile)
        budget, source = cuda.available_bytes, "what --gpu-memory-utilization leaves"
    num_blocks = min(budget // size, most)
    if num_blocks < 1:
        raise OutOfMemory(
            f"{source} is {_size(max(budget, 0))}, but one KV block of {config.block_size} tokens "
            f"takes {_size(size)}",
            hint="Raise --gpu-memory-utilization, or use a smaller model or --dtype."
            if config.device == "cuda"
            else "Raise the KV cache size, or use a smaller model.",
        )
    free = free_host_bytes()
    if config.device == "cpu" and num_blocks * size > free:
        raise OutOfMemory(
            f"{source} is {_size(num_blocks * size)}, but only {_size(free)} of memory are free",
            hint=f"Ask for a KV cache of {free // 2**20} MiB or less, or free memory.",
        )
    return replace(cuda or KVBudget(0, budget), num_blocks=num_blocks)


def fit_model_len(
    spec: DecoderSpec, config: ResolvedConfig, num_blocks: int, *, was_asked: bool
) -> int:
    """Return the longest sequence that the cache can hold, at most `max_model_len`.

    Args:
        spec: the model.
        config: the settings.
        num_blocks: blocks in the cache.
        was_asked: whether `max_model_len` was set by the user, rather than by the model.

    Raises:
        OutOfMemory: the user asked for more than the cache can hold.
    """
    demand = block_demand(cache_plan(spec, config), config)
    capacity = demand.longest(num_blocks)
    if config.max_model_len <= capacity:
        return config.max_model_len
    if was_asked:
        raise OutOfMemory(
            f"one sequence of --max-model-len {config.max_model_len} tokens needs "
            f"{demand.most_blocks(config.max_model_len)} KV blocks, but there is room for {num_blocks} "
            f"({capacity} tokens)",
            hint=f"Use --max-model-len {capacity} or less, or give the KV cache more memory.",
        )
    logger.warning(
        "the KV cache holds %d tokens, so that is the longest sequence, not the model's %d",
        capacity,
        config.max_model_len,
    )
    return capacity


def fit_positions(
    bytes_each: int, spec: DecoderSpec, config: ResolvedConfig, num_blocks: int, *, was_asked: bool
) -> int:
    """Return the longest sequence for whose positions the host has room, at most `max_model_len`.

    Windows bound what a sequence takes of the cache, but not these tables.

    Args:
        bytes_each: of a position, while the tables are made; half of it stays.
        spec: the model.
        config: the settings.
        num_blocks: blocks that the cache will have.
        was_asked: whether `max_model_len` was set by the user, rather than by the model.

    Raises:
        OutOfMemory: the user asked for more, or there is no room at all.
    """
    free, cache = free_host_bytes(), 0
    if config.device == "cpu":
        cache = num_blocks * cache_plan(spec, config).block_bytes * config.tensor_parallel_size
    most = max(0, min(free // 2, 2 * (free - cache)))
    longest = most // max(1, bytes_each * config.tensor_parallel_size)
    if config.max_model_len <= longest:
        return config.max_model_len
    needed = config.max_model_len * bytes_each * config.tensor_parallel_size
    if was_asked or longest < 1:
        name = "--max-model-len" if was_asked else "the model's max_position_embeddings of"
        raise OutOfMemory(
            f"tables for {name} {config.max_model_len} tokens take {_size(needed)}, and {_size(free)} are free, "
            f"of which they may take {_size(most)}",
            hint=f"Use --max-model-len {longest} or less, or free memory."
            if longest
            else "Free memory, or make the KV cache smaller.",
        )
    logger.warning(
        "tables of positions may take %s, so %d tokens are the longest sequence, not the model's %d "
        "(max_position_embeddings), whose tables take %s",
        _size(most),
        longest,
        config.max_model_len,
        _size(needed),
    )
    return longest


def cuda_budget(
    utilization: float,
    before: DeviceMemory,
    peak_bytes: int,
    after: DeviceMemory,
    graph_bytes: int = 0,
) -> KVBudget:
    """Return what is left for the KV cache of the share of a GPU that may be used.

    Args:
        utilization: that share.
        before: the device's memory before the largest step, with the weights in it.
        peak_bytes: most that this process had in tensors during that step.
        after: the device's memory after it, with nothing cached by the allocator.
        graph_bytes: what graphs will take.
    """
    # What this process holds outside torch, and what other processes hold.
    elsewhere = after.outside_bytes
    return KVBudget(
        num_blocks=0,
        available_bytes=int(after.total_bytes * utilization) - peak_bytes - elsewhere - graph_bytes,
        activation_peak_bytes=peak_bytes - before.allocated_bytes,
        non_torch_bytes=elsewhere,
        graph_bytes=graph_bytes,
    )


def _profile(config: ResolvedConfig, profile: Callable[[], Callable[[], int]]) -> KVBudget:
    """Run the largest step on the GPU and reckon what it leaves."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = read_device_memory("cuda")
    rehearse_graphs = profile()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated()
    torch.cuda.empty_cache()
    after = read_device_memory("cuda")
    graphs = rehearse_graphs()
    budget = cuda_budget(config.gpu_memory_utilization, before, peak, after, graphs)
    logger.info(
        "of %s, %s are used by weights and the largest step, %s elsewhere, %s by graphs; %s for the KV cache",
        _size(before.total_bytes),
        _size(peak),
        _size(budget.non_torch_bytes or 0),
        _size(budget.graph_bytes),
        _size(max(budget.available_bytes, 0)),
    )
    return budget


def _size(num_bytes: int) -> str:
    if num_bytes < 2**20:
        return f"{num_bytes} bytes" if num_bytes != 1 else "1 byte"
    if num_bytes < 2**30 // 10:
        return f"{num_bytes / 2**20:.1f} MiB"
    return f"{num_bytes / 2**30:.1f} GiB"
