"""The decoder itself: token ids in, logits out, one flat batch of tokens per step.

The runner calls it; attention goes through the backend it is given. It is written over
`exo_engine.layers` and knows no weight format and no file.

Legend: T tokens in step, N rows that need logits, E hidden size, V vocabulary.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from exo_engine.attention.base import AttentionBackend, Rotation
from exo_engine.kernels.stack import StackLayer
from exo_engine.layers import Attention, Context, Embedding, Experts, GatedMLP, Layer, Linear, Norm
from exo_engine.layers.attention import Sinks
from exo_engine.layers.base import Ranks
from exo_engine.layers.delta_net import GatedDeltaNet
from exo_engine.layers.latent import LatentAttention
from exo_engine.layers.rope import RotaryEmbedding
from exo_engine.models.spec import DecoderSpec, MixtureSpec, RopeSpec
from exo_engine.weight_formats import PLAIN, load_format


class SelfAttention:
    """Grouped-query attention, with the linear layers around it."""

    def __init__(self, context: Context, spec: DecoderSpec, index: int) -> None:
        name = f"model.layers.{index}.self_attn"
        query, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        norms = {}
        if spec.has_qk_norm:
            norms["query_norm"] = _norm(context, spec, f"{name}.q_norm", spec.head_dim)
            norms["key_norm"] = _norm(context, spec, f"{name}.k_norm", spec.head_dim)
        num_queries = 2 * query if spec.has_output_gate else query
        parts = {"q_proj": num_queries, "k_proj": kv, "v_proj": kv}
        self.qkv = Linear.column(
            context,
            {f"{name}.{part}": size for part, size in parts.items()},
            spec.hidden_size,
            has_bias=spec.has_qkv_bias,
        )
        self.attention = Attention(
            context,
            index,
            spec.num_heads,
            spec.num_kv_heads,
            spec.head_dim,
            has_gate=spec.has_output_gate,
            sinks=Sinks(context, f"{name}.sinks", spec.num_heads) if spec.has_sinks else None,
            **norms,
        )
        self.output = Linear.row(
            context, f"{name}.o_proj", query, spec.hidden_size, has_bias=spec.has_output_bias
        )

    def __call__(self, hidden: Tensor, rotation: Rotation, backend: AttentionBackend) -> Tensor:
        """Attend a step's tokens (T, E): (T, E)."""
        return self.output(self.attention(self.qkv(hidden), rotation, backend))


class DecoderLayer:
    """What mixes tokens and what computes each alone, both behind a norm and added to what came in."""

    def __init__(self, context: Context, spec: DecoderSpec, index: int) -> None:
        prefix = f"model.layers.{index}"
        self.index = index
        self.rope = spec.rope_of(index)
        self.input_norm = _norm(context, spec, f"{prefix}.input_layernorm")
        self.mixer = _make_mixer(context, spec, index)
        self.post_norms: tuple[Norm, Norm] | None = None
        name = "post_attention_layernorm"
        if spec.has_post_norms:
            after_mlp = _norm(context, spec, f"{prefix}.post_feedforward_layernorm")
            self.post_norms = _norm(context, spec, f"{prefix}.{name}"), after_mlp
            name = "pre_feedforward_layernorm"
        self.mlp_norm = _norm(context, spec, f"{prefix}.{name}")
        self.mlp = _make_mlp(context, spec, index)

    def __call__(
        self,
        hidden: Tensor,
        update: Tensor | None,
        rotation: Rotation,
        backend: AttentionBackend,
    ) -> tuple[Tensor, Tensor]:
        """Return hidden states (T, E) and what is to be added to them; the layer got them so, too."""
        hidden, normalised = self.input_norm.add(hidden, update)
        update = self.mixer(normalised, rotation, backend)
        if self.post_norms is not None:
            update = self.post_norms[0](update)
        hidden, normalised = self.mlp_norm.add(hidden, update)
        update = self.mlp(normalised)
        return hidden, update if self.post_norms is None else self.post_norms[1](update)

    def stacked(self) -> StackLayer | None:
        """Return the layer as the CPU kernels compute it among others; None where they cannot."""
        mixer, mlp = self.mixer, self.mlp
        if not isinstance(mixer, SelfAttention) or self.post_norms:
            return None
        if not mixer.attention.can_be_merged:
            return None
        if not isinstance(mlp, GatedMLP) or mlp.activation != "silu":
            return None
        products = (mixer.qkv, mixer.output, mlp.gate_up, mlp.down)
        calls = [call for each in products if (call := each.kernel_call()) is not None]
        if len(calls) < len(products):
            return None
        head_norms, head_eps = mixer.attention.head_norms()
        norms = self.input_norm.weight, self.mlp_norm.weight
        return StackLayer(self.index, *norms, self.input_norm.eps, head_norms, head_eps, *calls)


class SharedMixture:
    """A mixture of experts, and beside it an MLP that computes every token."""

    def __init__(self, context: Context, name: str, hidden_size: int, mixture: MixtureSpec) -> None:
        self.experts = _make_experts(context, name, hidden_size, mixture)
        part = f"{name}.shared_expert" if mixture.gates_shared else f"{name}.shared_experts"
        self.shared = GatedMLP(context, part, hidden_size, mixture.shared_size)
        self.gate = None
        if mixture.gates_shared:
            plain = replace(context, weight_format=load_format(PLAIN), rank=0, num_ranks=1)
            self.gate = Linear.column(plain, {f"{name}.shared_expert_gate": 1}, hidden_size)

    def __call__(self, hidden: Tensor) -> Tensor:
        """Return (T, E) for hidden states (T, E)."""
        shared = self.shared(hidden)
        if self.gate is not None:
            shared = shared * self.gate(hidden).sigmoid()
        return self.experts(hidden) + shared


