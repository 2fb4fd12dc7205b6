"""What a start takes beside weights and activations: captured graphs, and memory outside PyTorch.

Both are measured, not derived: `catalog/overheads.json` has the middle and the spread of what starts of the
calibration half printed, and `make planner-calibrate` writes it (`scripts/calibrate_planner.py`). `planning.py` calls
the functions here. All sizes are bytes on one GPU.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from exo_inference.planner.engine_rules import EngineRules
from exo_inference.planner.gpu_catalog import GIB, MIB, Gpu
from exo_inference.planner.memory import Component, Ranks, rank_bytes
from exo_inference.planner.model.architecture import Architecture
from exo_inference.planner.model.shapes import KvKind
from exo_inference.planner.problem import Problem

if TYPE_CHECKING:
    from exo_inference.planner.resolved_setting import Setting


@dataclass(frozen=True, slots=True)
class Measured:
    """A constant with the spread of the starts it was set on.

    Attributes:
        value: their middle.
        low, high: the middle half of them lies between.
        starts: how many they were.
    """

    value: float
    low: float
    high: float
    starts: int


@cache
def load_overheads() -> Mapping[str, Measured]:
    """Return the measured constants by name."""
    text = (
        files("exo_inference.planner")
        .joinpath("catalog", "overheads.json")
        .read_text(encoding="utf-8")
    )
    return {name: Measured(**entry) for name, entry in json.loads(text).items()}


def measured(name: str) -> Measured:
    """Return a constant; one that no start has set is that of a single GPU, and may be as much as any other.

    One start tells no spread: what it sets may be as little as a single GPU has.
    """
    constants = load_overheads()
    if name in _of_amd():
        return constants.get(name) or _of_amd()[name]
    if ALONE not in constants:
        return constants.get(name) or Measured(0.0, 0.0, 0.0, 0)
    alone, found = constants[ALONE], constants.get(name)
    if found is not None:
        return found if found.starts > 1 else replace(found, low=min(found.low, alone.low))
    joined = [constants[key].high for key in (ALONE, PCIE, LINKED) if key in constants]
    return Measured(alone.value, alone.low, max(joined), 0)


@cache
def _of_amd() -> Mapping[str, Measured]:
    """Return what starts on AMD's GPUs held beside PyTorch's memory: the middle, and all of their spread.

    `catalog/outside_amd.json` has the figures with their sources. They are what came on top since the process began, as vLLM
    counts it. One start has set those of CDNA 3: as little as other GPUs have, and as much more.
    """
    starts = _read("outside_amd.json")
    others = [each for each in starts if each["gfx"] not in CDNA3]
    alone = _spread([each["gib"] for each in others if each["ranks"] == 1])
    joined = [
        (each["gib"] - alone.value) / math.log2(each["ranks"])
        for each in others
        if each["ranks"] > 1
    ]
    large = statistics.median([each["gib"] for each in starts if each["gfx"] in CDNA3])
    of_cdna3 = Measured(large, alone.low, 2 * large - alone.low, len(starts) - len(others))
    return {AMD: alone, AMD_JOINED: _spread(joined), AMD_CDNA3: of_cdna3}


@cache
def _read(name: str) -> list[dict[str, Any]]:
    text = files("exo_inference.planner").joinpath("catalog", name).read_text(encoding="utf-8")
    found: list[dict[str, Any]] = json.loads(text)
    return found


def _spread(figures: list[float]) -> Measured:
    return Measured(statistics.median(figures), min(figures), max(figures), len(figures))


CDNA3 = frozenset({"gfx942", "gfx950"})
"""MI300X, MI325X and MI355X, which run other kernels than the rest (AITER)."""

ALONE = "outside PyTorch, alone"
PCIE = "outside PyTorch, PCIe"
AMD, AMD_JOINED = "outside PyTorch, AMD", "outside PyTorch, AMD, per doubling of ranks"
AMD_CDNA3 = "outside PyTorch, AMD, CDNA 3"
UNIFIED = "outside PyTorch, memory shared with the CPU"
LINKED = "outside PyTorch, per doubling of ranks on an NVLink switch"
"""NCCL's buffers for multicast. That they grow with doublings was read off starts on two and on eight ranks."""
COMPRESSED = "outside PyTorch, compressed attention"
"""DeepSeek-V4: what its derived workspaces do not explain. One start has set it, which says how much it may be."""
GRAPHS, GRAPHS_OF_STATES = (
    "graph MiB per layer and size",
    "graph MiB per layer and size, with states",
)
BESIDE, BESIDE_OF_STATES = "graph GiB beside sizes", "graph GiB beside sizes, with states"
"""What an estimate of graphs holds that does not grow with layers and sizes: it is the memory of the first capture, and at
least 1 MiB for each further one (vllm v1/worker/gpu_model_runner.py, `profile_cudagraph_memory`, 0.19.0)."""
BAND = "band of the KV memory"
"""How many times the spreads of the components, added as squares, nine in ten starts lie within."""


