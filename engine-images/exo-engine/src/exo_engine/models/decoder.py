"""The decoder itself: token ids in, logits out, one flat batch of tokens per step.

The runner calls it; attention goes through the backend it is given. It is written over
`exo_engine.layers` and knows no weight format and no file.

Legend: T tokens in step, N rows that need logits, E hidden size, V vocabulary.
"""

from __future__ import annotations

from functools import cached_property, partial

import torch
from torch import Tensor

from exo_engine.attention.base import AttentionBackend, Rotation
from exo_engine.kernels.stack import StackLayer
from exo_engine.layers import Attention, Context, Embedding, Experts, GatedMLP, Layer, Linear, Norm
from exo_engine.layers.delta_net import GatedDeltaNet
from exo_engine.layers.rope import RotaryEmbedding
from exo_engine.models.spec import DecoderSpec
from exo_engine.weight_formats import PLAIN, load_format


class DecoderLayer:
    """Attention and a gated MLP or a mixture of experts, each behind a norm and added to what came in."""

    def __init__(self, context: Context, spec: DecoderSpec, index: int) -> None:
        prefix = f"model.layers.{index}"
        attention = f"{prefix}.self_attn"
        hidden = spec.hidden_size
        query, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        norm = partial(Norm, context, eps=spec.rms_norm_eps, offset=spec.norm_offset)
        norms = {}
        if spec.has_qk_norm:
            norms["query_norm"] = norm(f"{attention}.q_norm", spec.head_dim)
            norms["key_norm"] = norm(f"{attention}.k_norm", spec.head_dim)
        self.index = index
        self.input_norm = norm(f"{prefix}.input_layernorm", hidden)
        num_queries = 2 * query if spec.has_output_gate else query
        parts = {"q_proj": num_queries, "k_proj": kv, "v_proj": kv}
        self.qkv = Linear.column(
            context,
            {f"{attention}.{name}": size for name, size in parts.items()},
            hidden,
            has_bias=spec.has_qkv_bias,
        )
        self.attention = Attention(
            context,
            index,
            spec.num_heads,
            spec.num_kv_heads,
            spec.head_dim,
            has_gate=spec.has_output_gate,
            **norms,
        )
        self.output = Linear.row(
            context, f"{attention}.o_proj", query, hidden, has_bias=spec.has_output_bias
        )
        self.mlp_norm = norm(f"{prefix}.post_attention_layernorm", hidden)
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
        update = self.output(self.attention(self.qkv(normalised), rotation, backend))
        hidden, normalised = self.mlp_norm.add(hidden, update)
        return hidden, self.mlp(normalised)

    def stacked(self) -> StackLayer | None:
        """Return the layer as the CPU kernels compute it among others; None where they cannot."""
        if not isinstance(self.mlp, GatedMLP) or self.attention.has_gate:
            return None
        products = (self.qkv, self.output, self.mlp.gate_up, self.mlp.down)
        calls = [call for each in products if (call := each.kernel_call()) is not None]
        if len(calls) < len(products):
            return None
        head_norms, head_eps = self.attention.head_norms()
        norms = self.input_norm.weight, self.mlp_norm.weight
        return StackLayer(self.index, *norms, self.input_norm.eps, head_norms, head_eps, *calls)


class DeltaLayer:
    """As `DecoderLayer`, with a Gated DeltaNet in place of attention."""

    def __init__(self, context: Context, spec: DecoderSpec, index: int) -> None:
        assert spec.delta is not None, "it says which layers these are"
        prefix, hidden = f"model.layers.{index}", spec.hidden_size
        norm = partial(Norm, context, eps=spec.rms_norm_eps, offset=spec.norm_offset)
        self.input_norm = norm(f"{prefix}.input_layernorm", hidden)
        self.mixer = GatedDeltaNet(
            context, f"{prefix}.linear_attn", index, hidden, spec.delta, spec.rms_norm_eps
        )
        self.mlp_norm = norm(f"{prefix}.post_attention_layernorm", hidden)
        self.mlp = _make_mlp(context, spec, index)

    def __call__(
        self,
        hidden: Tensor,
        update: Tensor | None,
        rotation: Rotation,
        backend: AttentionBackend,
    ) -> tuple[Tensor, Tensor]:
        """As `DecoderLayer.__call__`."""
        del rotation  # positions are in the order of the states
        hidden, normalised = self.input_norm.add(hidden, update)
        update = self.mixer(normalised, backend.states)
        hidden, normalised = self.mlp_norm.add(hidden, update)
        return hidden, self.mlp(normalised)


