"""The decoder itself: token ids in, logits out, one flat batch of tokens per step.

The runner calls it; attention goes through the backend it is given. It is written over
`exo_engine.layers` and knows no weight format and no file.

Legend: T tokens in step, N rows that need logits, E hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from exo_engine import pulse
from exo_engine.attention.base import AttentionBackend, Rotation
from exo_engine.kernels.library import LinearCall
from exo_engine.kernels.stack import StackLayer
from exo_engine.layers import (
    Attention,
    Context,
    Embedding,
    Experts,
    GatedMLP,
    Layer,
    Linear,
    RMSNorm,
)
from exo_engine.layers.attention import Sinks
from exo_engine.layers.base import Ranks
from exo_engine.layers.delta_net import GatedDeltaNet
from exo_engine.layers.embedding import make_head
from exo_engine.layers.latent import LatentAttention
from exo_engine.layers.layer_inputs import LayerInput, LayerInputs, Scale
from exo_engine.layers.rope import RotaryEmbedding
from exo_engine.models.spec import DecoderSpec, MixtureSpec, RopeSpec
from exo_engine.weight_formats import PLAIN, load_format


class SelfAttention:
    """Grouped-query attention, with the linear layers around it."""

    def __init__(self, context: Context, spec: DecoderSpec, index: int) -> None:
        name = f"model.layers.{index}.self_attn"
        heads, size = spec.heads(index), spec.heads(index).head_dim
        is_shared = spec.kv_layer(index) is not None
        norms = {}
        if spec.has_qk_norm:
            norms["query_norm"] = _norm(context, spec, f"{name}.q_norm", size)
            if not is_shared:
                norms["key_norm"] = _norm(context, spec, f"{name}.k_norm", size)
        query, kv = spec.num_heads * size, heads.num_kv_heads * size
        parts = {"q_proj": 2 * query if spec.has_output_gate else query}
        if not is_shared:
            parts |= {"k_proj": kv, "v_proj": kv} if heads.has_values else {"k_proj": kv}
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
            0 if is_shared else heads.num_kv_heads,
            size,
            has_gate=spec.has_output_gate,
            has_values=heads.has_values,
            value_norm_eps=spec.rms_norm_eps if spec.has_value_norm else None,
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
        heads = spec.heads(index)
        self.rotary = heads.rope, heads.num_turned
        """What turns its heads, and how many numbers of each."""
        self.input_norm = _norm(context, spec, f"{prefix}.input_layernorm")
        self.mixer = _make_mixer(context, spec, index)
        self.post_norms: tuple[RMSNorm, RMSNorm] | None = None
        name = "post_attention_layernorm"
        if spec.has_post_norms:
            after_mlp = _norm(context, spec, f"{prefix}.post_feedforward_layernorm")
            self.post_norms = _norm(context, spec, f"{prefix}.{name}"), after_mlp
            name = "pre_feedforward_layernorm"
        self.mlp_norm = _norm(context, spec, f"{prefix}.{name}")
        self.mlp = _make_mlp(context, spec, index)
        self._inputs = self._scale = None
        if spec.layer_inputs is not None:
            self._inputs = LayerInput(context, prefix, spec, spec.layer_inputs.size)
        if spec.has_layer_scale:
            self._scale = Scale(context, f"{prefix}.layer_scalar")

    def __call__(
        self,
        hidden: Tensor,
        update: Tensor | None,
        rotation: Rotation,
        backend: AttentionBackend,
        inputs: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return hidden states (T, E) and what is to be added to them; the layer got them so, too.

        `inputs` (T, numbers) are the layer's own, where it has any.
        """
        hidden, normalised = self.input_norm.add(hidden, update)
        update = self.mixer(normalised, rotation, backend)
        if self.post_norms is not None:
            update = self.post_norms[0](update)
        hidden, normalised = self.mlp_norm.add(hidden, update)
        update = self.mlp(normalised)
        if self.post_norms is not None:
            update = self.post_norms[1](update)
        if self._inputs is not None and inputs is not None:
            hidden = hidden + update
            update = self._inputs(hidden, inputs)
        return (hidden, update) if self._scale is None else self._scale(hidden, update)

    def stacked(self) -> StackLayer | None:
        """Return the layer as the CPU kernels compute it among others; None where they cannot."""
        mixer, mlp, calls = self.mixer, self.mlp, self._mixer_calls()
        if calls is None or not isinstance(mixer, SelfAttention):
            return None
        if not isinstance(mlp, GatedMLP) or mlp.activation != "silu":
            return None
        for each in (mlp.gate_up, mlp.down):
            if (call := each.kernel_call()) is None:
                return None
            calls.append(call)
        head_norms, head_eps = mixer.attention.head_norms()
        norms = self.input_norm.weight, self.mlp_norm.weight
        return StackLayer(self.index, *norms, self.input_norm.eps, head_norms, head_eps, *calls)

    @property
    def is_computed_by_kernels(self) -> bool:
        """Whether the CPU kernels compute all that is added up, in one call with other layers or singly."""
        if isinstance(self.mlp, Experts):
            return self._mixer_calls() is not None and self.mlp.is_computed_by_kernels
        return self.stacked() is not None

    def _mixer_calls(self) -> list[LinearCall] | None:
        """Return the products around the kernels' attention; None where the layer has more, or something else."""
        mixer = self.mixer
        if not isinstance(mixer, SelfAttention) or self.post_norms or self._scale or self._inputs:
            return None
        if not mixer.attention.can_be_merged:
            return None
        merged, output = mixer.qkv.kernel_call(), mixer.output.kernel_call()
        return None if merged is None or output is None else [merged, output]


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


