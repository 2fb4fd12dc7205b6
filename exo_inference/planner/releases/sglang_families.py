"""What sets model types apart in SGLang, by release, as a table. `static/` turns a release's column into its rules.

Read in the releases 0.4.0 to 0.5.23 of https://github.com/sgl-project/sglang; each field says where.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

Version = tuple[int, int, int]


class Span(NamedTuple):
    """Releases: the first one, and the first one that is not among them any more; None: no such limit."""

    since: Version | None = None
    until: Version | None = None

    def has(self, version: Version) -> bool:
        """Whether a release is among them."""
        is_late = self.until is not None and version >= self.until
        return not is_late and (self.since is None or version >= self.since)


ALWAYS = Span()


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangFamily:
    """One model type: in which releases it is treated otherwise than most; None: in none.

    Attributes:
        windowed: layers with windows have a pool of their own; others' keep every token
            (srt/configs/model_config.py, `is_hybrid_swa`).
        whole_on_blackwell: they keep every token all the same with TensorRT-LLM's kernels, which compute capability 10
            has by default (srt/server_args.py, "TODO: support swa kv indices translation").
        stateful: there is a class for it, and its states are shared out as the others' are.
        buffered: five states are kept for each running request, with the prefix cache and steps scheduled ahead; others keep
            three (srt/mem_cache/kv_cache_configurator.py `_calculate_mamba_ratio`, srt/arg_groups/overrides.py).
        misread_length: its context is taken to be another than it is, so that a flag has to say it: before
            Transformers 5, which 0.5.10 is the first to want, Gemma 3's is stretched twice, to 8 x 131,072 tokens; since, the factor
            stands in one of two tables and is not found (srt/hf_transformers_utils.py `get_context_length`).
        text_first: text alone is read unless `--enable-multimodal` is there (srt/configs/model_config.py).
        without_encoder: the encoder is not loaded then (srt/models/mllama4.py; 0.4.9 to 0.5.17).
        without_prompt_graphs: pieces of prompts are not captured as graphs.
        graphs_with_images: they are though images are encoded beside them; others' are not.
        compiled: those are compiled in pieces, where others are captured between breaks (srt/server_args.py,
            `_disable_tc_piecewise_cudagraph_if_incompatible` and `_disable_breakable_cudagraph_if_incompatible`).
        scaled_cache: attention over an index has FlashInfer's kernels, not TensorRT-LLM's, from compute capability 12 on, with
            scales beside a cache in 8 bit (srt/arg_groups/overrides.py, `_dsa_split_backend_resolution`).
    """

    windowed: Span | None = None
    whole_on_blackwell: Span | None = None
    stateful: Span | None = None
    buffered: Span | None = None
    misread_length: Span | None = None
    text_first: Span | None = None
    without_encoder: Span | None = None
    without_prompt_graphs: Span | None = None
    graphs_with_images: Span | None = None
    compiled: Span | None = None
    scaled_cache: Span | None = None


Trait = Literal[
    "windowed", "whole_on_blackwell", "stateful", "buffered", "misread_length", "text_first", "without_encoder",
    "without_prompt_graphs", "graphs_with_images", "compiled", "scaled_cache",
]  # fmt: skip

_BUFFERED = SglangFamily(stateful=ALWAYS, buffered=Span((0, 5, 14)))
_BUFFERED_WITH_IMAGES = SglangFamily(
    stateful=ALWAYS, buffered=Span((0, 5, 14)), graphs_with_images=Span((0, 5, 16))
)
_STATEFUL = SglangFamily(stateful=ALWAYS)

SGLANG_FAMILIES: Mapping[str, SglangFamily] = {
    "deepseek_v32": SglangFamily(without_prompt_graphs=Span((0, 5, 10), (0, 5, 13))),
    "falcon_h1": _BUFFERED,
    "gemma3": SglangFamily(misread_length=Span(until=(0, 5, 10)), text_first=ALWAYS),
    "gemma4": SglangFamily(windowed=Span((0, 5, 12))),
    "gemma4_text": SglangFamily(windowed=Span((0, 5, 12))),
    "glm_moe_dsa": SglangFamily(
        without_prompt_graphs=Span((0, 5, 10), (0, 5, 13)), scaled_cache=ALWAYS
    ),
    "gpt_oss": SglangFamily(
        windowed=Span((0, 5, 8)), whole_on_blackwell=Span((0, 5, 8), (0, 5, 10))
    ),
    "granitemoehybrid": _BUFFERED,
    "kimi_k25": SglangFamily(
        graphs_with_images=Span((0, 5, 16)), compiled=Span((0, 5, 16), (0, 5, 18))
    ),
    "kimi_k3": SglangFamily(
        stateful=ALWAYS, buffered=Span((0, 5, 17)), graphs_with_images=Span((0, 5, 18))
    ),
    "kimi_linear": SglangFamily(stateful=ALWAYS, buffered=Span((0, 5, 16))),
    "laguna": SglangFamily(windowed=Span((0, 5, 12))),
    "lfm2": _STATEFUL,
    "lfm2_moe": _STATEFUL,
    "llama4": SglangFamily(windowed=Span((0, 5, 8)), text_first=ALWAYS, without_encoder=ALWAYS),
    "llama4_text": SglangFamily(windowed=Span((0, 5, 8))),
    "mimo_v2_flash": SglangFamily(windowed=Span((0, 5, 9))),
    "minimax_m3": SglangFamily(graphs_with_images=Span((0, 5, 16)), compiled=Span((0, 5, 16))),
    "muse_glimmer": SglangFamily(graphs_with_images=Span((0, 5, 18))),
    "nemotron_h": SglangFamily(
        stateful=ALWAYS,
        buffered=Span((0, 5, 14)),
        without_prompt_graphs=Span((0, 5, 17), (0, 5, 18)),
    ),
    "nemotron_h_omni": _STATEFUL,
    "qwen3_5": _BUFFERED_WITH_IMAGES,
    "qwen3_5_moe": _BUFFERED_WITH_IMAGES,
    "qwen3_next": SglangFamily(
        stateful=ALWAYS,
        buffered=Span((0, 5, 14)),
        without_prompt_graphs=Span((0, 5, 10), (0, 5, 15)),
    ),
    "step3_vl": SglangFamily(text_first=ALWAYS),
    "step3p5": SglangFamily(windowed=Span((0, 5, 9))),
    "step3p7": SglangFamily(windowed=Span((0, 5, 15))),
}


@lru_cache(maxsize=512)
def types_with(trait: Trait, version: Version) -> frozenset[str]:
    """Return the model types that a release treats so."""
    spans: dict[str, Span | None] = {
        kind: getattr(row, trait) for kind, row in SGLANG_FAMILIES.items()
    }
    return frozenset(kind for kind, span in spans.items() if span and span.has(version))
