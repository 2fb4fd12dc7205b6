"""Everything the engine core needs to know, in one frozen object, and how "auto" is settled.

The server's command line, `LLM` and tests build an `EngineConfig`; `resolve()` turns it, with what
the model and the machine are, into a `ResolvedConfig` in which nothing is "auto" any more but the
attention backend, which the layers choose (`attention.create_backend`). Both are pure: no file, device
or environment variable is read here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from exo_engine.attention import BACKENDS
from exo_engine.attention.kv_format import KV_FORMATS
from exo_engine.errors import ConfigurationError
from exo_engine.flags import MAX_CPU_THREADS, MAX_NUM_SEQS
from exo_engine.simulation.file import Simulation
from exo_engine.weight_formats import PLAIN, formats_made_at_load

DType = Literal["float32", "bfloat16", "float16"]
SchedulingPolicy = Literal["fcfs", "priority"]

DTYPE_CHOICES = ("auto", "float32", "bfloat16", "float16", "float", "half")
DEVICE_CHOICES = ("auto", "cpu", "cuda")
POLICY_CHOICES = ("fcfs", "priority")
RUNNER_CHOICES = ("auto", "generate", "pooling")
CONVERT_CHOICES = ("auto", "none", "embed", "classify")
EXECUTOR_CHOICES = ("uni", "mp")
KV_CACHE_DTYPE_CHOICES = ("auto", *KV_FORMATS, "fp8")
_KV_CACHE_DTYPE_ALIASES = {"fp8": "fp8_e4m3"}
_DTYPE_ALIASES = {"float": "float32", "half": "float16"}

_CPU_MAX_NUM_SEQS = 64
_CPU_MAX_NUM_BATCHED_TOKENS = 1024
_CPU_KV_CACHE_BYTES = 2**30
_CUDA_MAX_NUM_SEQS = 256
_CUDA_MAX_NUM_BATCHED_TOKENS = 8192


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What the user asked for; names and meanings are vLLM's flags where there is one."""

    model_dir: Path
    """Directory with config.json and the safetensors files."""
    dtype: str = "auto"
    """Of weights and activations. auto: the checkpoint's own. On a CPU: bfloat16 where that is fast, by the
    processor or by compiled kernels, and the checkpoint is in it or linear layers are quantized; else float32."""
    quantization: str | None = None
    """Format that linear layers are converted to while they are loaded; None: as the checkpoint is."""
    device: str = "auto"
    """auto: the first CUDA device that torch finds, else the CPU."""
    block_size: int = 16
    """Tokens per KV block. Larger blocks cost memory at the end of each sequence."""
    num_gpu_blocks_override: int | None = None
    """Exactly this many KV blocks, on whatever device; None: from the memory there is."""
    gpu_memory_utilization: float = 0.9
    """On CUDA, the fraction of the device's memory for weights, activations and KV cache."""
    kv_cache_bytes: int | None = None
    """KV cache size in bytes, on either device; None: on a CPU 1 GiB or half of what is free if that
    is less (never more than all sequences could use); on CUDA by `gpu_memory_utilization`."""
    max_model_len: int | None = None
    """Longest prompt plus output in tokens; None: what config.json allows and the cache can hold."""
    max_num_seqs: int | None = None
    """Most sequences in one step; None: 64 on a CPU, 256 on CUDA, at most the token budget."""
    max_num_batched_tokens: int | None = None
    """Most tokens of one step; None: 1024 on a CPU, 8192 on CUDA (and at least max_num_seqs).
    Longer prompts are computed in chunks. On a CPU a step beside answers in progress has fewer: as
    many as measured times allow."""
    seed: int = 0
    """For requests without a seed of their own, together with their id."""
    enable_prefix_caching: bool = True
    """Keep finished blocks and reuse them for prompts that begin the same."""
    enable_chunked_prefill: bool = True
    """Let one prompt span several steps. Off: a prompt must fit into one step's budget."""
    long_prefill_tokens: int | None = None
    """Most tokens of one prompt in a step; None: as many as the step's budget leaves."""
    max_partial_prefills: int | None = None
    """Most prompts of which a part is computed at a time; None: as many as the budget allows."""
    max_long_partial_prefills: int | None = None
    """Of those, how many may be longer than `long_prefill_tokens`; shorter ones pass them."""
    enforce_eager: bool = False
    """Run operations one by one: no step is captured and repeated, on CUDA either."""
    async_scheduling: bool | None = None
    """Schedule the next step while one is computed; None: on CUDA, not on a CPU."""
    batch_invariant: bool = False
    """Refuse to start unless a request has the same bits alone, in any batch, chunked, preempted and
    on what the prefix cache kept."""
    scheduling_policy: str = "fcfs"
    """fcfs: by arrival. priority: by the requests' priority (lower first), then arrival."""
    max_logprobs: int = 20
    """Most log-probabilities a request may ask for per token."""
    attention_backend: str = "auto"
    """auto: the fastest that can serve the model on this device; or a name of `attention.BACKENDS`."""
    kv_cache_dtype: str = "auto"
    """Of the KV cache. auto: that of the activations. fp8_e4m3 and int8 store a scale per token and
    head, and halve the cache of 16-bit models or better."""
    executor_backend: str = "uni"
    """uni: steps are computed in the engine's own process. mp: in another one."""
    tensor_parallel_size: int = 1
    """Ranks that share each layer, on a CPU only; each is a process of its own."""
    runner: str = "auto"
    """generate: text. pooling: vectors or scores. auto: as the model's files say."""
    convert: str = "auto"
    """embed, classify: what a model that pools is for; auto and none: as its architecture says."""
    pooler: Mapping[str, Any] | None = None
    """How a text's states become its vector: keys of vLLM's --pooler-config, which win over files."""
    num_threads: int | None = None
    """Threads for CPU kernels, of each rank; None: torch's own choice
    (OMP_NUM_THREADS, cores), at most the cores that control groups leave, shared among ranks."""
    simulation: Simulation | None = None
    """Behave as this deployment would; its figures win over the settings above."""


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What `resolve()` needs of a model's config.json."""

    max_position_embeddings: int
    checkpoint_dtype: DType | None
    checkpoint_format: str = PLAIN
    """How its linear layers are stored, a name of `weight_formats`."""


