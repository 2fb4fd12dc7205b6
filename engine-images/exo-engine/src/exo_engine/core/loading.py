"""From a configuration to a core that can compute: weights, KV cache, runner, and what was measured.

`EngineCore` calls `load` once; a simulation puts its own parts together (`exo_engine.simulation`)
from some of the same functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NoReturn, TypeVar

import torch

from exo_engine.attention import create_backend
from exo_engine.attention.base import AttentionBackend
from exo_engine.attention.kv_cache import KVCache
from exo_engine.attention.kv_format import KV_FORMATS
from exo_engine.attention.layer import Reach
from exo_engine.config import EngineConfig, ResolvedConfig, resolve
from exo_engine.core import host_memory
from exo_engine.core.block_manager import BlockManager
from exo_engine.core.executor import DirectExecutor, Executor, StepRunner, ThreadExecutor
from exo_engine.core.host_memory import is_metered
from exo_engine.core.measurements import Measurements, cpu_name, peak_rss_bytes
from exo_engine.core.memory import (
    DeviceMemory,
    KVBudget,
    block_demand,
    cache_plan,
    capacity_tokens,
    check_asked_cache,
    check_weights_fit,
    choose_num_blocks,
    fit_model_len,
    fit_positions,
    fitting_block_size,
    read_device_memory,
)
from exo_engine.core.request import EngineRequest
from exo_engine.core.runner import ModelRunner
from exo_engine.core.scheduling.scheduler import Scheduler
from exo_engine.core.scheduling.step_times import StepTimes
from exo_engine.core.scheduling.token_budget import SchedulerLimits
from exo_engine.core.start_up import StartUp
from exo_engine.errors import ConfigurationError, OutOfMemory
from exo_engine.flags import MAX_CPU_THREADS
from exo_engine.kernels import compilations
from exo_engine.kernels.library import kernels_for
from exo_engine.kernels.processor import is_fast_in_bfloat16
from exo_engine.models.by_pytorch import parts_by_pytorch
from exo_engine.models.config_file import limits_of, read_spec
from exo_engine.models.decoder import Decoder
from exo_engine.models.spec import DecoderSpec
from exo_engine.models.weights import Model, Spec, check_checkpoint, load_weights
from exo_engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from exo_engine.core.ranks.group import RankGroup

AnyModel = TypeVar("AnyModel", bound=Model)

_AWAKE_US, _AWAKE_METERED_US = 1000, 40
"""For how long the kernels' threads wait for the next call: from one step to the next, or within a step only."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class LoadedCore:
    """What `EngineCore` is made of."""

    spec: DecoderSpec
    config: ResolvedConfig
    executor: Executor
    num_blocks: int
    measurements: Measurements
    reaches: tuple[Reach, ...]
    """Of the cache's groups."""
    max_scored_tokens: int | None = None
    """Longest prompt whose own log-probabilities can be computed; None: any."""


def load(config: EngineConfig, start_up: StartUp, group: RankGroup | None = None) -> LoadedCore:
    """Load the model, or this rank's part of it, and make room for its cache.

    Raises:
        ConfigurationError: a setting is wrong (`ModelUnusable`: the model's files are).
        OutOfMemory: weights or cache do not fit.
    """
    start_up.begin("reading configuration")
    spec = read_spec(config.model_dir).shared_by(config.tensor_parallel_size)
    settings = resolve(
        config,
        limits_of(spec),
        has_cuda=torch.cuda.is_available(),
        is_fast_in_bfloat16=is_fast_in_bfloat16,
    )
    settings = replace(settings, block_size=fitting_block_size(spec, settings))
    try:
        return _load_on_device(
            spec, settings, start_up, group, was_length_asked=config.max_model_len is not None
        )
    except torch.OutOfMemoryError as exc:
        raise OutOfMemory(
            f"loading {config.model_dir} ran out of memory on the {settings.device} device",
            hint="Lower --gpu-memory-utilization or --max-num-batched-tokens, or free memory.",
        ) from exc


