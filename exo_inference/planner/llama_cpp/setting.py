"""What llama-server is asked, from the values of its flags, and the contexts that follow. Pure.

Source: common/arg.cpp, common/common.h, src/llama-context.cpp and tools/server/server.cpp of llama.cpp b11243 and
0c1e5709. `planning.py` reads a setting once; all other modules of the package take it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from exo_inference.planner.gpu_catalog import MIB

_MOST_CELLS = 2**31 - 1
_AUTO_SEQUENCES = 4
_CELLS = 256
_ALL_LAYERS = 999
"""What the platform itself asks for, unless a flag says otherwise."""
_FIT_TARGET = 1024
"""MiB that `--fit` leaves free of a GPU by default."""
BLOCKS: Mapping[str, tuple[int, int]] = {
    "f32": (1, 4), "f16": (1, 2), "bf16": (1, 2), "q8_0": (32, 34), "q4_0": (32, 18), "q4_1": (32, 20),
    "iq4_nl": (32, 18), "q5_0": (32, 22), "q5_1": (32, 24),
}  # fmt: skip
"""Types of the cache: the elements of a block, and its bytes (ggml-common.h)."""
ALL = _MOST_CELLS


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaSetting:
    """What memory depends on.

    Attributes:
        context: `--ctx-size`; 0 is the model's own.
        sequences: requests at once.
        unified: they share one cache.
        gpu_layers: how many units run on GPUs, the output being one; None: what --fit finds.
        cpu_moe: the experts of so many layers stay in main memory.
        splits: the shares of the GPUs; empty: equal ones.
        only_gpu: the one that has everything, with `--split-mode none`; None: layers are split.
        fits: llama-server shortens a context that nobody asked for, and moves layers.
        fit_targets: what it leaves free of each GPU then, in bytes.
        fit_context: the shortest context it takes; `--ctx-size 0` asks for all of the model's.
        all_outputs: room for the logits of every token of a batch: builds of before June 2026, and other programs.
        wide_masks: flash attention has masks of four bytes beside those of two: the same builds.
    """

    context: int = 0
    batch: int = 2048
    ubatch: int = 512
    sequences: int = 4
    unified: bool = True
    full_windows: bool = False
    flash_attention: bool = True
    key_type: str = "f16"
    value_type: str = "f16"
    offloads_cache: bool = True
    offloads_ops: bool = True
    gpu_layers: int | None = ALL
    cpu_moe: int = 0
    splits: tuple[float, ...] = ()
    only_gpu: int | None = None
    fits: bool = True
    fit_targets: tuple[int, ...] = (_FIT_TARGET * MIB,)
    fit_context: int = 4096
    all_outputs: bool = False
    wide_masks: bool = False

    @property
    def moves_layers(self) -> bool:
        """Whether `--fit` moves layers to main memory: not where a flag says where any of them are."""
        is_split = len(self.splits) > 1 and self.only_gpu is None
        return self.fits and self.gpu_layers is None and not self.cpu_moe and not is_split


@dataclass(frozen=True, slots=True)
class Context:
    """The contexts of a start.

    Attributes:
        total: cells of the cache without windows, of all streams.
        per_sequence: the longest request.
        streams: how many caches there are: one that all share, or one for each sequence.
        batch: tokens that are computed at once.
    """

    total: int
    per_sequence: int
    sequences: int
    streams: int
    batch: int

    @property
    def cells(self) -> int:
        """Cells of one stream."""
        return self.per_sequence


def pad(cells: int) -> int:
    """Return cells as llama.cpp rounds them up."""
    return -(-cells // _CELLS) * _CELLS


def resolve(setting: LlamaSetting, trained: int, context: int | None = None) -> Context:
    """Return the contexts of a start (`llama_context::llama_context`).

    Args:
        setting: what was asked.
        trained: the model's own context.
        context: instead of the one that was asked for.
    """
    asked = setting.context if context is None else context
    total = pad(asked or max(1, trained))
    streams = 1 if setting.unified else setting.sequences
    each = pad(max(1, total // streams))
    total = each * streams
    batch = min(total, setting.batch)
    return Context(total, each, setting.sequences, streams, min(batch, setting.ubatch or batch))


def read_setting(values: Mapping[str, Any], gpu_count: int) -> LlamaSetting:
    """Return what flags set.

    Args:
        values: by the names of flags, as `engines` reads them: numbers, words, and tuples for each GPU.
        gpu_count: GPUs of the replica.
    """
    parallel = values.get("parallel", -1)
    is_auto, is_alone = parallel < 0, values.get("split-mode") == "none"
    sequences = _AUTO_SEQUENCES if is_auto else parallel
    unified, context = values.get("kv-unified"), values.get("ctx-size", 0)
    per_slot = values.get("kv-unified-per-slot")
    if per_slot is not None:
        unified, context = True, context or min(_MOST_CELLS, per_slot * sequences)
    return LlamaSetting(
        context=context,
        batch=values.get("batch-size", 2048),
        ubatch=values.get("ubatch-size", 512),
        sequences=sequences,
        unified=is_auto if unified is None else unified or is_auto,
        full_windows=values.get("swa-full", False),
        flash_attention=values.get("flash-attn") != "off",
        key_type=values.get("cache-type-k", "f16"),
        value_type=values.get("cache-type-v", "f16"),
        offloads_cache=values.get("kv-offload", True),
        offloads_ops=values.get("op-offload", True),
        gpu_layers=_gpu_layers(values.get("gpu-layers", _ALL_LAYERS)),
        cpu_moe=ALL if values.get("cpu-moe") else values.get("n-cpu-moe", 0),
        splits=_splits(values.get("tensor-split", ()), gpu_count),
        only_gpu=min(values.get("main-gpu", 0), gpu_count - 1) if is_alone else None,
        fits=values.get("fit") != "off",
        fit_targets=_targets(values.get("fit-target", (_FIT_TARGET,)), gpu_count),
        fit_context=ALL if values.get("ctx-size") == 0 else values.get("fit-ctx", 4096),
    )


def _gpu_layers(number: int) -> int | None:
    """Return how many layers are asked for: -1 leaves it to `--fit`, less is all of them."""
    if number == -1:
        return None
    return ALL if number < 0 else number


def _splits(shares: tuple[float, ...], gpu_count: int) -> tuple[float, ...]:
    """Return the shares of the GPUs; empty, which is equal ones, where these GPUs have none."""
    shares = (*shares, *[0.0] * gpu_count)[:gpu_count]
    return shares if sum(shares) else ()


def _targets(sizes: tuple[int, ...], gpu_count: int) -> tuple[int, ...]:
    """Return what `--fit` leaves free of each GPU; one figure is that of all."""
    each = sizes * gpu_count if len(sizes) == 1 else (*sizes, *[_FIT_TARGET] * gpu_count)
    return tuple(size * MIB for size in each[:gpu_count])