def graph_sizes(max_num_seqs: int) -> int:
    """Return how many batch sizes vLLM captures: up to twice max-num-seqs, 512 at most."""
    largest = min(512, 2 * max_num_seqs)
    small = sum(1 for size in (1, 2, 4) if size <= largest)
    return small + min(largest, 248) // 8 + max(0, (largest - 240) // 16)


def graphs_constant(model: Architecture) -> str:
    """Return the name of the constant that a model's graphs are reckoned with."""
    return GRAPHS_OF_STATES if _has_states(model) else GRAPHS


def beside_constant(model: Architecture) -> str:
    """Return the name of the constant for what an estimate of its graphs holds beside their sizes."""
    return BESIDE_OF_STATES if _has_states(model) else BESIDE


def _has_states(model: Architecture) -> bool:
    kinds = {layer.kv.kind for layer, _ in model.layer_counts if layer.kv is not None}
    return KvKind.STATE in kinds


def graphs_component(
    model: Architecture, ranks: Ranks, rules: EngineRules, max_num_seqs: int, *, is_eager: bool
) -> Component:
    """Return the memory of captured CUDA graphs.

    The estimate that newer versions subtract is loose itself: from a third to three times of what was then used. Where
    nothing is subtracted, it is what they use that matters: the spread is that of each layer and size.
    """
    in_budget = rules.subtracts_graphs
    if is_eager or not rules.captures_graphs:
        return Component("cuda_graphs", 0, 0, 0, "no CUDA graphs are captured", in_budget)
    each = measured(graphs_constant(model))
    if in_budget:
        return estimated_graphs(model, ranks, max_num_seqs, each, measured(beside_constant(model)))
    sizes, layers = graph_sizes(max_num_seqs), stage_layers(model, ranks)
    value, low, high = (
        int(layers * sizes * size * MIB) for size in (each.value, each.low, each.high)
    )
    source = f"{sizes} batch sizes x {layers} layers x {each.value:g} MiB (middle of {each.starts} printed figures)"
    return Component("cuda_graphs", value, low, high, source, in_budget)


def estimated_graphs(
    model: Architecture, ranks: Ranks, max_num_seqs: int, each: Measured, beside: Measured
) -> Component:
    """Return what vLLM subtracts for graphs, by what one layer takes for one size and what is beside that."""
    sizes, layers = graph_sizes(max_num_seqs), stage_layers(model, ranks)
    base = layers * sizes * each.value * MIB
    value, low, high = (
        max(0, int(base + size * GIB)) for size in (beside.value, beside.low, beside.high)
    )
    source = f"{sizes} batch sizes x {layers} layers x {each.value:g} MiB"
    if beside.value:
        source += f" + {beside.value:g} GiB"
    source += f" (middle of {each.starts} printed figures)"
    return Component("cuda_graphs", value, low, high, source)