def _load_on_device(
    spec: DecoderSpec,
    settings: ResolvedConfig,
    start_up: StartUp,
    group: RankGroup | None,
    *,
    was_length_asked: bool,
) -> LoadedCore:
    check_asked_cache(spec, settings, was_length_asked=was_length_asked)
    at_start = read_device_memory(settings.device)
    if settings.device == "cpu" and (
        settings.batch_invariant or settings.attention_backend == "cpu"
    ):
        # Refused before the weights are read, which may take minutes.
        dtype, form = DTYPES[settings.dtype], settings.weight_format
        if settings.batch_invariant and (names := parts_by_pytorch(spec, dtype, form)):
            _refuse_batch_invariant(f"PyTorch computes {names} on a CPU")
        attention = _attention_alone(spec, settings)
        if settings.batch_invariant:
            _check_batch_invariant(attention, settings)
    compilations.OWN.begin_start()
    if settings.device == "cuda":
        compilations.OWN.watch()
    start_up.begin("loading weights", "loading weights 0 %")
    decoder = load_decoder(spec, settings, start_up.report, group)
    start_up.begin("sizing KV cache")
    budget = choose_num_blocks(spec, settings, lambda: _run_largest_step(decoder, settings))
    num_blocks = budget.num_blocks if group is None else group.least(budget.num_blocks)
    max_model_len = fit_model_len(spec, settings, num_blocks, was_asked=was_length_asked)
    config = replace(settings, max_model_len=max_model_len)
    bytes_each = decoder.position_bytes(1)
    max_model_len = fit_positions(bytes_each, spec, config, num_blocks, was_asked=was_length_asked)
    max_model_len = max_model_len if group is None else group.least(max_model_len)
    config = replace(config, max_model_len=max_model_len)
    decoder.set_num_positions(max_model_len)
    start_up.begin("allocating KV blocks", f"allocating {num_blocks} KV blocks")
    runner = make_runner(decoder, config, num_blocks, group)
    if config.batch_invariant:
        _check_batch_invariant(runner.attention, config)
        _check_layers_batch_invariant(decoder, runner.attention)
    start_up.begin("warming up")
    warm_up(runner, spec, config, num_blocks)
    if compilations.OWN.is_watched:  # by a device whose kernels are compiled
        runner.compile_ahead(config.max_num_batched_tokens, max_model_len)
    if runner.can_capture_graphs and not config.enforce_eager:
        start_up.begin("capturing graphs")
        runner.capture_graphs(max_model_len)
    compilations.OWN.begin_serving()
    budget = replace(budget, num_blocks=num_blocks)
    measurements = _measure(decoder, config, budget, at_start, start_up, runner.graph_bytes)
    executor, reaches = make_executor(runner, config), cache_plan(spec, config).reaches
    return LoadedCore(spec, config, executor, num_blocks, measurements, reaches)


def load_decoder(
    spec: DecoderSpec,
    settings: ResolvedConfig,
    progress: Callable[[str], None],
    group: RankGroup | None = None,
) -> Decoder:
    """Load a model that generates, or of several ranks this one's part; see `load_model`."""
    make = partial(Decoder, ranks=group, is_fixed=has_fixed_sums(settings))
    return load_model(make, spec, settings, progress)


def _check_batch_invariant(attention: AttentionBackend, settings: ResolvedConfig) -> None:
    """Refuse `--batch-invariant` where attention to a token depends on what runs beside it.

    Raises:
        ConfigurationError: it does.
    """
    if attention.is_batch_invariant:
        return
    needed = "on a GPU it needs the Triton backend"
    if settings.device == "cpu":
        needed = (
            "it needs the compiled CPU kernels, bfloat16, heads and blocks of multiples of 16, and a KV cache "
            "in bfloat16 or int8"
        )
    _refuse_batch_invariant(f"attention is computed by PyTorch; {needed}")


def _check_layers_batch_invariant(decoder: Decoder, attention: AttentionBackend) -> None:
    """Refuse it where a layer's sums do, of which the last is known once the layers are made.

    Raises:
        ConfigurationError: they do.
    """
    if attention.can_be_captured:  # a GPU's
        if names := decoder.why_not_fixed:
            _refuse_batch_invariant(f"no kernels with one order of sums for {names}")
    elif not decoder.is_computed_by_kernels:
        _refuse_batch_invariant("some layers of this model are computed by PyTorch")


