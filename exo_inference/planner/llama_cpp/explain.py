"""The arithmetic of a plan of llama.cpp, step by step, with the functions that made the plan. Pure text.

`planner/explain.py` asks for the steps of memory; its verdict comes after them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from exo_inference.planner.explain_step import (
    KINDS,
    Step,
    gib,
    part_name,
    per_token,
    with_band,
)
from exo_inference.planner.gpu_catalog import MIB
from exo_inference.planner.llama_cpp.basis import LlamaBasis
from exo_inference.planner.llama_cpp.cache import (
    element_bytes,
    growth_per_token,
    is_windowed,
    layer_kept,
)
from exo_inference.planner.llama_cpp.compute import Term, widest_moment
from exo_inference.planner.llama_cpp.constants import COMPUTE, CONTEXT, WEIGHTS, load_constants
from exo_inference.planner.llama_cpp.setting import resolve
from exo_inference.planner.llama_cpp.sizes import role_of
from exo_inference.planner.llama_cpp.tensor_types import BITS
from exo_inference.planner.llama_cpp.weights import (
    Tensor,
    file_bytes,
    layer_tensors,
    mix_of,
    output_tensors,
)
from exo_inference.planner.model.shapes import KvKind, KvSpec, Layer
from exo_inference.planner.verdict import Plan

_OF_TYPES = "llama.cpp src/llama-quant.cpp and src/llama-model.cpp (0c1e5709)"
_OF_CACHE = "llama.cpp src/llama-kv-cache.cpp (0c1e5709)"
_OF_WINDOWS = "llama.cpp src/llama-kv-cache-iswa.cpp (0c1e5709)"
_OF_STATES = "llama.cpp src/llama-memory-recurrent.cpp (0c1e5709)"
_OF_GRAPHS = "llama.cpp src/llama-context.cpp and src/llama-graph.cpp (0c1e5709)"
_OF_CONTEXTS = "llama.cpp src/llama-context.cpp and common/fit.cpp (0c1e5709)"
_OF_STARTS = "starts that printed it (docs/benchmarks/planner-llama-cpp.md)"


def memory_steps(result: Plan, basis: LlamaBasis) -> Iterator[Step]:
    """Yield the steps of one GPU, the one with the least room: weights, buffers, context, cache, their sum."""
    yield from _weight_steps(result, basis)
    yield _compute_step(result, basis)
    yield _cuda_step(result, basis)
    yield _context_step(basis)
    yield from _cache_steps(result, basis)
    parts = result.components
    used = " + ".join(f"{gib(each.num_bytes)} {each.name}" for each in parts)
    low, size, high = (
        sum(int(getattr(each, end)) for each in parts) for end in ("low", "num_bytes", "high")
    )
    room = gib(result.budget_bytes_per_gpu)
    of = f"{room} that the driver reports"
    if basis.asked.free_bytes is not None:
        of = f"{room} that are free"
    yield Step(
        "Asked of the GPU", f"{used}, of {of}", with_band(size, low, high), "the lines above"
    )
    yield Step(
        "Longest context that fits",
        f"the longest request, in steps of 256 tokens up to the model's {basis.asked.trained:,}, with which the sum has room",
        f"{result.largest_max_model_len:,} tokens", "the lines above",
    )  # fmt: skip


@dataclass(slots=True)
class _Sum:
    """Tensors of one part, added up: elements of each type."""

    elements: Counter[str] = field(default_factory=Counter)
    num_bytes: float = 0.0

    def add(self, tensor: Tensor, count: int, scale: float) -> None:
        self.elements[tensor.kind] += count * tensor.weight.num_elements
        self.num_bytes += count * tensor.num_bytes * scale


def _weight_steps(result: Plan, basis: LlamaBasis) -> Iterator[Step]:
    model, sizes = basis.asked.model, basis.sizes.gpus[basis.gpu]
    scale = file_bytes(model).scale
    sums = _weights_by_part(basis, scale)
    for part, each in sums.items():
        terms = (
            f"{count:,} in {kind} ({BITS[kind]:g} bits)" for kind, count in each.elements.items()
        )
        formula = f"parameters: {' + '.join(terms)}"
        if scale != 1:
            formula += f"; x {scale:.4f}, by the size of the file"
        yield Step(f"Weights: {part_name(part)}", formula, gib(each.num_bytes), model.source)
    formula = " + ".join(gib(each.num_bytes) for each in sums.values()) or "no layer is on the GPU"
    formula += _band_text(WEIGHTS)
    if sizes.maybe:
        formula += f", and {gib(sizes.maybe)} more where the file has prediction layers"
    yield _sum_step(result, "Weights", "weights", formula, _OF_TYPES)


def _band_text(constant: str) -> str:
    found = load_constants()[constant]
    return f"; starts printed {min(1.0, found.low):g} to {max(1.0, found.high):g} times as much"


def _sum_step(result: Plan, title: str, name: str, formula: str, source: str) -> Step:
    found = result.component(name)
    assert found is not None, "every plan of a size has all parts"
    return Step(title, formula, with_band(found.num_bytes, found.low, found.high), source)


def _weights_by_part(basis: LlamaBasis, scale: float) -> Mapping[str, _Sum]:
    """Return the tensors on the GPU, of its layers and of the output where it has it."""
    model, placement = basis.asked.model, basis.sizes.placement
    mix = mix_of(model)
    assert mix is not None, "only known files have a plan"
    kinds: Counter[tuple[object, ...]] = Counter()
    examples: dict[tuple[object, ...], tuple[Layer, int]] = {}
    for index, (layer, device) in enumerate(zip(model.layers, placement.layers, strict=True)):
        if device == basis.gpu:
            key = (id(layer), index < placement.experts_off, *mix.group(index))
            kinds[key] += 1
            examples.setdefault(key, (layer, index))
    sums: dict[str, _Sum] = {}
    for group, (layer, index) in examples.items():
        for tensor in layer_tensors(layer, mix, index):
            if not (tensor.is_of_experts and index < placement.experts_off):
                sums.setdefault(tensor.weight.part, _Sum()).add(tensor, kinds[group], scale)
    if placement.output == basis.gpu:
        for tensor in output_tensors(model, mix):
            sums.setdefault(tensor.weight.part, _Sum()).add(tensor, 1, scale)
    return sums


def _compute_step(result: Plan, basis: LlamaBasis) -> Step:
    asked, context = basis.asked, basis.context
    role = role_of(asked.model, asked.setting, context, asked.gpus, basis.gpu)
    moment = widest_moment(asked.model, asked.setting, context, role)
    terms = " + ".join(
        f"{gib(size)} of {_term_text(term, size, basis)}"
        for term, size in moment.terms.items()
        if size
    )
    formula = (
        f"a batch of {context.batch:,} tokens (--ubatch-size) is widest at {moment.name}: {terms}"
    )
    return _sum_step(
        result, "Compute buffers", "activations", formula + _band_text(COMPUTE), _OF_GRAPHS
    )


def _term_text(term: str, size: float, basis: LlamaBasis) -> str:
    """Return a term of the compute buffers, and the product that its size is."""
    tokens = basis.context.batch
    model = basis.asked.model
    if term == Term.ACTIVATIONS:
        return f"{term} ({tokens:,} tokens x {size / 4 / tokens:,.0f} elements x 4 bytes)"
    if term == Term.LOGITS:
        rows = size / 4 / model.vocab_size
        return f"{term} ({rows:,.0f} rows x {model.vocab_size:,} entries x 4 bytes)"
    if term == Term.PIPELINE:
        return f"{term} ({tokens:,} tokens x {size / tokens:,.0f} bytes)"
    if term == Term.MASKS:
        return f"{term} ({size / tokens:,.0f} bytes for each of {tokens:,} tokens)"
    return term


def _cuda_step(result: Plan, basis: LlamaBasis) -> Step:
    found = load_constants()[CONTEXT]
    formula = f"{found.value:g} MiB, which was measured before llama.cpp had a buffer; {found.low:g} to {found.high:,g} MiB are possible"
    if basis.asked.gpu.is_unified:
        formula += f"; + {gib(basis.sizes.host.total)} of main memory, which is the GPU's too"
    return _sum_step(result, "CUDA's context", "non_torch", formula, _OF_STARTS)


def _context_step(basis: LlamaBasis) -> Step:
    asked, context = basis.asked, basis.context
    setting = asked.setting
    whole = resolve(setting, asked.trained)
    said = "of --ctx-size" if setting.context else "that the model was trained with"
    formula = f"{setting.context or asked.trained:,} tokens {said}, rounded up to 256"
    if context.streams > 1:
        formula += f"; {context.streams} caches of {context.per_sequence:,} tokens"
    elif context.sequences > 1:
        formula += f"; {context.sequences} requests share them"
    if context.total < whole.total:
        free = ", ".join(dict.fromkeys(f"{each // MIB:,}" for each in setting.fit_targets))
        formula += f"; --fit shortens {whole.total:,} to leave {free} MiB of each GPU free"
    return Step("Context", formula, f"{context.total:,} tokens", _OF_CONTEXTS)


def _cache_steps(result: Plan, basis: LlamaBasis) -> Iterator[Step]:
    model, placement = basis.asked.model, basis.sizes.placement
    layers = zip(model.layers, placement.layers, strict=True)
    specs = Counter(
        layer.kv for layer, device in layers if device == basis.gpu and layer.kv is not None
    )
    sizes = []
    for spec, count in specs.items():
        step, size = _spec_step(spec, count, basis)
        sizes.append(size)
        yield step
    formula = " + ".join(gib(size) for size in sizes)
    yield _sum_step(result, "Cache", "kv_cache", f"{formula}, taken when it starts", _OF_CACHE)
    grown = (
        count * growth_per_token(spec, model.model_type, basis.asked.setting)
        for spec, count in specs.items()
    )
    growing = " + ".join(f"{size:,.10g}" for size in grown if size)
    formula = (
        f"{growing}, of layers that keep all tokens" if growing else "no layer keeps all tokens"
    )
    yield Step("KV bytes per token", formula, per_token(result.kv_bytes_per_token), _OF_CACHE)


def _spec_step(spec: KvSpec, count: int, basis: LlamaBasis) -> tuple[Step, int]:
    """Return the step of layers that keep the same, and the bytes that they keep together."""
    asked, context = basis.asked, basis.context
    kept = layer_kept(spec, asked.model.model_type, asked.setting, context)
    noun = "layer" if count == 1 else "layers"
    title = f"Cache: {count} {noun} of {KINDS[spec.kind]}"
    if spec.kind is KvKind.STATE:
        formula = (
            f"{count} {noun} x (convolution {spec.conv_positions} x {spec.conv_elements:,} + state {spec.state_elements:,} "
            f"elements) x 4 bytes x {context.sequences} requests"
        )
        return Step(title, formula, gib(count * kept.total), _OF_STATES), count * kept.total
    cells = f"{kept.cells:,} tokens"
    source = _OF_CACHE
    if is_windowed(spec, asked.model.model_type):
        source = _OF_WINDOWS
        cells += f" of windows of {spec.window:,}"
        if asked.setting.full_windows:
            cells += ", all of them with --swa-full"
    formula = f"{count} {noun} x {_cell_text(spec, basis)} x {cells}"
    return Step(title, formula, gib(count * kept.total), source), count * kept.total


def _cell_text(spec: KvSpec, basis: LlamaBasis) -> str:
    setting = basis.asked.setting
    keys = f"{spec.key_dim} x {element_bytes(setting.key_type):g} bytes in {setting.key_type}"
    if spec.kind is KvKind.LATENT:
        return f"a latent of {keys}"
    values = f"{spec.value_dim} x {element_bytes(setting.value_type):g} in {setting.value_type}"
    return f"{spec.num_heads} KV heads x ({keys} + {values})"
