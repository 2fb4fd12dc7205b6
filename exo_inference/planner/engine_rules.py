"""How an engine, in one version, turns a GPU's memory into a KV cache.

`EngineParameters.rules` is what `rules_for` answers; `memory.py` and `kv_cache.py` follow the answer. Facts
of vLLM are read from its source release by release (`config/cache.py`, `v1/worker/gpu_worker.py`,
`engine/arg_utils.py`, `v1/core/kv_cache_utils.py`); those of exo-engine from `exo_engine/core/memory.py`; those of SGLang
from `srt/server_args.py` and `srt/model_executor/pool_configurator.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from exo_inference.planner.gpu_catalog import GIB, Gpu
from exo_inference.planner.processor.exo_kernels import EXO_KERNELS
from exo_inference.planner.processor.kernels import ProcessorKernels
from exo_inference.planner.releases.classes import CLASSES
from exo_inference.planner.releases.dtypes import Dtypes, vllm_dtypes
from exo_inference.planner.releases.gpus import GPUS, GpuKind, Served
from exo_inference.planner.releases.own_code import OWN_CODE, OwnCode
from exo_inference.planner.releases.prompts import VLLM_PROMPTS, WholePrompts
from exo_inference.planner.releases.sglang import SGLANG_CLASSES, SGLANG_GPUS
from exo_inference.planner.releases.sparse import SPARSE
from exo_inference.planner.releases.splits import SGLANG_UNSPLIT, VLLM_UNSPLIT, Unsplit
from exo_inference.planner.static.flags import FLAGS, UNPLANNED
from exo_inference.planner.static.share import StaticShare, static_share

Version = tuple[int, int, int]

Batch = tuple[int, int]
"""Tokens and sequences of a step."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EngineRules:
    """One engine in one version; two objects are never equal, so that caches look them up quickly.

    Attributes:
        engine: as deployments name it; `title` for people.
        oldest, newest: the first and the last version whose rules were read.
        is_legacy: vLLM's V0 engine (its own profile run, hybrids cached as if they attended fully).
        chooses_slowly: model types whose experts are chosen by groups (model_executor/models/deepseek_v2.py and
            glm4_moe.py, `use_grouped_topk`) in several kernels: scores, biases and casts went into the one that
            chooses with vllm-project/vllm#28124 (2025-11, before 0.12).
        schedules_ahead: the host schedules a step while the GPU computes the one before (0.14, config/vllm.py `async_scheduling`).
        parses_templates: its API parses the chat template anew for each request (vLLM 0.11.0 alone:
            entrypoints/chat_utils.py, `resolve_chat_template_kwargs`; not in 0.10.2, and kept since 0.11.2).
        writes_itself: model types whose prompts its API writes without a template (`use_harmony` of openai/serving_chat.py).
        default_utilization: of `--gpu-memory-utilization`.
        batches: default max-num-batched-tokens and max-num-seqs, by the GiB that a GPU has at least.
        cpu_batch: the same on a CPU, where that is another matter than its memory.
        small_batch_gpus: parts of names of GPUs that have the smallest of `batches` all the same.
        subtracts_graphs: the CUDA-graph estimate comes out of the budget (since 0.20).
        subtracts_amd_graphs: so does it on AMD's GPUs (vllm-project/vllm#36720 and #48526; in 0.20.0 to 0.25.1 it does not).
        groups_hybrids: layers of different kinds share a pool in groups.
        group_tolerance: the largest bucket sets the group size while below this times the smallest.
        reports_by_concurrency: the printed capacity is concurrency x max-model-len (since 0.21).
        batches_in_flight: batches that a sliding window must have room for.
        reserves_null_block: one block is kept back.
        bounds_blocks_by_length: a request has no more blocks of a window or state than its tokens fill.
        logit_bytes: what the profiled sampler holds per logit, where it does not sort.
        samples_by_sort: the sampler sorts logits with PyTorch, unless FlashInfer samples.
        miscounts_sleep: with sleep mode, memory that its allocator gave back is counted as PyTorch's (vllm-project/vllm#40256; since
            #32947, January 2026, until what is free is measured instead, which 0.28 does).
        may_have_flashinfer: FlashInfer samples where it is installed: in vLLM's images, not with its package (V1 to
            0.11.0; v1/sample/ops/topk_topp_sampler.py of 0.10.2 and 0.11.1, the package's `flashinfer` extra).
        keeps_sampler_rows: vLLM's Triton kernel masks logits and keeps a buffer.
        caches_states: prefixes of models with states are cached by default.
        counts_pages: what is printed for weights is what PyTorch's allocator gave.
        latent_padding: MLA latents are padded to a multiple of this.
        latent_block: tokens per block of MLA kernels (vLLM: platforms/cuda.py).
        block_multiple: blocks are multiples of so many tokens (v1/attention/backends, `get_kv_cache_shape`).
        absorbs_latents: MLA keeps the products of its projections beside them (0.7).
        checks_states: it does not start where requests of a step outnumber the blocks for their states (since 0.19).
        prompts: how steps are for prompts that cannot be cut, which must fit into one; None where no prompt has to.
        captures_graphs: decode steps are recorded as CUDA graphs unless that is switched off.
        compiles: the model is compiled at the start unless CUDA graphs are switched off.
        counts_compilation: what compilation takes on the GPU is counted as the step's (vllm-project/vllm#54122; from the release
            with PyTorch 2.10 on, which compiles ahead of time: #33804).
        counts_rotary: the rotary tables are there when the cache is sized.
        keeps_rotary_exact: they are in float32, and no longer than the context (SGLang's layers/rotary_embedding, base.py and
            mrope.py, 0.4.9 to 0.5.17).
        fills_qkv: fused projections have rows that no checkpoint fills (`Layer.unstored`).
        swaps_sides: products in FP8 with few rows have their sides swapped on compute capability 9, so that hardly any is
            padding (vLLM since 0.10.0, vllm-project/vllm#20396).
        pads_experts: kernels pad experts in MXFP4.
        profiles_encoder: the profile run encodes images.
        quantizes: it reads quantized weights, and quantizes plain ones while loading in several ways.
        advised_quantization: value of --quantization that makes plain weights smaller while loading.
        chooses_cache_type: the cache may have another type than activations.
        takes_cache_since: by ways of quantization, the first release that takes the cache's type from the checkpoint where no
            flag says one; others take it always. Before, vLLM had the run's type (ModelOpt: vllm-project/vllm#30785, December
            2025, after 0.13.0; compressed-tensors: #30141, in 0.15.0).
        dequantizes_cache: attention makes 16 bit of a cache of 8 first, and is no faster ("no latency improvements as the
            implementation does not yet include fused dequantization and attention operations", vLLM's
            docs/features/quantization/quantized_kvcache.md to 0.11.2; no longer there in 0.25.0).
        cache_scale_bytes: of each head's keys, and values, of a token in one byte per number, which any device converts.
        halves_float32: a model in float32 runs in 16 bit.
        cpu_dtype: what it computes in on a CPU that is slow in bfloat16; None for the model's own type.
        kernels: what its compiled kernels compute on a CPU; None for an engine that has none.
        spans_gpus: one replica may have several.
        families: model types that it serves, as text models; None for any that can be planned.
        classes: of model types, the first release with a class and the first one without, as far as they are known.
        own_code: classes to name of model types whose code comes with the model, which it runs only if told to.
        gpus: of kinds of GPUs, which releases have kernels for them; kinds that are not here are served by all.
        sparse_gpus: of kinds of GPUs, which releases read latents over an index there; none of other kinds. Empty: all do.
        unsplit: methods whose stored weights it does not split over tensor-parallel GPUs.
        dtypes: which number types it takes.
        pools_without_cache: texts that are embedded or scored are computed whole, by decoders, too.
        takes_longrope: without --max-model-len the context is all that LongRoPE stretches to.
        shrinks_length: without --max-model-len the context becomes what fits instead of a refusal.
        fits_length: `--max-model-len=auto` takes the longest context that fits (vLLM since 0.19,
            v1/core/kv_cache_utils.py `_auto_fit_max_model_len`).
        caps_cache: the cache is never larger than all sequences of a step could use.
        prints_exactly: starts print the release in full, and what the blocks take as the memory for them.
        second_runner: model types that start in vLLM's second model runner; None where all have one runner's rules.
        runs_dense_second: so do models without experts and states.
        sinks_times: how much longer a prompt's attention takes where heads have sinks and the GPU is of compute capability
            8. vLLM has its Triton kernel alone there (FlashAttention 3 is for 9). With it a prompt of 8k tokens took 1,500 ms
            on an A100 that took 600 before (vllm-project/vllm#18152, 2025-05-14; it names no model, and 600 ms are what one
            of 8B takes, 80 of them for attention); since #20308 (2025-07) it leaves out tiles that are masked, half of all:
            (900 + 80) / 2 / 80.
        ahead_seconds: how long its host takes for a step beside the requests, where it schedules ahead; None: as long as
            vLLM's (`SpeedConstants.ahead`). A step of exo-engine with one sequence of Qwen3-0.6B took 0.88 ms on an
            H200 (docs/benchmarks/gpu-first-run.md), in which the GPU waited; 0.03 of them are the request's.
        static_share: how the memory is shared out by an engine that profiles nothing; None for one that does.
        default_block: tokens of a block of the cache.
        estimates_speed: constants of speed were set on its figures, or on those of an engine that runs as it does.
        flags: what it calls flags that vLLM calls otherwise, by vLLM's names.
        unplanned: flags that change what memory is taken in ways that no rule here has, `_` for `-`.
        spans_nodes_with: what a replica on several machines needs beside a fast network, after "and".
        cache_source: where the rules of its cache are from.
    """

    engine: str
    title: str
    version: Version
    oldest: Version
    newest: Version
    default_utilization: float
    batches: tuple[tuple[float, Batch], ...]
    logit_bytes: float
    cpu_batch: Batch | None = None
    small_batch_gpus: tuple[str, ...] = ()
    is_legacy: bool = False
    chooses_slowly: frozenset[str] = frozenset()
    schedules_ahead: bool = True
    parses_templates: bool = False
    writes_itself: frozenset[str] = frozenset()
    subtracts_graphs: bool = False
    subtracts_amd_graphs: bool = False
    groups_hybrids: bool = False
    group_tolerance: float = 1.0
    reports_by_concurrency: bool = False
    batches_in_flight: int = 1
    reserves_null_block: bool = False
    bounds_blocks_by_length: bool = False
    samples_by_sort: bool = False
    miscounts_sleep: bool = False
    may_have_flashinfer: bool = False
    keeps_sampler_rows: bool = False
    counts_pages: bool = False
    latent_padding: int = 1
    latent_block: int = 16
    block_multiple: int = 1
    absorbs_latents: bool = False
    checks_states: bool = False
    caches_states: bool = False
    prompts: WholePrompts | None = None
    captures_graphs: bool = False
    compiles: bool = False
    counts_compilation: bool = False
    counts_rotary: bool = False
    keeps_rotary_exact: bool = False
    fills_qkv: bool = False
    swaps_sides: bool = True
    pads_experts: bool = False
    profiles_encoder: bool = False
    quantizes: bool = False
    advised_quantization: str | None = None
    chooses_cache_type: bool = False
    takes_cache_since: Mapping[str, Version] = field(default_factory=dict)
    dequantizes_cache: bool = False
    cache_scale_bytes: int = 0
    halves_float32: bool = False
    cpu_dtype: str | None = None
    kernels: ProcessorKernels | None = None
    spans_gpus: bool = False
    families: frozenset[str] | None = None
    classes: Mapping[str, tuple[Version | None, Version | None]] = field(default_factory=dict)
    own_code: Mapping[str, OwnCode] = field(default_factory=dict)
    gpus: Mapping[GpuKind, Served] = field(default_factory=dict)
    sparse_gpus: Mapping[GpuKind, Served] = field(default_factory=dict)
    unsplit: Mapping[str, Unsplit] = field(default_factory=dict)
    dtypes: Dtypes = field(default_factory=Dtypes)
    pools_without_cache: bool = False
    takes_longrope: bool = False
    shrinks_length: bool = False
    fits_length: bool = False
    caps_cache: bool = False
    prints_exactly: bool = False
    second_runner: frozenset[str] | None = None
    runs_dense_second: bool = False
    sinks_times: float = 1.0
    ahead_seconds: float | None = None
    static_share: StaticShare | None = None
    default_block: int = 16
    estimates_speed: bool = True
    flags: Mapping[str, str] = field(default_factory=dict)
    unplanned: frozenset[str] = frozenset()
    spans_nodes_with: str = " and --distributed-executor-backend=ray"
    cache_source: str = "vLLM v1/core/kv_cache_utils.py and v1/kv_cache_interface.py"

    @property
    def release(self) -> str:
        """The engine and its release, for messages."""
        return f"{self.title} {'.'.join(map(str, self.version))}"

    def flag(self, name: str) -> str:
        """Return a flag as this engine's users write it, by vLLM's name for it."""
        return f"--{self.flags.get(name, name)}"


