"""Multi-head latent attention (DeepSeek-AI 2024, DeepSeek-V2 §2.1): one small vector per token is cached.

Keys and values of all heads are linear in that vector, the latent. So the matrix that makes keys is
applied to the queries instead, and the one that makes values to what attention gives: to the cache it
is attention with one key/value head, whose values are the latent and whose keys have a turned part
beside it.

Legend: T tokens in step, E hidden size, H heads, R numbers of the latent.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from exo_engine.attention.base import AttentionBackend, Rotation
from exo_engine.layers.base import Context, Layer, Slot
from exo_engine.layers.linear import Linear
from exo_engine.layers.rms_norm import RMSNorm
from exo_engine.layers.rope import rotate
from exo_engine.models.spec import LatentSpec
from exo_engine.weight_formats.base import Stored, is_for_triton

_NORM_EPS = 1e-6


class _Expansion(Layer):
    """From a latent to plain keys and values of this rank's heads; in plain numbers, as it is split.

    Both ways back are products of each head's own matrix.
    """

    def __init__(self, context: Context, name: str, num_heads: int, spec: LatentSpec) -> None:
        super().__init__(context)
        self._heads = context.share(num_heads)
        self._plain_dim = spec.plain_dim
        size = spec.plain_dim + spec.value_dim
        self.keeps_bits = context.is_fixed and is_for_triton(context.device)
        self.weight = context.empty(self._heads.stop - self._heads.start, size, spec.num_latent)
        stored = Stored((num_heads * size, spec.num_latent))
        self.slots[f"{name}.weight"] = Slot(stored, self._load)

    def absorb(self, plain: Tensor) -> Tensor:
        """Return (T, H, R), whose products with latents are those of queries (T, H, plain dim) with keys."""
        return self._multiply(plain, self.weight[:, : self._plain_dim])

    def expand(self, latents: Tensor) -> Tensor:
        """Return the values (T, H, value dim) of what each head has of latents: (T, H, R)."""
        return self._multiply(latents, self.weight[:, self._plain_dim :].transpose(1, 2))

    def _multiply(self, inputs: Tensor, weights: Tensor) -> Tensor:
        """Return inputs (T, H, K) times weights (H, K, N): (T, H, N)."""
        if self.keeps_bits:
            from exo_engine.kernels.triton import fixed

            return fixed.multiply_heads(inputs, weights)
        return torch.einsum("thk,hkn->thn", inputs, weights)

    def _load(self, tensor: Tensor) -> None:
        self.weight.copy_(tensor.view(-1, *self.weight.shape[1:])[self._heads])

    @property
    def num_bytes(self) -> int:
        """See `Layer.num_bytes`."""
        return self.weight.nbytes


class LatentAttention:
    """One layer's, with the linear layers around it.

    Args:
        context: what the model is made with.
        name: that the names of its tensors begin with.
        index: of the layer, by which its cache is known.
        hidden_size: E.
        num_heads: H, of the whole model.
        spec: its sizes.
    """

    def __init__(
        self,
        context: Context,
        name: str,
        index: int,
        hidden_size: int,
        num_heads: int,
        spec: LatentSpec,
    ) -> None:
        whole = replace(context, rank=0, num_ranks=1)  # every rank has the latents
        num_queries = num_heads * (spec.plain_dim + spec.turned_dim)
        self._query_norm = None
        if spec.query_rank is None:
            self._query = Linear.column(context, {f"{name}.q_proj": num_queries}, hidden_size)
        else:
            parts = {f"{name}.q_a_proj": spec.query_rank}
            self._query_latent = Linear.column(whole, parts, hidden_size)
            self._query_norm = RMSNorm(context, f"{name}.q_a_layernorm", spec.query_rank, _NORM_EPS)
            parts = {f"{name}.q_b_proj": num_queries}
            self._query = Linear.column(context, parts, spec.query_rank)
        parts = {f"{name}.kv_a_proj_with_mqa": spec.num_latent + spec.turned_dim}
        self._latent = Linear.column(whole, parts, hidden_size)
        self._latent_norm = RMSNorm(context, f"{name}.kv_a_layernorm", spec.num_latent, _NORM_EPS)
        self._expansion = _Expansion(context, f"{name}.kv_b_proj", num_heads, spec)
        values = num_heads * spec.value_dim
        self._output = Linear.row(context, f"{name}.o_proj", values, hidden_size)
        self._index = index
        self._spec = spec

    def __call__(self, hidden: Tensor, rotation: Rotation, backend: AttentionBackend) -> Tensor:
        """Attend a step's tokens (T, E): (T, E)."""
        spec = self._spec
        queries = self._queries(hidden).view(len(hidden), -1, spec.plain_dim + spec.turned_dim)
        plain, turned = torch.split(queries, [spec.plain_dim, spec.turned_dim], dim=-1)
        sizes = [spec.num_latent, spec.turned_dim]
        latents, key_part = torch.split(self._latent(hidden), sizes, dim=-1)
        latents = self._latent_norm(latents).unsqueeze(1)
        keys = torch.cat((latents, self._turn(key_part.unsqueeze(1), rotation)), dim=-1)
        queries = torch.cat((self._expansion.absorb(plain), self._turn(turned, rotation)), dim=-1)
        attended = backend.attend(self._index, queries, keys, latents)
        return self._output(self._expansion.expand(attended).flatten(1))

    def _queries(self, hidden: Tensor) -> Tensor:
        if self._query_norm is None:
            return self._query(hidden)
        return self._query(self._query_norm(self._query_latent(hidden)))

    def _turn(self, states: Tensor, rotation: Rotation) -> Tensor:
        """Turn pairs of neighbours: first ones and second ones are put together before."""
        if self._spec.turns_neighbours:
            pairs = states.reshape(*states.shape[:-1], -1, 2)
            states = pairs.transpose(-1, -2).flatten(-2)
        return rotate(states, rotation)