@dataclass(frozen=True, slots=True)
class ResolvedConfig:
    """An `EngineConfig` in which every choice is made."""

    model_dir: Path
    dtype: DType
    weight_format: str
    """Of linear layers, a name of `weight_formats`."""
    device: Literal["cpu", "cuda"]
    block_size: int
    num_gpu_blocks_override: int | None
    gpu_memory_utilization: float
    kv_cache_bytes: int | None
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    seed: int
    enable_prefix_caching: bool
    enable_chunked_prefill: bool
    long_prefill_tokens: int | None
    max_partial_prefills: int | None
    max_long_partial_prefills: int | None
    enforce_eager: bool
    async_scheduling: bool
    batch_invariant: bool
    scheduling_policy: SchedulingPolicy
    max_logprobs: int
    attention_backend: str
    kv_cache_dtype: str
    """A name of `attention.kv_format.KV_FORMATS`."""
    num_threads: int | None
    tensor_parallel_size: int = 1


def resolve(
    config: EngineConfig,
    limits: ModelLimits,
    *,
    has_cuda: bool,
    is_fast_in_bfloat16: Callable[[], bool] = lambda: False,
) -> ResolvedConfig:
    """Settle every "auto" and refuse what contradicts itself.

    Args:
        config: what the user asked for.
        limits: what the model allows.
        has_cuda: whether torch sees a CUDA device.
        is_fast_in_bfloat16: tells whether the CPU is, by itself or by compiled kernels; asked only where it matters.

    Raises:
        ConfigurationError: a value is out of range, or asks for what is not there.
    """
    _check_ranges(config)
    device = _resolve_device(config.device, has_cuda=has_cuda)
    _check_ranks(config, device)
    _check_backend(config, device)
    max_model_len = _resolve_max_model_len(config.max_model_len, limits)
    max_num_seqs, budget = _resolve_step_size(config, device, max_model_len)
    dtype = _resolve_dtype(config, limits, device, is_fast_in_bfloat16=is_fast_in_bfloat16)
    return ResolvedConfig(
        model_dir=config.model_dir,
        dtype=dtype,
        weight_format=_resolve_weight_format(config.quantization, limits),
        device=device,
        block_size=config.block_size,
        num_gpu_blocks_override=config.num_gpu_blocks_override,
        gpu_memory_utilization=config.gpu_memory_utilization,
        kv_cache_bytes=config.kv_cache_bytes,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        seed=config.seed,
        enable_prefix_caching=config.enable_prefix_caching,
        enable_chunked_prefill=config.enable_chunked_prefill,
        long_prefill_tokens=config.long_prefill_tokens,
        max_partial_prefills=config.max_partial_prefills,
        max_long_partial_prefills=config.max_long_partial_prefills,
        enforce_eager=config.enforce_eager,
        async_scheduling=device == "cuda"
        if config.async_scheduling is None
        else config.async_scheduling,
        batch_invariant=config.batch_invariant,
        scheduling_policy="priority" if config.scheduling_policy == "priority" else "fcfs",
        max_logprobs=config.max_logprobs,
        attention_backend=config.attention_backend,
        kv_cache_dtype=_KV_CACHE_DTYPE_ALIASES.get(config.kv_cache_dtype, config.kv_cache_dtype)
        if config.kv_cache_dtype != "auto"
        else dtype,
        num_threads=config.num_threads,
        tensor_parallel_size=config.tensor_parallel_size,
    )


