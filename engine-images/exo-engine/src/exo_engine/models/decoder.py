"""The decoder itself: token ids in, logits out, one flat batch of tokens per step.

The runner calls it; attention goes through the backend it is given. Matrices that read the same
input are kept as one (queries, keys and values; gate and up), so that each is one multiplication.

Legend: T tokens in step, N rows that need logits, E hidden size, H heads, Hkv key/value heads,
D head dim, I intermediate size, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from exo_engine.attention.base import AttentionBackend
from exo_engine.models.rope import RotaryEmbedding, rotate
from exo_engine.models.spec import DecoderSpec


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """Parameters of one layer."""

    input_norm: Tensor  # (E,)
    qkv: Tensor  # ((H + 2 Hkv) D, E)
    qkv_bias: Tensor | None
    query_norm: Tensor | None  # (D,)
    key_norm: Tensor | None  # (D,)
    output: Tensor  # (E, H D)
    output_bias: Tensor | None
    mlp_norm: Tensor  # (E,)
    gate_up: Tensor  # (2 I, E)
    gate_up_bias: Tensor | None
    down: Tensor  # (E, I)
    down_bias: Tensor | None


class Decoder:
    """A decoder-only language model with uninitialised parameters; `weights` fills them."""

    def __init__(self, spec: DecoderSpec, *, dtype: torch.dtype, device: torch.device) -> None:
        self.spec = spec
        self.dtype = dtype
        self.device = device
        self.embedding = self._empty(spec.vocab_size, spec.hidden_size)
        self.layers = [self._empty_layer() for _ in range(spec.num_layers)]
        self.final_norm = self._empty(spec.hidden_size)
        self.head = (
            self.embedding
            if spec.ties_embeddings
            else self._empty(spec.vocab_size, spec.hidden_size)
        )
        self._rotary: RotaryEmbedding | None = None

    def set_num_positions(self, num_positions: int) -> None:
        """Compute the rotary tables for sequences of up to `num_positions` tokens."""
        self._rotary = RotaryEmbedding(
            self.spec.rope, self.spec.head_dim, num_positions, self.device
        )

    def forward(self, token_ids: Tensor, positions: Tensor, attention: AttentionBackend) -> Tensor:
        """Run a step's tokens through all layers.

        Args:
            token_ids: (T,) int64.
            positions: (T,) int64, of each token in its sequence.
            attention: a backend whose `begin` has been called for this step.

        Returns:
            (T, E): final hidden states, normalised.
        """
        assert self._rotary is not None, "set_num_positions() comes first"
        eps, width = self.spec.rms_norm_eps, (self.spec.hidden_size,)
        cos, sin = self._rotary.at(positions, self.dtype)
        hidden = F.embedding(token_ids, self.embedding)
        for index, layer in enumerate(self.layers):
            normed = F.rms_norm(hidden, width, layer.input_norm, eps)
            hidden = hidden + self._attention(index, layer, normed, cos, sin, attention)
            normed = F.rms_norm(hidden, width, layer.mlp_norm, eps)
            gate, up = F.linear(normed, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
            hidden = hidden + F.linear(F.silu(gate) * up, layer.down, layer.down_bias)
        return F.rms_norm(hidden, width, self.final_norm, eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 logits (N, V) for hidden states (N, E)."""
        return F.linear(hidden, self.head).float()

    @property
    def num_bytes(self) -> int:
        """Bytes of all parameters; tied ones count once."""
        tensors = self.checkpoint_tensors().values()
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def checkpoint_tensors(self) -> dict[str, Tensor]:
        """Return, by their names in a checkpoint, views of the parameters to fill."""
        spec = self.spec
        tensors = {
            "model.embed_tokens.weight": self.embedding,
            "model.norm.weight": self.final_norm,
        }
        if not spec.ties_embeddings:
            tensors["lm_head.weight"] = self.head
        query, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        for index, layer in enumerate(self.layers):
            prefix = f"model.layers.{index}."
            views = {
                "input_layernorm.weight": layer.input_norm,
                "post_attention_layernorm.weight": layer.mlp_norm,
                "self_attn.q_norm.weight": layer.query_norm,
                "self_attn.k_norm.weight": layer.key_norm,
                "self_attn.o_proj.weight": layer.output,
                "self_attn.o_proj.bias": layer.output_bias,
                "mlp.down_proj.weight": layer.down,
                "mlp.down_proj.bias": layer.down_bias,
            }
            for suffix, fused in (("weight", layer.qkv), ("bias", layer.qkv_bias)):
                if fused is not None:
                    parts = torch.split(fused, [query, kv, kv])
                    for name, part in zip("qkv", parts, strict=True):
                        views[f"self_attn.{name}_proj.{suffix}"] = part
            for suffix, fused in (("weight", layer.gate_up), ("bias", layer.gate_up_bias)):
                if fused is not None:
                    views[f"mlp.gate_proj.{suffix}"], views[f"mlp.up_proj.{suffix}"] = fused.chunk(
                        2
                    )
            tensors.update(
                (prefix + name, view) for name, view in views.items() if view is not None
            )
        return tensors

    def _attention(
        self,
        index: int,
        layer: DecoderLayer,
        normed: Tensor,
        cos: Tensor,
        sin: Tensor,
        attention: AttentionBackend,
    ) -> Tensor:
        spec = self.spec
        heads = F.linear(normed, layer.qkv, layer.qkv_bias).view(len(normed), -1, spec.head_dim)
        queries, keys, values = torch.split(
            heads, [spec.num_heads, spec.num_kv_heads, spec.num_kv_heads], dim=1
        )
        if layer.query_norm is not None and layer.key_norm is not None:
            queries = F.rms_norm(queries, (spec.head_dim,), layer.query_norm, spec.rms_norm_eps)
            keys = F.rms_norm(keys, (spec.head_dim,), layer.key_norm, spec.rms_norm_eps)
        queries, keys = rotate(queries, cos, sin), rotate(keys, cos, sin)
        attended = attention.attend(index, queries, keys, values)
        return F.linear(attended.flatten(1), layer.output, layer.output_bias)

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def _empty_layer(self) -> DecoderLayer:
        spec = self.spec
        query, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        qkv, hidden, inner = query + 2 * kv, spec.hidden_size, spec.intermediate_size
        return DecoderLayer(
            input_norm=self._empty(hidden),
            qkv=self._empty(qkv, hidden),
            qkv_bias=self._empty(qkv) if spec.has_qkv_bias else None,
            query_norm=self._empty(spec.head_dim) if spec.has_qk_norm else None,
            key_norm=self._empty(spec.head_dim) if spec.has_qk_norm else None,
            output=self._empty(hidden, query),
            output_bias=self._empty(hidden) if spec.has_output_bias else None,
            mlp_norm=self._empty(hidden),
            gate_up=self._empty(2 * inner, hidden),
            gate_up_bias=self._empty(2 * inner) if spec.has_mlp_bias else None,
            down=self._empty(hidden, inner),
            down_bias=self._empty(hidden) if spec.has_mlp_bias else None,
        )