_MOST_DIGITS = 9


def parse_version(text: str) -> Version | None:
    """Return major, minor and patch of a version text (`0.26.1rc1.dev156`), or None."""
    match = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    if match is None or max(len(part or "") for part in match.groups()) > _MOST_DIGITS:
        return None
    return int(match.group(1)), int(match.group(2)), int(match.group(3) or 0)


_EXO_FAMILIES = frozenset({
    "bert", "deepseek_v2", "deepseek_v3", "gemma2", "gemma3_text", "gemma4_text", "gpt_oss", "llama", "mistral",
    "qwen2", "qwen3", "qwen3_5_text", "qwen3_moe", "qwen3_next", "roberta", "xlm-roberta",
})  # fmt: skip


def _exo(version: Version, _: str) -> EngineRules:
    return EngineRules(
        engine="exo",
        title="exo-engine",
        version=version,
        oldest=(0, 0, 0),
        newest=version,
        default_utilization=0.9,
        batches=((0, (8192, 256)),),  # exo_engine/config.py
        cpu_batch=(1024, 64),
        logit_bytes=12,
        groups_hybrids=True,
        reports_by_concurrency=True,
        group_tolerance=1.5,  # exo_engine/attention/cache_plan.py
        bounds_blocks_by_length=True,  # exo_engine/core/block_demand.py
        chooses_cache_type=True,
        cache_scale_bytes=4,  # exo_engine/attention/kv_format.py
        advised_quantization="int8",
        cpu_dtype="float32",
        kernels=EXO_KERNELS,
        families=_EXO_FAMILIES,
        pools_without_cache=True,
        shrinks_length=True,
        caps_cache=True,
        prints_exactly=True,
        ahead_seconds=8.5e-4,
    )