def _norm(context: Context, spec: DecoderSpec, name: str, size: int | None = None) -> Norm:
    size = spec.hidden_size if size is None else size
    return Norm(context, name, size, spec.rms_norm_eps, offset=spec.norm_offset)


def _make_mixer(
    context: Context, spec: DecoderSpec, index: int
) -> SelfAttention | LatentAttention | GatedDeltaNet:
    name = f"model.layers.{index}"
    if spec.latent is not None:
        return LatentAttention(
            context, f"{name}.self_attn", index, spec.hidden_size, spec.num_heads, spec.latent
        )
    if spec.delta is not None and index in spec.delta.layers:
        return GatedDeltaNet(
            context, f"{name}.linear_attn", index, spec.hidden_size, spec.delta, spec.rms_norm_eps
        )
    return SelfAttention(context, spec, index)


def _make_mlp(
    context: Context, spec: DecoderSpec, index: int
) -> GatedMLP | Experts | SharedMixture:
    name, mixture = f"model.layers.{index}.mlp", spec.mixture
    if mixture is None or index not in mixture.layers:
        return GatedMLP(
            context,
            name,
            spec.hidden_size,
            spec.intermediate_size,
            has_bias=spec.has_mlp_bias,
            activation=spec.activation,
        )
    make = SharedMixture if mixture.shared_size else _make_experts
    return make(context, name, spec.hidden_size, mixture)


def _make_experts(context: Context, name: str, hidden_size: int, mixture: MixtureSpec) -> Experts:
    return Experts(
        context,
        name,
        hidden_size,
        mixture.intermediate_size,
        num_experts=mixture.num_experts,
        num_chosen=mixture.num_chosen,
        normalizes=mixture.normalizes,
        routing=mixture.routing,
        clamp=mixture.clamp,
        is_transposed=mixture.is_transposed,
    )


class Decoder:
    """A decoder-only language model with uninitialised weights; `weights` fills them."""

    def __init__(
        self,
        spec: DecoderSpec,
        *,
        dtype: torch.dtype,
        device: torch.device,
        weight_format: str = PLAIN,
        ranks: Ranks | None = None,
    ) -> None:
        context = Context(load_format(weight_format), dtype, device)
        if ranks is not None:
            context = replace(context, rank=ranks.rank, num_ranks=ranks.size, add_up=ranks.add_up)
        self.spec = spec
        self.dtype = dtype
        self.device = device
        self.weighted_layers: list[Layer] = context.layers
        """Every layer with weights, in the order of the computation."""
        self.embedding = Embedding(context, "model.embed_tokens", spec.vocab_size, spec.hidden_size)
        self.layers = [DecoderLayer(context, spec, index) for index in range(spec.num_layers)]
        self.final_norm = _norm(context, spec, "model.norm")
        self.head = (
            self.embedding
            if spec.ties_embeddings
            else Embedding(context, "lm_head", spec.vocab_size, spec.hidden_size)
        )
        self._rotary: dict[RopeSpec, RotaryEmbedding] = {}

    def set_num_positions(self, num_positions: int) -> None:
        """Compute the rotary tables for sequences of up to `num_positions` tokens."""
        self._rotary = {
            rope: RotaryEmbedding(rope, self.spec.num_turned, num_positions, self.device)
            for rope in {layer.rope for layer in self.layers}
        }

    def forward(self, token_ids: Tensor, positions: Tensor, attention: AttentionBackend) -> Tensor:
        """Run a step's tokens through all layers.

        Args:
            token_ids: (T,) integers.
            positions: (T,) int32, of each token in its sequence.
            attention: a backend whose `begin` has been called for this step.

        Returns:
            (T, E): final hidden states, normalised.
        """
        assert self._rotary, "set_num_positions() comes first"
        rotations = {rope: table.at(positions) for rope, table in self._rotary.items()}
        hidden = self.embedding.look_up(token_ids)
        if self.spec.embedding_scale != 1.0:
            hidden = hidden * torch.tensor(self.spec.embedding_scale, dtype=self.dtype)
        update: Tensor | None = None
        if self._stack is not None:
            update = attention.run_layers(self._stack, hidden, rotations[self.spec.rope])
        if update is None:
            for layer in self.layers:
                hidden, update = layer(hidden, update, rotations[layer.rope], attention)
        return self.final_norm.add(hidden, update)[1]

    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 logits (N, V) for hidden states (N, E)."""
        logits, cap = self.head.project(hidden), self.spec.logit_cap
        return logits if cap is None else cap * torch.tanh(logits / cap)

    @property
    def is_computed_by_kernels(self) -> bool:
        """Whether the CPU kernels compute all layers."""
        return self._stack is not None

    @cached_property
    def _stack(self) -> list[StackLayer] | None:
        """All layers as the CPU kernels take them in one call; None where one is beyond them."""
        found = [layer.stacked() for layer in self.layers]
        if len({layer.rope for layer in self.layers}) > 1:  # it turns all layers' heads alike
            return None
        return None if None in found else [layer for layer in found if layer is not None]

    @property
    def num_bytes(self) -> int:
        """Bytes of all weights; tied ones count once."""
        return sum(layer.num_bytes for layer in self.weighted_layers)