def stage_layers(model: Architecture, ranks: Ranks) -> int:
    """Return how many layers a stage of a pipeline has at most."""
    return -(-len(model.layers) // ranks.pipeline)


PIECES = (0, 12, 0)
"""The first release that captures the pieces between attention layers beside whole decode steps by default (config/compilation.py,
`FULL_AND_PIECEWISE`)."""


def graphs_on_amd(graphs: Component, setting: Setting) -> Component:
    """Return the memory of captured graphs on AMD's GPUs, which hardly depends on the model: by batch sizes alone.

    `catalog/graphs_amd.json` has the figures, of one model on two GPUs: its spread is that of other graphs. "Roughly fixed" they are
    to vLLM, too (vllm-project/vllm#48458). Of models with states none was printed that all flags of are known.
    """
    is_known = setting.gpu.vendor == "amd" and setting.rules.version >= PIECES
    if not is_known or not graphs.num_bytes or graphs_constant(setting.model) != GRAPHS:
        return graphs
    starts, spread = _read("graphs_amd.json"), measured(GRAPHS)
    each = statistics.median([start["gib"] / start["sizes"] for start in starts]) * GIB
    sizes = graph_sizes(setting.max_num_seqs)
    value, low, high = (
        int(sizes * each * size / spread.value) for size in (spread.value, spread.low, spread.high)
    )
    source = (
        f"{sizes} batch sizes x {each / MIB:.0f} MiB (AMD: middle of {len(starts)} printed figures)"
    )
    return replace(graphs, num_bytes=value, low=low, high=high, source=source)


GRAPHS_CODE = "cuda-graphs"


def graphs_problems(graphs: Component, room: int) -> list[Problem]:
    """Compare graphs that are captured outside the budget with the bytes that are left there.

    To 0.19 vLLM captures them after the cache has its memory (v1/worker/gpu_worker.py, `compile_or_warm_up_model`), and so
    does the second model runner; a start may run out of memory then.
    """
    if graphs.is_in_budget or graphs.high <= room:
        return []
    detail = (
        f"CUDA graphs are captured after the cache is allocated: {graphs.num_bytes / GIB:.2f} GiB (at worst "
        f"{graphs.high / GIB:.2f}) of {max(0, room) / GIB:.2f} GiB that are left, and it may run out of memory: lower "
        "--gpu-memory-utilization or --max-num-seqs"
    )
    return [Problem(GRAPHS_CODE, detail, refuses=False)]


def outside_constant(model: Architecture, ranks: Ranks, gpu: Gpu) -> str:
    """Return the name of the constant for what a rank holds outside PyTorch and no formula has."""
    kinds = {layer.kv.kind for layer, _ in model.layer_counts if layer.kv is not None}
    return COMPRESSED if KvKind.COMPRESSED in kinds else joined_constant(model, ranks, gpu)


def joined_constant(model: Architecture, ranks: Ranks, gpu: Gpu) -> str:
    """Return the name of the constant by how ranks are joined."""
    if gpu.is_unified:
        return UNIFIED
    if gpu.vendor == "amd":
        return AMD_CDNA3 if gpu.gfx in CDNA3 else AMD
    if ranks.tensor * ranks.pipeline * (ranks.data if model.moe is not None else 1) == 1:
        return ALONE
    return LINKED if doublings(model, ranks, gpu) else PCIE


def at_ranks(each: Measured, alone: Measured, doubled: float) -> Measured:
    """Return a constant as it is where ranks are doubled so many times, each of which adds as much."""
    if not doubled:
        return each
    value, low, high = (
        base + doubled * size
        for base, size in (
            (alone.value, each.value), (alone.low, each.low), (alone.high, each.high),
        )
    )  # fmt: skip
    return Measured(value, low, high, each.starts)


def outside_component(model: Architecture, ranks: Ranks, rules: EngineRules, gpu: Gpu) -> Component:
    """Return what CUDA, cuBLAS and NCCL hold outside PyTorch, and what the profile run leaves there."""
    if gpu.vendor == "cpu":
        return Component("non_torch", 0, 0, 0, "nothing on a CPU")
    if not rules.spans_gpus:
        return Component(
            "non_torch",
            int(0.1 * GIB),
            0,
            int(0.45 * GIB),
            "middle of what starts printed on one GPU",
        )
    name = joined_constant(model, ranks, gpu)
    each = measured(name)
    if name == LINKED:
        each = at_ranks(each, measured(ALONE), doublings(model, ranks, gpu))
    elif name == AMD:
        doubled = math.log2(_joined_ranks(model, ranks))
        each = at_ranks(measured(AMD_JOINED), each, doubled) if doubled else each
    if outside_constant(model, ranks, gpu) == COMPRESSED:
        each = replace(each, high=max(each.high, measured(COMPRESSED).high))
    value, low, high = (int(size * GIB) for size in (each.value, each.low, each.high))
    return Component("non_torch", value, low, high, f"{name}: middle of {each.starts} starts")


_STRANDED, _STRANDED_EXPERTS = 0.12, 0.52
"""Shares of a rank's quantized weights that loading replaces, where sleep mode has them in a pool of its own: 5.16 GiB of cache
instead of 3.17 with Llama-3.1-70B in AWQ on two RTX 4090 (vllm-project/vllm#40256; 16.6 GiB are quantized), and experts in
NVFP4 of a 30B model, 14.44 - 9.61 GiB of 9.2 (#49151). One start each."""


def asleep(outside: Component, setting: Setting) -> Component:
    """Return what lies outside PyTorch as vLLM counts it with sleep mode: as much less as loading gave back, or not.

    Its allocator unmaps what loading replaced, which PyTorch still counts as its own (vllm/device_allocator/cumem.py,
    `use_memory_pool`), so that the rest comes out too small, and the cache too large.
    """
    model, ranks = setting.model, setting.ranks
    is_miscounted = setting.parameters.sleeps and setting.rules.miscounts_sleep
    if not is_miscounted or model.quantization is None:
        return outside
    sets = [(layer.weights, count) for layer, count in model.layer_counts]
    quantized = sum(
        count * rank_bytes(weight, ranks, model.dtype_bytes)
        for weights, count in sets
        for weight in weights
        if weight.format is not None
    )
    has_experts = model.moe is not None and model.quantization.default.name == "nvfp4"
    less = int(quantized / ranks.pipeline * (_STRANDED_EXPERTS if has_experts else _STRANDED))
    source = f"{outside.source}; with sleep mode up to {less / MIB:.0f} MiB less"
    low = max(0, outside.low - less)
    return replace(outside, low=low, alternative=outside.alternative + less, source=source)


def doublings(model: Architecture, ranks: Ranks, gpu: Gpu) -> float:
    """Return how many times the ranks that a multicasting NVLink switch joins are doubled from one.

    Cards that a bridge may join in pairs, and A100s, hold no more than over PCIe. Data-parallel ranks of a mixture of
    experts are one group with the others (vLLM: distributed/parallel_state.py, `init_distributed_environment`, 0.32.0);
    of a dense model each is an engine of its own.
    """
    joined = _joined_ranks(model, ranks)
    return math.log2(min(joined, gpu.nvlink_size)) if gpu.has_multicast else 0.0


def _joined_ranks(model: Architecture, ranks: Ranks) -> int:
    return ranks.tensor * (ranks.data if model.moe is not None else 1)
