"""What `--speculative-config` adds: draft weights and draft caches.

`planning.py` calls `read_speculation`. N-gram needs nothing; prediction layers (MTP) come with the target
checkpoint; EAGLE heads are one decoder layer and a joining projection; a draft model is a model of its
own, given by the caller or found in the bundled catalogue.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from exo_inference.errors import UsageError
from exo_inference.planner.architecture import Architecture
from exo_inference.planner.catalog_models import find_model
from exo_inference.planner.memory import Component, Ranks, draft_component
from exo_inference.planner.parameters import EngineParameters
from exo_inference.planner.shapes import KvKind, KvSpec, Shard, Weight
from exo_inference.planner.verdict import Problem


@dataclass(frozen=True, slots=True)
class Speculation:
    """The settled form; empty where nothing is drafted."""

    num_tokens: int = 0
    weights: tuple[Weight, ...] = ()
    kv_specs: tuple[KvSpec, ...] = ()
    source: str = ""
    error: float = 0.05
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()

    def component(self, ranks: Ranks, dtype_bytes: int) -> Component:
        """Return the memory of the draft's weights on one rank."""
        return draft_component(self.weights, ranks, dtype_bytes, self.source, self.error)


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
    if "ngram" in method or method in ("suffix", "medusa_none"):
        return Speculation(count)
    if "mtp" in method:
        return _prediction_layers(model, count)
    if method.startswith("eagle"):
        return _eagle(model, count)
    return _draft_model(str(config.get("model") or ""), count, draft)


def _prediction_layers(model: Architecture, count: int) -> Speculation:
    if not model.mtp_weights:
        detail = f"{model.name} has no multi-token-prediction layers"
        return Speculation(count, problems=(Problem("speculative-config", detail),))
    specs = [_uncompressed(spec) for spec in _attending(model)[-1:]] * model.num_mtp_layers
    source = f"{model.num_mtp_layers} prediction layers, built like the model's last"
    return Speculation(count, model.mtp_weights, tuple(specs), source, 0.15)


def _uncompressed(spec: KvSpec) -> KvSpec:
    """Return the cache of a prediction layer: DeepSeek-V4's has the window alone."""
    if spec.kind is not KvKind.COMPRESSED:
        return spec
    return replace(spec, compress_ratio=0, index_bytes=0, index_elements=0)


def _eagle(model: Architecture, count: int) -> Speculation:
    """One dense decoder layer and a projection of three hidden states (EAGLE-3, arXiv 2503.01840)."""
    hidden = model.hidden_size
    like = next(
        (layer for layer in reversed(model.layers) if layer.kv and not layer.uses_moe), None
    )
    weights = [replace(w, format=None) for w in like.weights] if like is not None else []
    weights.append(Weight("fc", "mtp", hidden, 3 * hidden, shard=Shard.REPLICATED))
    specs = tuple(_attending(model)[-1:])
    return Speculation(
        count, tuple(weights), specs, "an EAGLE head: one decoder layer and a projection", 0.5
    )


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
    return Speculation(count, tuple(weights), specs, f"the draft model {draft.name}", 0.05)


def _attending(model: Architecture) -> list[KvSpec]:
    return [
        layer.kv
        for layer in model.layers
        if layer.kv is not None and layer.kv.kind is not KvKind.STATE
    ]