def default_cpu_kv_cache_bytes(free_bytes: int) -> int:
    """Return the KV cache size on a CPU when nobody set one: 1 GiB, or half of what is free."""
    return min(_CPU_KV_CACHE_BYTES, free_bytes // 2)


def _check_ranges(config: EngineConfig) -> None:
    for param, value in (
        ("block-size", config.block_size),
        ("num-gpu-blocks-override", config.num_gpu_blocks_override),
        ("kv-cache-memory-bytes", config.kv_cache_bytes),
        ("max-model-len", config.max_model_len),
        ("max-num-seqs", config.max_num_seqs),
        ("max-num-batched-tokens", config.max_num_batched_tokens),
        ("cpu-threads", config.num_threads),
        ("tensor-parallel-size", config.tensor_parallel_size),
        ("long-prefill-token-threshold", config.long_prefill_tokens),
        ("max-num-partial-prefills", config.max_partial_prefills),
        ("max-long-partial-prefills", config.max_long_partial_prefills),
    ):
        if value is not None and value < 1:
            raise ConfigurationError(f"--{param} must be 1 or more, got {value}", param=param)
    if config.num_threads is not None and config.num_threads > MAX_CPU_THREADS:
        raise ConfigurationError(
            f"--cpu-threads must be {MAX_CPU_THREADS} or less, got {config.num_threads}",
            param="cpu-threads",
            hint="Leave it out for a thread per core; more than cores make every step slower.",
        )
    if config.max_num_seqs is not None and config.max_num_seqs > MAX_NUM_SEQS:
        raise ConfigurationError(
            f"--max-num-seqs must be {MAX_NUM_SEQS} or less, got {config.max_num_seqs}",
            param="max-num-seqs",
        )
    _check_partial_prefills(config)
    if not 0.0 < config.gpu_memory_utilization <= 1.0:
        raise ConfigurationError(
            f"--gpu-memory-utilization must be in (0, 1], got {config.gpu_memory_utilization}",
            param="gpu-memory-utilization",
        )
    if config.max_logprobs < 0:
        raise ConfigurationError(
            f"--max-logprobs must be 0 or more, got {config.max_logprobs}", param="max-logprobs"
        )
    for param, word, choices in (
        ("dtype", config.dtype, DTYPE_CHOICES),
        ("device", config.device, DEVICE_CHOICES),
        ("scheduling-policy", config.scheduling_policy, POLICY_CHOICES),
        ("distributed-executor-backend", config.executor_backend, EXECUTOR_CHOICES),
        ("kv-cache-dtype", config.kv_cache_dtype, KV_CACHE_DTYPE_CHOICES),
        ("attention-backend", config.attention_backend, ("auto", *BACKENDS)),
        ("runner", config.runner, RUNNER_CHOICES),
        ("convert", config.convert, CONVERT_CHOICES),
    ):
        if word not in choices:
            raise ConfigurationError(
                f"--{param} must be one of {', '.join(choices)}, got {word!r}", param=param
            )


def _check_ranks(config: EngineConfig, device: str) -> None:
    num_ranks = config.tensor_parallel_size
    if num_ranks == 1:
        return
    for reason, is_so in (
        ("ranks compute on a CPU only in this version", device != "cpu"),
        ("a simulation has one rank", config.simulation is not None),
        ("the order of sums depends on the ranks", config.batch_invariant),
    ):
        if is_so:
            raise ConfigurationError(
                f"--tensor-parallel-size is {num_ranks}, but {reason}", param="tensor-parallel-size"
            )


def _check_backend(config: EngineConfig, device: str) -> None:
    if config.attention_backend == "cpu" and device != "cpu":
        raise ConfigurationError(
            f"--attention-backend is cpu, whose kernels compute on a CPU alone, but the device is {device}",
            param="attention-backend",
            hint="Leave --attention-backend out, or use --device cpu.",
        )


def _check_partial_prefills(config: EngineConfig) -> None:
    for param, value in (
        ("long-prefill-token-threshold", config.long_prefill_tokens),
        ("max-num-partial-prefills", config.max_partial_prefills),
    ):
        if value is not None and not config.enable_chunked_prefill:
            raise ConfigurationError(
                f"--{param} is about prompts in parts, but chunked prefill is off",
                param=param,
                hint=f"Leave chunked prefill on, or --{param} out.",
            )
    num_long, most = config.max_long_partial_prefills, config.max_partial_prefills
    if num_long is not None and config.long_prefill_tokens is None:
        raise ConfigurationError(
            "--max-long-partial-prefills is set, but not which prompts are long",
            param="max-long-partial-prefills",
            hint="Set --long-prefill-token-threshold as well.",
        )
    if num_long is not None and most is not None and num_long > most:
        raise ConfigurationError(
            f"--max-long-partial-prefills is {num_long}, more than --max-num-partial-prefills {most}",
            param="max-long-partial-prefills",
            hint=f"Use {most} or less.",
        )


def _resolve_device(device: str, *, has_cuda: bool) -> Literal["cpu", "cuda"]:
    if device == "cuda" and not has_cuda:
        raise ConfigurationError(
            "--device is cuda, but torch finds no CUDA device",
            param="device",
            hint="Use --device cpu, or install a driver and a CUDA build of torch.",
        )
    return "cpu" if device == "cpu" or not has_cuda else "cuda"


def _resolve_step_size(config: EngineConfig, device: str, max_model_len: int) -> tuple[int, int]:
    """Return how many sequences and how many tokens one step may have."""
    is_cpu = device == "cpu"
    num_seqs, budget = config.max_num_seqs, config.max_num_batched_tokens
    default_num_seqs = _CPU_MAX_NUM_SEQS if is_cpu else _CUDA_MAX_NUM_SEQS
    if budget is None:
        num_seqs = num_seqs or default_num_seqs
        default = _CPU_MAX_NUM_BATCHED_TOKENS if is_cpu else _CUDA_MAX_NUM_BATCHED_TOKENS
        whole_prompt = 0 if config.enable_chunked_prefill else max_model_len
        return num_seqs, max(default, num_seqs, whole_prompt)
    num_seqs = num_seqs or min(default_num_seqs, budget)
    if num_seqs > budget:
        raise ConfigurationError(
            f"--max-num-batched-tokens is {budget}, but --max-num-seqs is {num_seqs} and each "
            "sequence needs a token per step",
            param="max-num-batched-tokens",
            hint=f"Use --max-num-batched-tokens {num_seqs} or more, or lower --max-num-seqs.",
        )
    if not config.enable_chunked_prefill and budget < max_model_len:
        raise ConfigurationError(
            f"--max-num-batched-tokens is {budget}, but without chunked prefill it must hold a "
            f"whole prompt of up to {max_model_len} tokens",
            param="max-num-batched-tokens",
            hint="Leave chunked prefill on, or lower --max-model-len.",
        )
    return num_seqs, budget


def _resolve_dtype(
    config: EngineConfig,
    limits: ModelLimits,
    device: str,
    *,
    is_fast_in_bfloat16: Callable[[], bool],
) -> DType:
    name = _DTYPE_ALIASES.get(config.dtype, config.dtype)
    if name == "auto":
        name = limits.checkpoint_dtype or "bfloat16"
        if device == "cpu":
            # PyTorch without bf16 units is slower in 16 bits than in 32. What is not stored in bf16 loses by it, which
            # counts for little beside codes, and those are multiplied fast in bf16 alone.
            is_quantized = (config.quantization or limits.checkpoint_format) != PLAIN
            may_round = limits.checkpoint_dtype == "bfloat16" or is_quantized
            name = "bfloat16" if may_round and is_fast_in_bfloat16() else "float32"
        if device == "cuda" and name == "float32":
            name = "bfloat16"
    if name == "float32":
        return "float32"
    return "bfloat16" if name == "bfloat16" else "float16"


def _resolve_weight_format(quantization: str | None, limits: ModelLimits) -> str:
    if quantization is None:
        return limits.checkpoint_format
    choices = formats_made_at_load()
    if quantization not in choices:
        raise ConfigurationError(
            f"--quantization must be one of {', '.join(choices)}, got {quantization!r}",
            param="quantization",
        )
    if limits.checkpoint_format != PLAIN:
        raise ConfigurationError(
            f"--quantization is {quantization}, which is made from plain weights, but the checkpoint "
            f"is {limits.checkpoint_format}",
            param="quantization",
            hint="Leave --quantization out.",
        )
    return quantization


def _resolve_max_model_len(asked: int | None, limits: ModelLimits) -> int:
    longest = limits.max_position_embeddings
    if asked is None:
        return longest
    if asked > longest:
        raise ConfigurationError(
            f"--max-model-len is {asked}, but the model's config.json allows at most {longest} "
            "positions",
            param="max-model-len",
            hint=f"Use --max-model-len {longest} or less.",
        )
    return asked