def _make_layer(context: Context, spec: DecoderSpec, index: int) -> DecoderLayer | DeltaLayer:
    is_delta = spec.delta is not None and index in spec.delta.layers
    return (DeltaLayer if is_delta else DecoderLayer)(context, spec, index)


def _make_mlp(context: Context, spec: DecoderSpec, index: int) -> GatedMLP | Experts:
    name, mixture = f"model.layers.{index}.mlp", spec.mixture
    if mixture is None or index not in mixture.layers:
        return GatedMLP(
            context, name, spec.hidden_size, spec.intermediate_size, has_bias=spec.has_mlp_bias
        )
    return Experts(
        context,
        name,
        spec.hidden_size,
        mixture.intermediate_size,
        num_experts=mixture.num_experts,
        num_chosen=mixture.num_chosen,
        normalizes=mixture.normalizes,
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
    ) -> None:
        context = Context(load_format(weight_format), dtype, device)
        self.spec = spec
        self.dtype = dtype
        self.device = device
        self.weighted_layers: list[Layer] = context.layers
        """Every layer with weights, in the order of the computation."""
        self.embedding = Embedding(context, "model.embed_tokens", spec.vocab_size, spec.hidden_size)
        self.layers = [_make_layer(context, spec, index) for index in range(spec.num_layers)]
        self.final_norm = Norm(
            context, "model.norm", spec.hidden_size, spec.rms_norm_eps, offset=spec.norm_offset
        )
        self.head = (
            self.embedding
            if spec.ties_embeddings
            else Embedding(context, "lm_head", spec.vocab_size, spec.hidden_size)
        )
        self._rotary: RotaryEmbedding | None = None

    def set_num_positions(self, num_positions: int) -> None:
        """Compute the rotary tables for sequences of up to `num_positions` tokens."""
        turned = int(self.spec.head_dim * self.spec.rope.rotary_part)
        self._rotary = RotaryEmbedding(self.spec.rope, turned, num_positions, self.device)

    def forward(self, token_ids: Tensor, positions: Tensor, attention: AttentionBackend) -> Tensor:
        """Run a step's tokens through all layers.

        Args:
            token_ids: (T,) integers.
            positions: (T,) int32, of each token in its sequence.
            attention: a backend whose `begin` has been called for this step.

        Returns:
            (T, E): final hidden states, normalised.
        """
        assert self._rotary is not None, "set_num_positions() comes first"
        rotation = self._rotary.at(positions)
        hidden = self.embedding.look_up(token_ids)
        update: Tensor | None = None
        if self._stack is not None:
            update = attention.run_layers(self._stack, hidden, rotation)
        if update is None:
            for layer in self.layers:
                hidden, update = layer(hidden, update, rotation, attention)
        return self.final_norm.add(hidden, update)[1]

    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 logits (N, V) for hidden states (N, E)."""
        return self.head.project(hidden)

    @cached_property
    def _stack(self) -> list[StackLayer] | None:
        """All layers as the CPU kernels take them in one call; None where one is beyond them."""
        found = [
            layer.stacked() if isinstance(layer, DecoderLayer) else None for layer in self.layers
        ]
        return None if None in found else [layer for layer in found if layer is not None]

    @property
    def num_bytes(self) -> int:
        """Bytes of all weights; tied ones count once."""
        return sum(layer.num_bytes for layer in self.weighted_layers)