def _refuse_batch_invariant(reason: str) -> NoReturn:
    raise ConfigurationError(
        f"--batch-invariant cannot be kept: {reason}",
        param="batch-invariant",
        hint="Leave --batch-invariant out, or what the reason names.",
    )


def _attention_alone(spec: DecoderSpec, settings: ResolvedConfig) -> AttentionBackend:
    """Return what will compute attention on a CPU, over a cache that takes no memory."""
    layers, plan = spec.attention_layers, cache_plan(spec, settings)
    form, dtype = KV_FORMATS[settings.kv_cache_dtype], DTYPES[settings.dtype]
    cache = KVCache(layers, plan, form, 1, dtype=dtype, device=torch.device(settings.device))
    fixed = has_fixed_sums(settings)
    return create_backend(settings.attention_backend, layers, cache, is_fixed=fixed)


def has_fixed_sums(settings: ResolvedConfig) -> bool:
    """Whether kernels are to be chosen by `--batch-invariant`; those for a CPU keep bits anyway."""
    is_gpu = settings.device == "cuda" or settings.attention_backend == "triton"
    return settings.batch_invariant and is_gpu


def load_model(
    make: Callable[..., AnyModel],
    spec: Spec,
    settings: ResolvedConfig,
    progress: Callable[[str], None],
) -> AnyModel:
    """Load the weights.

    Args:
        make: makes the model of its spec.
        spec: the model.
        settings: where and in which number format.
        progress: told how much of them is loaded.

    Raises:
        ModelUnusable: the files are not those of the model.
        OutOfMemory: there is no room for them.
    """
    torch.set_num_threads(threads_of_rank(settings))
    # In any number format, as they choose tokens, too.
    if (kernels := kernels_for(torch.bfloat16, torch.device(settings.device))) is not None:
        kernels.set_num_threads(torch.get_num_threads())
        kernels.wait_awake(_AWAKE_METERED_US if is_metered() else _AWAKE_US)
    entries = check_checkpoint(settings.model_dir, spec, settings.weight_format, make)
    on = partial(make, spec, dtype=DTYPES[settings.dtype], weight_format=settings.weight_format)
    check_weights_fit(on(device=torch.device("meta")).num_bytes, settings)
    model = on(device=torch.device(settings.device))
    with torch.inference_mode():
        load_weights(model, entries, progress)
    return model