_NEWEST_VLLM = (0, 33, 0)


def _vllm(version: Version, text: str) -> EngineRules:
    is_legacy = version < (0, 8, 0) or (version < (0, 11, 0) and "v0" in text.lower())
    return EngineRules(
        engine="vllm",
        title="vLLM",
        version=version,
        oldest=(0, 6, 6),
        newest=_NEWEST_VLLM,
        is_legacy=is_legacy,
        chooses_slowly=_GROUPED if version < (0, 12, 0) else frozenset(),
        schedules_ahead=version >= (0, 14, 0),
        parses_templates=(0, 11, 0) <= version < (0, 11, 1),
        takes_longrope=version < (0, 11, 1),  # pull request 27431
        writes_itself=frozenset({"gpt_oss"}),
        default_utilization=0.92 if version >= (0, 20, 0) else 0.9,
        batches=_vllm_batches(version, is_legacy),
        small_batch_gpus=("a100", "gb10") if version >= (0, 9, 0) else ("gb10",),
        subtracts_graphs=version >= (0, 20, 0),
        subtracts_amd_graphs=version >= (0, 26, 0),
        groups_hybrids=version >= (0, 10, 0) and not is_legacy,
        group_tolerance=1.5 if version >= (0, 14, 0) else 1.25,
        reports_by_concurrency=version >= (0, 20, 2),  # pull request 40694; its wheel prints so
        batches_in_flight=2 if version >= (0, 26, 0) else 1,  # pull request 47728
        reserves_null_block=version >= (0, 32, 0),
        logit_bytes=14,
        samples_by_sort=version < (0, 17, 0),
        may_have_flashinfer=version < (0, 11, 1) and not is_legacy,
        keeps_sampler_rows=(0, 17, 0) <= version < (0, 22, 0),
        counts_pages=True,
        latent_padding=128 if is_legacy else 1,
        latent_block=16 if is_legacy else 64,
        block_multiple=16,
        absorbs_latents=(0, 7, 0) <= version < (0, 8, 0),
        checks_states=version >= (0, 19, 0),
        caches_states=version >= (0, 28, 0),  # pull request 50991
        prompts=VLLM_PROMPTS,
        captures_graphs=True,
        compiles=True,
        counts_compilation=version >= (0, 17, 0),
        miscounts_sleep=(0, 16, 0) <= version < (0, 28, 0),
        counts_rotary=True,
        fills_qkv=True,
        swaps_sides=version >= (0, 10, 0),
        pads_experts=True,
        profiles_encoder=True,
        quantizes=True,
        classes=CLASSES,
        own_code=OWN_CODE,
        gpus=GPUS,
        sparse_gpus=SPARSE,
        unsplit=VLLM_UNSPLIT,
        dtypes=vllm_dtypes(version),
        chooses_cache_type=True,
        takes_cache_since={"modelopt": (0, 14, 0), "compressed-tensors": (0, 15, 0)},
        dequantizes_cache=version < (0, 12, 0),
        halves_float32=True,
        spans_gpus=True,
        fits_length=version >= (0, 19, 0),
        second_runner=next((types for since, types in _SECOND_RUNNER if version >= since), None),
        runs_dense_second=version >= (0, 25, 0),
        sinks_times=6.1,
    )


