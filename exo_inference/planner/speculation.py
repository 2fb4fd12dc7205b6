"""What `--speculative-config` adds: draft weights, draft caches, and passes of the draft.

`resolved_setting.py` calls `read_speculation`. N-gram needs nothing; prediction layers (MTP) come with the target
checkpoint; EAGLE heads are one decoder layer and a joining projection; a draft model is a model of its
own, given by the caller or found in the bundled catalogue.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from exo_inference.errors import UsageError
from exo_inference.planner.catalog_models import find_model
from exo_inference.planner.draft_acceptance import DRAFT_MODEL, EAGLE, MTP, NGRAM, Drafting
from exo_inference.planner.kv_cache import KvSettings, token_bytes
from exo_inference.planner.memory import Component, Ranks, draft_component, rank_bytes
from exo_inference.planner.model.architecture import Architecture
from exo_inference.planner.model.shapes import KvKind, KvSpec, Layer, Shard, Weight
from exo_inference.planner.parameters import EngineParameters
from exo_inference.planner.problem import Problem


@dataclass(frozen=True, slots=True)
class Speculation:
    """The settled form; empty where nothing is drafted.

    Attributes:
        method: as `draft_acceptance.py` names it; empty where nothing is drafted or nothing is known of it.
        weights: what is loaded for drafting.
        shared_head: a table in memory anyway that a pass reads as its output head.
        num_layers: decoder layers of a pass.
        num_turns: prediction layers, which take turns, one per pass.
        num_active_parameters: of a drafted token, where not all of `weights` are passed through.
    """

    num_tokens: int = 0
    weights: tuple[Weight, ...] = ()
    kv_specs: tuple[KvSpec, ...] = ()
    source: str = ""
    error: float = 0.05
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    method: str = ""
    shared_head: Weight | None = None
    num_layers: int = 1
    num_turns: int = 1
    num_active_parameters: int | None = None

    def component(self, ranks: Ranks, dtype_bytes: int) -> Component:
        """Return the memory of the draft's weights on one rank."""
        return draft_component(self.weights, ranks, dtype_bytes, self.source, self.error)

    def drafting(self, ranks: Ranks, dtype_bytes: int, kv: KvSettings) -> Drafting | None:
        """Return what a decode step drafts, or None where nothing is known to draft."""
        if not self.method:
            return None
        if not self.weights:
            return Drafting(self.method, self.num_tokens)
        read = [w for w in self.weights if w.part not in _LOOKED_UP]
        if self.shared_head is not None:
            read.append(self.shared_head)
        size = {
            is_expert: sum(
                rank_bytes(w, ranks, dtype_bytes)
                for w in read
                if (w.part == "routed_experts") is is_expert
            )
            for is_expert in (False, True)
        }
        active = self.num_active_parameters
        if active is None:
            active = sum(w.num_elements for w in read) // self.num_turns
        cached = sum(token_bytes(spec, kv) for spec in self.kv_specs) / self.num_turns
        return Drafting(
            self.method, self.num_tokens, size[False] / self.num_turns, size[True] / self.num_turns,
            active, cached, self.num_layers,
        )  # fmt: skip


_LOOKED_UP = frozenset({"embedding", "per_layer_embedding", "vision", "projector"})
"""Parts that a pass does not read as a whole."""


def read_speculation(
    model: Architecture, parameters: EngineParameters, draft: Architecture | None
) -> Speculation:
    """Settle what the engine drafts with."""
    config = parameters.speculative
    if not config:
        return Speculation()
    tokens = config.get("num_speculative_tokens")
    count = tokens if isinstance(tokens, int) and 0 < tokens < 1000 else 1
    method = str(config.get("method") or ("draft_model" if config.get("model") else "")).lower()
    name = str(config.get("model") or "")
    if method == "draft_model" and not config.get("method") and "eagle" in name.lower():
        method = (
            "eagle3" if "eagle3" in name.lower() else "eagle"
        )  # as vLLM's SpeculativeConfig does
    if "ngram" in method or method in ("suffix", "medusa_none"):
        return Speculation(count, method=NGRAM)
    if "mtp" in method:
        return _prediction_layers(model, count)
    if method.startswith("eagle"):
        return _eagle(model, count, name, has_three=method.startswith("eagle3"))
    return _draft_model(name, count, draft)


def _prediction_layers(model: Architecture, count: int) -> Speculation:
    if not model.mtp_weights:
        detail = f"{model.name} has no multi-token-prediction layers"
        return Speculation(count, problems=(Problem("speculative-config", detail),))
    layers = model.num_mtp_layers
    specs = [_uncompressed(spec) for spec in _attending(model)[-1:]] * layers
    source = f"{layers} prediction layers, built like the model's last"
    head, moe = _head(model), model.moe
    share = min(1.0, moe.experts_per_token / max(1, moe.num_experts)) if moe is not None else 1.0
    active = head.num_elements + sum(
        w.num_elements * (share if w.part == "routed_experts" else 1.0) / layers
        for w in model.mtp_weights
    )
    return Speculation(
        count, model.mtp_weights, tuple(specs), source, 0.15, method=MTP, shared_head=head,
        num_turns=layers, num_active_parameters=int(active),
    )  # fmt: skip


