"""The flags of `exo-engine serve`, as data.

One table from which `exo_engine.arguments` builds the parser and prints the catalogue. Names follow
vLLM wherever the meaning is the same; a flag that only exists here says so in its description. The
table holds no behaviour: how the values reach the engine is decided in `exo_engine.arguments`.
Imports nothing heavy, so that `exo-engine --help` answers at once.
"""

from __future__ import annotations

from typing import Final

from exo_engine.attention import BACKENDS
from exo_engine.flag import Flag
from exo_engine.server_flags import SERVER_FLAGS
from exo_engine.weight_formats import formats_made_at_load

_ONE_GPU: Final = "this version runs a model on one device; use more replicas instead"

MAX_CPU_THREADS: Final = 256
"""`kMaxThreads` of kernels/csrc/threads.h."""
MAX_NUM_SEQS: Final = 65_536
"""More than this no machine has use for; some ten thousand leave its other processes none."""

FLAGS: Final[tuple[Flag, ...]] = (
    # ---- ModelConfig ------------------------------------------------------------------------
    Flag(
        name="model",
        kind="string",
        section="ModelConfig",
        is_platform_owned=True,
        description="Directory of the model: config.json, safetensors files and tokenizer.json. "
        "May be given as the first word instead.",
    ),
    Flag(
        name="served-model-name",
        kind="strings",
        section="ModelConfig",
        is_platform_owned=True,
        description="Names under which clients ask for the model; the first one is in the "
        "answers. Left out: the model directory as it was given.",
    ),
    Flag(
        name="dtype",
        kind="enum",
        section="ModelConfig",
        default="auto",
        choices=("auto", "half", "float16", "bfloat16", "float", "float32"),
        description="Number format of weights and activations. `auto` takes the checkpoint's own "
        "format where the device computes well in it.",
    ),
    Flag(
        name="quantization",
        kind="enum",
        section="ModelConfig",
        aliases=("-q",),
        choices=formats_made_at_load(),
        description="Format that the weights of linear layers are converted to while they are "
        "loaded. `int8`: a byte per weight and a scale per output. `int4`: half a byte, and a scale per "
        "output and 32 inputs; `int4_per_group_64` and `int4_per_group_128`: per output and so many inputs, "
        "a little smaller and less exact. `fp8`: a byte (e4m3) and a scale per output; `fp8_per_tensor`: per matrix; "
        "`fp8_per_block`: per output and 128 inputs. What is computed keeps the format of `dtype`, but for "
        "inputs, which a CPU's kernels of INT8 and INT4 take in 8 bits, and a GPU's products of `fp8` and "
        "`fp8_per_tensor` in FP8, which need compute capability 8.9 or later. Left out: as the checkpoint has them.",
    ),
    Flag(
        name="max-model-len",
        kind="integer",
        section="ModelConfig",
        minimum=1,
        human=True,
        auto_words=("auto", "-1"),
        description="Longest sequence in tokens, prompt and answer together. Takes 4096, 32k "
        "(32,000) or 32K (32,768). `auto`, -1 or left out: what the model's configuration allows, or less "
        "where the KV cache is too small for that.",
    ),
    Flag(
        name="seed",
        kind="integer",
        section="ModelConfig",
        default=0,
        minimum=0,
        description="Seed of the sampler for requests that bring none of their own.",
    ),
    Flag(
        name="tokenizer",
        kind="string",
        section="ModelConfig",
        description="Directory of the tokenizer, if it is not the model's.",
    ),
    Flag(
        name="tokenizer-mode",
        kind="enum",
        section="ModelConfig",
        default="auto",
        choices=("auto", "hf"),
        description="How the tokenizer is read. Both values read tokenizer.json.",
    ),
    Flag(
        name="generation-config",
        kind="string",
        section="ModelConfig",
        default="auto",
        description="Where defaults for sampling come from: `auto` reads the model's "
        "generation_config.json, `vllm` uses neutral defaults, anything else is a directory.",
    ),
    Flag(
        name="override-generation-config",
        kind="json",
        section="ModelConfig",
        description="JSON object of sampling defaults that win over the generation config, for "
        'example {"temperature": 0.5}.',
    ),
    Flag(
        name="max-logprobs",
        kind="integer",
        section="ModelConfig",
        default=20,
        minimum=0,
        description="Most alternatives per position that a request may ask log probabilities for.",
    ),
    Flag(
        name="enforce-eager",
        kind="boolean",
        section="ModelConfig",
        default=False,
        description="Run operations one by one, without CUDA graphs. Graphs repeat steps in which each "
        "sequence gets one token, on a GPU, with `attention-backend` triton; models with states, and mixtures of "
        "experts in another format than plain or `fp8_per_block`, run without them in this version.",
    ),
    Flag(
        name="runner",
        kind="enum",
        section="ModelConfig",
        default="auto",
        choices=("auto", "generate", "pooling"),
        description="What the model is used for: `generate` makes text, `pooling` vectors or scores of texts. "
        "`auto`: as config.json and sentence-transformers' modules.json say.",
    ),
    Flag(
        name="convert",
        kind="enum",
        section="ModelConfig",
        default="auto",
        choices=("auto", "none", "embed", "classify"),
        description="What a model that pools is for: `embed` makes a vector of each text, also with a model "
        "that generates; `classify` scores pairs of texts. `auto` and `none`: as its architecture says.",
    ),
    Flag(
        name="pooler-config",
        kind="json",
        section="ModelConfig",
        description="JSON object that says how a text's states become its vector: `pooling_type` (LAST, MEAN, "
        "CLS; or `seq_pooling_type`) and `use_activation` (vectors have length 1, scores pass a sigmoid; or "
        "`normalize`). Left out: as sentence-transformers' files say, else the first token of an encoder and "
        "the last one of a decoder.",
    ),
    Flag(
        name="attention-backend",
        kind="enum",
        section="AttentionConfig",
        default="auto",
        choices=("auto", *BACKENDS),
        description="What computes attention. `auto` takes the fastest that can serve the model on this "
        "device: `triton` on a GPU, `cpu` (compiled kernels, bfloat16) on a CPU, `reference` (plain "
        "PyTorch) elsewhere. On a GPU it measures from which length on prompts are faster by PyTorch's FlashAttention, "
        "for which keys and values are copied together, or which reads them in their blocks (PyTorch 2.13, `block-size` a "
        "multiple of 256), and takes either only where its numbers are right; `torch` copies for all prompts, "
        "`flashinfer` with that package.",
    ),
    # ---- LoadConfig -------------------------------------------------------------------------
    Flag(
        name="load-format",
        kind="enum",
        section="LoadConfig",
        default="auto",
        choices=("auto", "safetensors"),
        description="Where weights come from. Both values read the model's *.safetensors files.",
    ),
    # ---- CacheConfig ------------------------------------------------------------------------
    Flag(
        name="block-size",
        kind="integer",
        section="CacheConfig",
        default=16,
        minimum=1,
        description="Tokens per KV cache block.",
    ),
    Flag(
        name="gpu-memory-utilization",
        kind="float",
        section="CacheConfig",
        default=0.9,
        minimum=0,
        maximum=1,
        is_above_minimum=True,
        aliases=("--device-memory-utilization",),
        description="Share of the GPU's memory for weights, activations and KV cache together. "
        "Has no effect on the CPU.",
    ),
    Flag(
        name="kv-cache-dtype",
        kind="enum",
        section="CacheConfig",
        default="auto",
        choices=("auto", "float32", "bfloat16", "float16", "fp8", "fp8_e4m3", "int8"),
        description="Number format of the KV cache. `auto`: that of the activations. `fp8_e4m3` "
        "(also `fp8`) and `int8` keep one byte per number and a scale per token and head: half the "
        "memory of 16 bits or less, for slightly different answers.",
    ),
    Flag(
        name="kv-cache-memory-bytes",
        kind="integer",
        section="CacheConfig",
        minimum=1,
        human=True,
        description="Size of the KV cache in bytes, instead of a share of the memory. Takes "
        "suffixes: 4G is 4 GiB, 4g is 4 GB.",
    ),
    Flag(
        name="num-gpu-blocks-override",
        kind="integer",
        section="CacheConfig",
        minimum=1,
        description="Number of KV cache blocks, instead of what fits into memory. Meant for "
        "tests of what happens when blocks run out.",
    ),
    Flag(
        name="enable-prefix-caching",
        kind="boolean",
        section="CacheConfig",
        default=True,
        description="Keep the KV cache of finished prompts and reuse it where a new prompt begins "
        "with the same tokens.",
    ),
    # ---- SchedulerConfig --------------------------------------------------------------------
    Flag(
        name="max-num-seqs",
        kind="integer",
        section="SchedulerConfig",
        minimum=1,
        maximum=MAX_NUM_SEQS,
        description="Most sequences in one step.",
    ),
    Flag(
        name="max-num-batched-tokens",
        kind="integer",
        section="SchedulerConfig",
        minimum=1,
        human=True,
        description="Most tokens of one step, shared by prompts and by sequences being answered. On a CPU "
        "prompts get fewer beside answers in progress, by measured time.",
    ),
    Flag(
        name="enable-chunked-prefill",
        kind="boolean",
        section="SchedulerConfig",
        default=True,
        description="Spread long prompts over several steps, so that answers in progress go on.",
    ),
    Flag(
        name="long-prefill-token-threshold",
        kind="integer",
        section="SchedulerConfig",
        minimum=1,
        description="Most tokens of one prompt in a step, so that answers in progress and shorter prompts "
        "wait less for long ones. Left out: as many as the step's budget leaves.",
    ),
    Flag(
        name="max-num-partial-prefills",
        kind="integer",
        section="SchedulerConfig",
        minimum=1,
        description="Most prompts of which a part is computed at a time; they share a step's budget. Left "
        "out: as many as it allows, the first one getting what it can.",
    ),
    Flag(
        name="max-long-partial-prefills",
        kind="integer",
        section="SchedulerConfig",
        minimum=1,
        description="How many prompts longer than --long-prefill-token-threshold may be computed in part at "
        "a time; shorter ones pass those that wait. Left out: all.",
    ),
    Flag(
        name="async-scheduling",
        kind="boolean",
        section="SchedulerConfig",
        description="Schedule the next step while one is computed, so that a GPU need not wait. What "
        "is answered is the same. Left out: on CUDA, not on a CPU.",
    ),
    Flag(
        name="batch-invariant",
        kind="boolean",
        section="SchedulerConfig",
        default=False,
        description="Refuse to start unless a request has the same bits whatever runs beside it. The "
        "compiled CPU kernels keep one order of sums, so that this costs nothing there. On a GPU it has Triton's "
        "kernels compute products, norms and attention in tiles and segments of one size, and states (Qwen3.5, "
        "Qwen3-Next) token by token, which takes time; heads of more than 256 numbers are refused.",
    ),
    Flag(
        name="scheduling-policy",
        kind="enum",
        section="SchedulerConfig",
        default="fcfs",
        choices=("fcfs", "priority"),
        description="Who goes first: `fcfs` in order of arrival, `priority` by the request's "
        "`priority` (lower first), then by arrival.",
    ),
    Flag(
        name="max-num-queued-reqs",
        kind="integer",
        section="SchedulerConfig",
        minimum=0,
        description="Most requests that may wait beyond those being computed. One more is "
        "answered with 429 and Retry-After. Left out: no limit.",
    ),
    # ---- ParallelConfig ---------------------------------------------------------------------
    Flag(
        name="tensor-parallel-size",
        kind="integer",
        section="ParallelConfig",
        default=1,
        aliases=("-tp",),
        minimum=1,
        maximum=64,
        description="Processes that share each layer, on a CPU: at most one per core, and they must divide heads "
        "and inner sizes. On a GPU only 1 in this version.",
    ),
    Flag(
        name="pipeline-parallel-size",
        kind="integer",
        section="ParallelConfig",
        default=1,
        aliases=("-pp",),
        only_values=(1,),
        only_reason=_ONE_GPU,
        description="Groups of layers on devices of their own. Only 1 in this version.",
    ),
    Flag(
        name="data-parallel-size",
        kind="integer",
        section="ParallelConfig",
        default=1,
        aliases=("-dp",),
        only_values=(1,),
        only_reason=_ONE_GPU,
        description="Copies of the model within one server. Only 1 in this version.",
    ),
    Flag(
        name="distributed-executor-backend",
        kind="enum",
        section="ParallelConfig",
        default="uni",
        choices=("uni", "mp"),
        description="Where steps are computed: `uni` in the engine's own process, `mp` in another one.",
    ),
    # ---- DeviceConfig -----------------------------------------------------------------------
    Flag(
        name="device",
        kind="enum",
        section="DeviceConfig",
        default="auto",
        choices=("auto", "cpu", "cuda"),
        description="Where the model runs. `auto` takes a CUDA GPU if there is one.",
    ),
    Flag(
        name="cpu-threads",
        kind="integer",
        section="DeviceConfig",
        minimum=1,
        maximum=MAX_CPU_THREADS,
        description="Threads for computing on the CPU, of each rank. Left out: one per core that affinity and "
        f"control groups leave, shared among the ranks, and no more than {MAX_CPU_THREADS}. exo-engine only.",
    ),
    Flag(
        name="simulation",
        kind="string",
        section="DeviceConfig",
        is_platform_owned=True,
        description="File with the figures of a big deployment, to behave as that would with this "
        "small model. Written by the control plane; what it says wins over other flags. exo-engine "
        "only.",
    ),
    *SERVER_FLAGS,
)
"""Every flag, in the order of the help page."""