_GROUPED = frozenset(
    {"deepseek_v2", "deepseek_v3", "deepseek_v32", "deepseek_vl_v2", "glm4_moe", "kimi_k2"}
)

_SECOND_RUNNER: tuple[tuple[Version, frozenset[str] | None], ...] = (
    ((0, 29, 0), None),  # all have it, and it profiles what the first did
    ((0, 28, 0), frozenset({"deepseek_v2", "deepseek_v4", "granitemoe", "kimi_k3", "qwen2_moe"})),
    ((0, 27, 0), frozenset({"deepseek_v2", "granitemoe", "kimi_k3", "qwen2_moe"})),
    ((0, 25, 0), frozenset({"deepseek_v2", "granitemoe", "qwen2_moe"})),
    (
        (0, 24, 0),
        frozenset({"deepseek_v2", "granitemoe", "llama", "mistral", "qwen2_moe", "qwen3"}),
    ),
)
"""vLLM's `DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES` (config/vllm.py, 0.24.0 to 0.28.0), by the first release that has each
list."""

SECOND_RUNNERS_DRAFTS = ("eagle", "eagle3", "dflash", "dspark")
"""Ways of drafting that vLLM's second model runner knows, beside prediction layers (config/vllm.py,
`_get_v2_model_runner_unsupported_features`, 0.25.1 to 0.28.0; 0.24.0 has no `dspark`)."""


