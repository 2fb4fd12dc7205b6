"""The cache of llama.cpp: cells for the whole context from the start, states for each sequence. Pure.

Source: src/llama-kv-cache.cpp, llama-kv-cache-iswa.cpp, llama-memory-recurrent.cpp and `create_memory` in
src/llama-model.cpp (0c1e5709). A layer's part is where its weights are, unless `--no-kv-offload`.
"""

from __future__ import annotations

from dataclasses import dataclass

from exo_inference.planner.llama_cpp.setting import BLOCKS, Context, LlamaSetting, pad
from exo_inference.planner.model.architecture import Architecture
from exo_inference.planner.model.families import LlamaCpp, llama_cpp_of
from exo_inference.planner.model.shapes import KvKind, KvSpec


@dataclass(frozen=True, slots=True)
class Kept:
    """What a layer keeps: bytes of a cell, how many cells, and states that no token adds to."""

    cell_bytes: float
    cells: int
    state_bytes: int
    copied_bytes: int
    """What flash attention makes of it in two bytes for each element, where it is stored in fewer."""

    @property
    def total(self) -> int:
        """All of it."""
        return int(self.cell_bytes * self.cells) + self.state_bytes


NOTHING = Kept(0.0, 0, 0, 0)


def element_bytes(kind: str) -> float:
    """Return the bytes of an element in a type of the cache."""
    elements, size = BLOCKS[kind]
    return size / elements


def is_windowed(spec: KvSpec, model_type: str) -> bool:
    """Whether llama.cpp keeps a window alone of a layer."""
    has_window = spec.kind in (KvKind.SLIDING, KvKind.CHUNKED) and spec.window > 0
    return has_window and (llama_cpp_of(model_type) or LlamaCpp()).reads_windows


def window_cells(spec: KvSpec, context: Context, *, is_full: bool) -> int:
    """Return the cells of a stream of layers with windows (`llama_kv_cache_iswa`)."""
    if is_full:
        return context.cells
    sharing = context.sequences if context.streams == 1 else 1
    return pad(min(context.cells, spec.window * sharing + context.batch))


def layer_kept(
    spec: KvSpec | None, model_type: str, setting: LlamaSetting, context: Context
) -> Kept:
    """Return what a layer keeps."""
    if spec is None:
        return NOTHING
    if spec.kind is KvKind.STATE:
        elements = spec.conv_elements * spec.conv_positions + spec.state_elements
        return Kept(0.0, 0, 4 * elements * context.sequences, 0)
    cells = context.cells
    if is_windowed(spec, model_type):
        cells = window_cells(spec, context, is_full=setting.full_windows)
    cells *= context.streams
    keys, values = _elements(spec)
    copied = (
        (keys * (setting.key_type != "f16") + values * (setting.value_type != "f16")) * 2 * cells
    )
    return Kept(cell_bytes(spec, setting), cells, 0, copied)


def cell_bytes(spec: KvSpec, setting: LlamaSetting) -> float:
    """Return what a layer keeps of a token."""
    keys, values = _elements(spec)
    return keys * element_bytes(setting.key_type) + values * element_bytes(setting.value_type)


def _elements(spec: KvSpec) -> tuple[int, int]:
    """Return the elements of a token's keys and values; those of a latent are a part of its keys, and a state has none."""
    if spec.kind is KvKind.STATE:
        return 0, 0
    if spec.kind is KvKind.LATENT:
        return spec.key_dim, 0
    return spec.num_heads * spec.key_dim, spec.num_heads * spec.value_dim


def mask_cells(model: Architecture, setting: LlamaSetting, context: Context) -> int:
    """Return the cells that masks are made of: of the cache of all tokens, and of that of windows."""
    sizes: dict[bool, int] = {}
    for layer, _ in model.layer_counts:
        spec = layer.kv
        if spec is None or spec.kind is KvKind.STATE:
            continue
        windowed = is_windowed(spec, model.model_type)
        cells = (
            window_cells(spec, context, is_full=setting.full_windows) if windowed else context.cells
        )
        sizes[windowed] = max(sizes.get(windowed, 0), cells)
    return sum(sizes.values())


def growth_per_token(spec: KvSpec | None, model_type: str, setting: LlamaSetting) -> float:
    """Return the bytes that a further token of the context adds to a layer."""
    if spec is None or is_windowed(spec, model_type):
        return 0.0
    return cell_bytes(spec, setting)
