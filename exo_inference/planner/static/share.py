"""Engines that set a share of each GPU aside for weights and cache, and size nothing by running it.

SGLang asks how much memory is free before the weights are loaded. A share of that, `--mem-fraction-static`, is theirs and
the cache's; what a step computes, captured graphs and tables of requests have to do with the rest
(srt/model_executor/model_runner.py `profile_max_num_token`; since 0.5.9 model_runner_kv_cache_mixin.py, since 0.5.18
srt/mem_cache/kv_cache_configurator.py). Without the flag the rest is what a formula has for them (srt/server_args.py,
`_handle_gpu_memory_settings`). Read in the releases 0.4.0 to 0.5.23. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from exo_inference.planner.gpu_catalog import MIB
from exo_inference.planner.model.shapes import KvKind
from exo_inference.planner.releases.sglang_families import types_with
from exo_inference.planner.static.prompt_graphs import PromptGraphs, prompt_graphs

if TYPE_CHECKING:
    from exo_inference.planner.gpu_catalog import Gpu
    from exo_inference.planner.model.architecture import Architecture

Version = tuple[int, int, int]

_DRIVERS_OWN = 550
"""MiB that `nvidia-smi`, which the formula asks, has more than CUDA: 24,564 of an RTX 4090 beside 24,095, 81,559 of an
H100 beside 81,008, 143,771 of an H200 beside 143,155."""
_K = 1024


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StaticShare:
    """How an engine in one release shares a GPU's memory out.

    Attributes:
        graph_batches: MiB that a GPU has less than, and the largest batch that is captured by fewer than four
            tensor-parallel ranks, and by more.
        by_ranks: tensor-parallel ranks that there are at least, and the share on a GPU of up to 80 GiB (to 0.4.7).
        by_memory: MiB that a GPU has less than, and the GiB left free with one for so many GPUs beside them; where this is
            there, steps and graphs have no part in it (to 0.5.2).
        windowed, whole_on_blackwell: model types, as in `SglangFamily` (releases/sglang_families.py).
        window_share: tokens of that pool for each token of the other.
        checks_windows: it does not start where that pool holds no more than a window and a page.
        state_share: bytes for states (Mamba, linear attention) for each byte of the cache beside them; None where
            they were shared out otherwise.
        stateful, buffered: model types, likewise.
        spare_states: states of the pool that no request has.
        prompt_graphs: pieces of prompts that are captured as graphs, too.
        misread_lengths, text_first, without_encoder: model types, likewise.
    """

    graph_batches: tuple[tuple[float, int, int], ...] = ()
    by_ranks: tuple[tuple[int, float], ...] = ()
    by_memory: tuple[tuple[float, float, float], ...] = ()
    windowed: frozenset[str] = frozenset()
    whole_on_blackwell: frozenset[str] = frozenset()
    window_share: float = 0.8
    checks_windows: bool = False
    state_share: float | None = 0.9
    stateful: frozenset[str] = frozenset()
    buffered: frozenset[str] = frozenset()
    spare_states: int = 0
    prompt_graphs: PromptGraphs | None = None
    misread_lengths: frozenset[str] = frozenset()
    text_first: frozenset[str] = frozenset()
    without_encoder: frozenset[str] = frozenset()

    def find_lack(
        self, model: Architecture, gpu: Gpu, asked_len: int | str | None = None
    ) -> str | None:
        """Return why a model on a GPU has no rule here; None where it has one.

        Args:
            model: what is served.
            gpu: the kind of GPU.
            asked_len: the context that a flag says, in tokens.
        """
        if model.cannot_size is not None:
            return None  # which is said already
        kinds = _kinds(model)
        if gpu.vendor != "nvidia":
            return "only NVIDIA's GPUs are planned for this engine"
        if model.is_embedding or not kinds:
            return "models without a cache are not planned for this engine"
        if model.model_type in self.misread_lengths and asked_len is None:
            return "this release takes its context to be longer than it is; say --context-length"
        if kinds & {KvKind.COMPRESSED, KvKind.CROSS}:
            return "the cache of its attention is not planned for this engine"
        if KvKind.STATE not in kinds:
            return None
        is_known = model.model_type in self.stateful and self.state_share is not None
        return None if is_known else "its states are not planned for this engine"

    def tokens_in_windows(self, model: Architecture, gpu: Gpu) -> float:
        """Return how many tokens a layer with a window keeps for each token of the others."""
        capability = gpu.capability
        is_tensorrt = capability is not None and int(capability) == 10
        is_whole = is_tensorrt and model.model_type in self.whole_on_blackwell
        return self.window_share if model.model_type in self.windowed and not is_whole else 1.0

    def states_each(self, model: Architecture) -> int:
        """Return how many states of its pool a running request takes."""
        return 5 if model.model_type in self.buffered else 3

    def default(
        self, model: Architecture, gpu: Gpu, tensor: int, pipeline: int, step_tokens: int
    ) -> float:
        """Return the share of each GPU that the engine takes where no flag says it, from 0 to 1.

        Args:
            model: a text model, or one with an image encoder, for which more is left free.
            gpu: the kind of GPU.
            tensor: tensor-parallel ranks.
            pipeline: pipeline stages.
            step_tokens: tokens of a prompt that are computed at once (`--chunked-prefill-size`).
        """
        total = gpu.reported_bytes / MIB + _DRIVERS_OWN
        if self.by_ranks and total <= 81_920 + _DRIVERS_OWN:
            return next(share for least, share in self.by_ranks if tensor >= least)
        rest = self.rest(model, gpu, tensor, pipeline, step_tokens)
        factor = _encoder_factor(model) if self.sees_images(model) else 1.0
        return max(0.0, round((total - rest) / total, 3) * factor)

    def sees_images(self, model: Architecture) -> bool:
        """Whether a model encodes images where no flag asks for it."""
        return model.vision is not None and model.model_type not in self.text_first

    def rest(
        self, model: Architecture, gpu: Gpu, tensor: int, pipeline: int, step_tokens: int
    ) -> float:
        """Return the MiB that the formula leaves to steps, graphs and tables; arguments as of `default`."""
        total, ranks = gpu.reported_bytes / MIB + _DRIVERS_OWN, tensor * pipeline
        if self.by_ranks and total <= 81_920 + _DRIVERS_OWN:
            return (1 - self.default(model, gpu, tensor, pipeline, step_tokens)) * total
        if self.by_memory:
            base, per = next((base, per) for below, base, per in self.by_memory if total < below)
            return (base + ranks / per) * _K
        few, many = next((few, many) for below, few, many in self.graph_batches if total < below)
        rest = 512 + max(step_tokens, 2048) * 1.5 + 2 * (few if tensor < 4 else many)
        rest += ranks / 8 * _K
        if self.prompt_graphs is not None:
            sees = self.sees_images(model)
            rest += self.prompt_graphs.size(model, pipeline, step_tokens, sees_images=sees)
        return max(rest, 10 * _K) if total > 60 * _K else rest


def static_share(version: Version) -> StaticShare:
    """Return SGLang's rules in a release."""
    told_apart = StaticShare(
        windowed=types_with("windowed", version),
        whole_on_blackwell=types_with("whole_on_blackwell", version),
        stateful=types_with("stateful", version),
        buffered=types_with("buffered", version),
        misread_lengths=types_with("misread_length", version),
        text_first=types_with("text_first", version),
        without_encoder=types_with("without_encoder", version),
    )
    if version < (0, 4, 8):
        return replace(told_apart, by_ranks=_BY_RANKS, by_memory=_ABOVE_80_GIB, state_share=None)
    if version < (0, 5, 3):
        return replace(told_apart, by_memory=_BY_MEMORY, state_share=None)
    small = (24, 80) if version >= (0, 5, 5) else (16, 80)
    if version >= (0, 5, 20):
        small = (48, 160)
    batches = (
        (20 * _K, 8, 8), (35 * _K, *small), (60 * _K, 32, 160), (160 * _K, 256, 512), (float("inf"), 512, 512),
    )  # fmt: skip
    return replace(
        told_apart,
        graph_batches=batches,
        checks_windows=version >= (0, 5, 16),
        state_share=0.9 if version >= (0, 5, 4) else None,
        spare_states=1 if version >= (0, 5, 17) else 0,
        prompt_graphs=prompt_graphs(version),
    )