@lru_cache(maxsize=64)
def of_second_runner(rules: EngineRules) -> EngineRules:
    """Return the rules of vLLM's second model runner in a release.

    To 0.28 it estimates no graphs (`profile_cudagraph_memory`), encodes no image before 0.27 (`profile_run`), and samples
    from the logits as the model gives them, two bytes each, of which it makes a copy in float32 before 0.26 (`Sampler`).
    Read in v1/worker/gpu/model_runner.py and v1/worker/gpu/sample/sampler.py of 0.24.0, 0.25.1, 0.26.0, 0.27.1 and 0.28.0.
    """
    return replace(
        rules,
        subtracts_graphs=False,
        profiles_encoder=rules.version >= (0, 27, 0),
        logit_bytes=2 if rules.version >= (0, 26, 0) else 6,
        keeps_sampler_rows=False,
    )


def _vllm_batches(version: Version, is_legacy: bool) -> tuple[tuple[int, Batch], ...]:
    """Source: `EngineArgs.get_batch_defaults`; steps of 16,384 tokens are since 0.28.0 (vllm-project/vllm#51726)."""
    if is_legacy:
        return ((0, (2048, 256)),)
    largest = ((160, (16384, 1024)),) if version >= (0, 28, 0) else ()
    return (*largest, (70, (8192, 1024)), (0, (2048, 256)))