def _norm(context: Context, spec: DecoderSpec, name: str, size: int | None = None) -> RMSNorm:
    size = spec.hidden_size if size is None else size
    return RMSNorm(context, name, size, spec.rms_norm_eps, offset=spec.norm_offset)


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
            spec.intermediate_size * (spec.shared_width if spec.kv_layer(index) is not None else 1),
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
        is_fixed: bool = False,
    ) -> None:
        context = Context(load_format(weight_format), dtype, device, is_fixed=is_fixed)
        if ranks is not None:
            context = replace(context, rank=ranks.rank, num_ranks=ranks.size, add_up=ranks.add_up)
        self.spec = spec
        self.dtype = dtype
        self.device = device
        self.weighted_layers: list[Layer] = context.layers
        """Every layer with weights, in the order of the computation."""
        make = make_head if spec.ties_embeddings and spec.has_head else Embedding
        self.embedding = make(context, "model.embed_tokens", spec.vocab_size, spec.hidden_size)
        self.layers = [DecoderLayer(context, spec, index) for index in range(spec.num_layers)]
        self.final_norm = _norm(context, spec, "model.norm")
        self.head = (
            self.embedding
            if spec.ties_embeddings
            else make_head(context, "lm_head", spec.vocab_size, spec.hidden_size)
        )
        self._layer_inputs = None
        if spec.layer_inputs is not None:
            self._layer_inputs = LayerInputs(context, spec, spec.layer_inputs)
        self._rotary: dict[tuple[RopeSpec, int], RotaryEmbedding] = {}
        self.note_layer: Callable[[], None] = pulse.OWN.count_layer
        """Called behind each layer that is computed singly."""

    def set_num_positions(self, num_positions: int) -> None:
        """Compute the rotary tables for sequences of up to `num_positions` tokens."""
        self._rotary = {
            (rope, size): RotaryEmbedding(rope, size, num_positions, self.device)
            for rope, size in {layer.rotary for layer in self.layers}
        }

    def position_bytes(self, num_positions: int) -> int:
        """Return what `set_num_positions` takes: two tables of float32, and as much again while they are made."""
        sizes = {layer.rotary for layer in self.layers}
        return sum(4 * 4 * num_positions * (size // 2) for _, size in sizes)

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
        rotations = {key: table.at(positions) for key, table in self._rotary.items()}
        hidden = self.embedding.look_up(token_ids)
        if self.spec.embedding_scale != 1.0:
            hidden = hidden * torch.tensor(self.spec.embedding_scale, dtype=self.dtype)
        update: Tensor | None = None
        if self._stack is not None:
            rotation = rotations[self.layers[0].rotary]
            update = attention.run_layers(self._stack, hidden, rotation)
        if update is None:
            inputs = None
            if self._layer_inputs is not None:
                inputs = self._layer_inputs(token_ids, hidden)
            for index, layer in enumerate(self.layers):
                own = None if inputs is None else inputs[:, index]
                rotation = rotations[layer.rotary]
                hidden, update = layer(hidden, update, rotation, attention, own)
                self.note_layer()
        return self.final_norm.add(hidden, update)[1]

    def logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """Return float32 logits (N, V) for hidden states (N, E); in `out`, if it is given."""
        found, cap = self.head.project(hidden), self.spec.logit_cap
        logits = found.float() if out is None else out.copy_(found)
        return logits if cap is None else torch.mul(torch.tanh(logits / cap), cap, out=out)

    @property
    def is_computed_by_kernels(self) -> bool:
        """Whether the CPU kernels compute all layers."""
        is_one_rotation = len({layer.rotary for layer in self.layers}) == 1
        return is_one_rotation and all(layer.is_computed_by_kernels for layer in self.layers)

    @property
    def why_not_fixed(self) -> str:
        """Why a token's bits depend on the tokens beside it, on a GPU; empty where they do not."""
        names = {type(each).__name__ for each in self.weighted_layers if not each.keeps_bits}
        return ", ".join(sorted(names))

    @cached_property
    def _stack(self) -> list[StackLayer] | None:
        """All layers as the CPU kernels take them in one call; None where one is beyond them."""
        found = [layer.stacked() for layer in self.layers]
        if len({layer.rotary for layer in self.layers}) > 1:  # it turns all layers' heads alike
            return None
        return None if None in found else [layer for layer in found if layer is not None]

    @property
    def num_bytes(self) -> int:
        """Bytes of all weights; tied ones count once."""
        return sum(layer.num_bytes for layer in self.weighted_layers)