def threads_of_rank(settings: ResolvedConfig) -> int:
    """Return how many threads compute in each rank.

    As many as were asked for, or torch's own choice within what the control groups allow: more would be
    stopped for a part of each 100 ms, and the others wait for them.
    """
    if settings.num_threads is not None:
        return settings.num_threads
    cores = min(torch.get_num_threads(), host_memory.usable_cores())
    return max(1, min(cores // settings.tensor_parallel_size, MAX_CPU_THREADS))


def make_scheduler(
    spec: DecoderSpec,
    config: ResolvedConfig,
    num_blocks: int,
    reaches: Sequence[Reach] | None = None,
    times: StepTimes | None = None,
) -> Scheduler:
    """Return an empty scheduler over so many blocks, of the model's cache groups or of others."""
    limits = SchedulerLimits(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=config.max_model_len,
        policy=config.scheduling_policy,
        enable_chunked_prefill=config.enable_chunked_prefill,
        long_prefill_tokens=config.long_prefill_tokens,
        max_partial_prefills=config.max_partial_prefills,
        max_long_partial_prefills=config.max_long_partial_prefills,
        seed=config.seed,
        eos_token_ids=frozenset(spec.eos_token_ids),
    )
    blocks = BlockManager(
        num_blocks,
        config.block_size,
        enable_prefix_caching=config.enable_prefix_caching,
        reaches=cache_plan(spec, config).reaches if reaches is None else reaches,
    )
    return Scheduler(limits, blocks, times)


def make_runner(
    decoder: Decoder, config: ResolvedConfig, num_blocks: int, group: RankGroup | None = None
) -> ModelRunner:
    """Allocate the cache and return a runner over it."""
    cache = KVCache(
        decoder.spec.attention_layers,
        cache_plan(decoder.spec, config),
        KV_FORMATS[config.kv_cache_dtype],
        num_blocks,
        dtype=decoder.dtype,
        device=decoder.device,
    )
    return ModelRunner(
        decoder,
        cache,
        attention_backend=config.attention_backend,
        eos_token_ids=decoder.spec.eos_token_ids,
        num_slots=config.max_num_seqs,
        is_fixed=has_fixed_sums(config),
        agree=None if group is None else group.from_first,
    )


def make_executor(runner: StepRunner, config: ResolvedConfig) -> Executor:
    """Return what runs steps; a CPU that is scheduled ahead of needs a thread of its own."""
    if config.async_scheduling and config.device == "cpu":
        return ThreadExecutor(runner)
    return DirectExecutor(runner)


def warm_up(runner: StepRunner, spec: DecoderSpec, config: ResolvedConfig, num_blocks: int) -> None:
    """Run a prompt and a token, so that the first request does not pay for lazy set-up."""
    length = min(8, config.max_model_len - 2)
    if length < 1:
        return
    # A scheduler of its own: neither its blocks nor its counts should be seen.
    scheduler = make_scheduler(spec, config, num_blocks)
    params = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
    scheduler.add(EngineRequest("warm-up", (0,) * length, params))
    while scheduler.has_unfinished():
        step = scheduler.schedule()
        assert step.frame is not None, "it runs alone"
        scheduler.update(step, runner.dispatch(step.frame)())


def _run_largest_step(decoder: Decoder, config: ResolvedConfig) -> Callable[[], int]:
    """Compute a step that fills the token budget and samples for as many sequences as may run.

    Returns:
        What tells how many bytes graphs will take.
    """
    num_seqs = min(config.max_num_seqs, config.max_num_batched_tokens)
    length = min(config.max_num_batched_tokens // num_seqs, config.max_model_len - 1)
    demand = block_demand(cache_plan(decoder.spec, config), config)
    blocks_each = demand.most_blocks(length + 1)
    decoder.set_num_positions(length + 1)
    scheduler = make_scheduler(decoder.spec, config, num_seqs * blocks_each)
    runner = make_runner(decoder, config, num_seqs * blocks_each)
    params = SamplingParams(temperature=1.0, top_p=0.9, max_tokens=1)
    for index in range(num_seqs):
        prompt = (index % decoder.spec.vocab_size,) + (0,) * (length - 1)
        scheduler.add(EngineRequest(str(index), prompt, params))
    frame = scheduler.schedule().frame
    assert frame is not None, "the requests fit"
    runner.dispatch(frame)()
    runner.take_scratch()
    if config.enforce_eager or not runner.can_capture_graphs:
        return lambda: 0
    return partial(runner.rehearse_graphs, config.max_model_len)


def _measure(
    decoder: Decoder,
    config: ResolvedConfig,
    budget: KVBudget,
    at_start: DeviceMemory,
    start_up: StartUp,
    graph_bytes: int,
) -> Measurements:
    is_cuda = config.device == "cuda"
    plan = cache_plan(decoder.spec, config)
    return Measurements(
        device=config.device,
        device_name=torch.cuda.get_device_name() if is_cuda else cpu_name(),
        dtype=config.dtype,
        max_model_len=config.max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        weights_bytes=decoder.num_bytes,
        activation_peak_bytes=budget.activation_peak_bytes,
        non_torch_bytes=budget.non_torch_bytes,
        cuda_graph_bytes=graph_bytes,
        available_kv_bytes=budget.available_bytes,
        kv_bytes_per_token=plan.block_bytes * len(plan.groups) // plan.block_size,
        kv_block_size=config.block_size,
        kv_block_bytes=plan.block_bytes,
        num_kv_blocks=budget.num_blocks,
        kv_capacity_tokens=capacity_tokens(plan, config, budget.num_blocks),
        device_total_bytes=at_start.total_bytes,
        device_free_bytes=at_start.free_bytes,
        peak_rss_bytes=peak_rss_bytes(),
        start_up_seconds=start_up.finish(),
    )