def _head(model: Architecture) -> Weight:
    """Return the output head; where embeddings are tied, those."""
    own = [w for w in model.outer_weights if w.part == "lm_head"]
    return own[0] if own else Weight("lm_head", "lm_head", model.vocab_size, model.hidden_size)


def _uncompressed(spec: KvSpec) -> KvSpec:
    """Return the cache of a prediction layer: DeepSeek-V4's has the window alone."""
    if spec.kind is not KvKind.COMPRESSED:
        return spec
    return replace(spec, compress_ratio=0, index_bytes=0, index_elements=0)


_EAGLE3_VOCAB = 32_000
"""Rows of an EAGLE-3 head's own output table: `draft_vocab_size` of the heads published with the paper."""


def _eagle(model: Architecture, count: int, name: str, *, has_three: bool) -> Speculation:
    """One dense decoder layer and a joining projection.

    EAGLE (arXiv 2401.15077) joins embedding and hidden state, 2h to h, and shares embedding and head with
    the model. EAGLE-3 (arXiv 2503.01840; SafeAILab/EAGLE model/cnets.py) joins three hidden states, 3h to h,
    attends over embedding and state side by side (2h), and has an output head over a reduced vocabulary.
    For Llama-3.1-8B that is 425 million parameters, the 850 MB of the published checkpoint.
    """
    hidden = model.hidden_size
    weights, is_like_target = _eagle_layer(model, 2 if has_three else 1)
    joined = (3 if has_three else 2) * hidden
    weights.append(Weight("fc", "mtp", hidden, joined, shard=Shard.REPLICATED))
    if has_three:
        rows = min(_EAGLE3_VOCAB, model.vocab_size)
        weights.append(Weight("lm_head", "lm_head", rows, hidden))
    kind = "EAGLE-3" if has_three else "EAGLE"
    shape = "the model's own widths" if is_like_target else "a dense layer of usual widths"
    vocabulary = f" and a vocabulary of {_EAGLE3_VOCAB:,}" if has_three else ""
    note = f"the {kind} head {name or 'without a name'} is not known: one layer with {shape}{vocabulary} is assumed"
    return Speculation(
        count, tuple(weights), tuple(_attending(model)[-1:]), f"an {kind} head: {shape}{vocabulary}",
        0.3 if is_like_target else 0.6, notes=(note,), method=EAGLE,
        shared_head=None if has_three else _head(model),
    )  # fmt: skip


def _eagle_layer(model: Architecture, inputs: int) -> tuple[list[Weight], bool]:
    """Return the head's decoder layer, and whether the model has a layer like it."""
    hidden = model.hidden_size
    usual = next((layer for layer in reversed(model.layers) if _has_plain_attention(layer)), None)
    size = model.intermediate_size or 7 * hidden // 2
    if usual is None:
        q, kv = hidden, max(1, hidden // 4)
        attention = [("q_proj", q), ("k_proj", kv), ("v_proj", kv)]
        weights = [Weight(f"self_attn.{n}", "attention", rows, hidden) for n, rows in attention]
        weights.append(Weight("self_attn.o_proj", "attention", hidden, q))
    else:
        weights = [replace(w, format=None) for w in usual.weights if w.part == "attention"]
    weights = [
        replace(w, in_features=inputs * w.in_features)
        if w.path.endswith(("q_proj", "k_proj", "v_proj"))
        else w
        for w in weights
    ]
    weights += [Weight(f"mlp.{n}", "mlp", size, hidden) for n in ("gate_proj", "up_proj")]
    weights += [Weight("mlp.down_proj", "mlp", hidden, size)]
    weights += [Weight("norms", "norm", 4 * hidden, shard=Shard.REPLICATED)]
    return weights, usual is not None and bool(model.intermediate_size) and model.moe is None


def _has_plain_attention(layer: Layer) -> bool:
    names = {w.path.rpartition(".")[2] for w in layer.weights if w.part == "attention"}
    return {"q_proj", "k_proj", "v_proj", "o_proj"} <= names


def _draft_model(name: str, count: int, draft: Architecture | None) -> Speculation:
    if draft is None:
        try:
            draft = find_model(name)
        except UsageError:
            note = f"the draft model {name or 'without a name'} is not known: its memory is not counted"
            return Speculation(
                count, problems=(Problem("draft-model", note, refuses=False),), notes=(note,)
            )
    if draft.cannot_size is not None:
        note = f"cannot size the draft model {draft.name}, because {draft.cannot_size}"
        return Speculation(
            count, problems=(Problem("draft-model", note, refuses=False),), notes=(note,)
        )
    weights = list(draft.outer_weights)
    for layer, times in draft.layer_counts:
        weights += [replace(w, copies=w.copies * times) for w in layer.weights]
    specs = tuple(layer.kv for layer in draft.layers if layer.kv is not None)
    is_tied = not any(w.part == "lm_head" for w in weights)
    return Speculation(
        count, tuple(weights), specs, f"the draft model {draft.name}", 0.05, method=DRAFT_MODEL,
        shared_head=_head(draft) if is_tied else None, num_layers=len(draft.layers),
        num_active_parameters=draft.num_active_parameters,
    )  # fmt: skip


def _attending(model: Architecture) -> list[KvSpec]:
    return [
        layer.kv
        for layer in model.layers
        if layer.kv is not None and layer.kv.kind is not KvKind.STATE
    ]