_BY_RANKS = ((16, 0.79), (8, 0.81), (4, 0.85), (2, 0.87), (1, 0.88))
_ABOVE_80_GIB = ((float("inf"), 18.0, float("inf")),)
"""Of 0.4.7; 0.4.6 left 13 and 0.4.0 to 0.4.5 knew no such limit, which is not followed here."""
_BY_MEMORY = (
    (35 * _K, 2.8, 10.0), (90 * _K, 9.5, 2.0), (160 * _K, 12.0, 2.0), (float("inf"), 32.0, float("inf")),
)  # fmt: skip


def _encoder_factor(model: Architecture) -> float:
    """Return what is left of the share where images are encoded, by the encoder's size against that of CLIP's ViT-L/14.

    The size is what `adjust_mem_fraction_for_vlm` reads of the config, whatever the encoder's family calls it.
    """
    sizes = model.vision.sizes_in_config if model.vision is not None else None
    if sizes is None:
        return 1.0
    ratio = sizes[0] * sizes[1] ** 2 / (24 * 1024**2)
    return 0.95 * max(0.8, min(1.05, 1.0 - 0.1 * (ratio - 1.0)))


def _kinds(model: Architecture) -> set[KvKind]:
    return {layer.kv.kind for layer, _ in model.layer_counts if layer.kv is not None}