def _sglang(version: Version, _: str) -> EngineRules:
    return EngineRules(
        engine="sglang",
        title="SGLang",
        version=version,
        oldest=(0, 4, 0),
        newest=(0, 5, 23),
        default_utilization=0.88,
        batches=_sglang_batches(version),
        logit_bytes=0,
        counts_pages=True,
        latent_block=1,
        counts_rotary=True,
        keeps_rotary_exact=True,
        pads_experts=True,
        quantizes=True,
        classes=SGLANG_CLASSES,
        gpus=SGLANG_GPUS,
        unsplit=SGLANG_UNSPLIT,
        chooses_cache_type=True,
        spans_gpus=True,
        takes_longrope=True,
        static_share=static_share(version),
        default_block=1,
        estimates_speed=False,
        flags=FLAGS,
        unplanned=UNPLANNED,
        spans_nodes_with="",
        cache_source="SGLang srt/model_executor/pool_configurator.py",
    )


def _sglang_batches(version: Version) -> tuple[tuple[float, Batch], ...]:
    """Return tokens of a prompt that are computed at once, and requests that are answered at once at least."""
    if version < (0, 5, 3):
        large = ((160, (16384, 2048)),) if version >= (0, 4, 7) else ()
        return (*large, (35 if version >= (0, 4, 8) else 24.5, (8192, 2048)), (0, (2048, 2048)))
    small = 4096 if version >= (0, 5, 20) else 2048
    return (
        (160, (16384, 2048)), (60, (8192, 2048)), (35, (4096, 2048)), (20, (small, 2048)), (0, (2048, 2048)),
    )  # fmt: skip


_ENGINES = {"exo": _exo, "sglang": _sglang, "vllm": _vllm}
PLANNED = frozenset(_ENGINES)
"""Engines that are planned by rules of their own."""


@lru_cache(maxsize=128)
def rules_for(engine: str, version_text: str) -> EngineRules:
    """Return the rules of an engine version; an unreadable version counts as the newest."""
    read = _ENGINES.get(engine, _vllm)  # of other engines the weights alone are told
    return read(parse_version(version_text) or _NEWEST_VLLM, version_text)


def default_batch(rules: EngineRules, gpu: Gpu) -> Batch:
    """Return the default max-num-batched-tokens and max-num-seqs of the engine's server."""
    if gpu.vendor == "cpu" and rules.cpu_batch is not None:
        return rules.cpu_batch
    fitting = [batch for least, batch in rules.batches if gpu.reported_bytes >= least * GIB]
    is_small = any(part in gpu.name.lower() for part in rules.small_batch_gpus)
    return fitting[-1 if is_small else 0]
