"""Gated DeltaNet (Yang, Kautz, Hatamizadeh 2024), as Qwen3-Next and Qwen3.5 have it.

Each value head keeps a matrix from keys to values, which decays and is corrected towards every new
pair: S = a S + b k (v - a S k). Single tokens compute just that; prompts in chunks, in which all
corrections follow from one triangular system. A causal convolution comes before, whose last inputs
are kept along with the matrix.

Legend: T tokens in step, S sequences, n tokens of one of them, H value heads, K key dim, V value dim,
C channels of the convolution.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from exo_engine.attention.base import AttentionBackend, Rotation
from exo_engine.layers.base import Context, Layer, Slot
from exo_engine.layers.linear import Linear
from exo_engine.layers.rms_norm import normalise
from exo_engine.models.spec import DeltaSpec
from exo_engine.weight_formats.base import Stored, is_for_triton

_CHUNK = 64


class _Weights(Layer):
    """The plain tensors of one Gated DeltaNet."""

    def __init__(self, context: Context, name: str, spec: DeltaSpec) -> None:
        super().__init__(context)
        self.keeps_bits = context.is_fixed and is_for_triton(context.device)
        heads = spec.num_value_heads
        shapes = {
            "conv1d.weight": (spec.channels, 1, spec.kernel_size),
            "dt_bias": (heads,),
            "A_log": (heads,),
            "norm.weight": (spec.value_dim,),
        }
        self.tensors = {key: context.empty(*shape) for key, shape in shapes.items()}
        for key, tensor in self.tensors.items():
            self.slots[f"{name}.{key}"] = Slot(Stored(shapes[key]), tensor.copy_)

    @property
    def num_bytes(self) -> int:
        """See `Layer.num_bytes`."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


class GatedDeltaNet:
    """One layer's, with the linear layers around it.

    Args:
        context: what the model is made with.
        name: that the names of its tensors begin with.
        index: of the layer, by which its states are known.
        hidden_size: of what comes in and goes out.
        spec: its sizes.
        eps: of the norm.
    """

    def __init__(
        self,
        context: Context,
        name: str,
        index: int,
        hidden_size: int,
        spec: DeltaSpec,
        eps: float,
    ) -> None:
        heads, values = spec.num_value_heads, spec.num_value_heads * spec.value_dim
        self._sizes = {"in_proj_qkvz": spec.channels + values, "in_proj_ba": 2 * heads}
        if not spec.is_merged:
            self._sizes = {
                "in_proj_qkv": spec.channels,
                "in_proj_z": values,
                "in_proj_b": heads,
                "in_proj_a": heads,
            }
        parts = {f"{name}.{key}": size for key, size in self._sizes.items()}
        self._project = Linear.column(context, parts, hidden_size)
        self._weights = _Weights(context, name, spec)
        self._output = Linear.row(context, f"{name}.out_proj", values, hidden_size)
        self._index = index
        self._spec = spec
        self._eps = eps

    def __call__(self, hidden: Tensor, rotation: Rotation, backend: AttentionBackend) -> Tensor:
        """Mix a step's tokens (T, E) with those before them: (T, E)."""
        del rotation  # positions are in the order of the states
        spec, tensors, states = self._spec, self._weights.tensors, backend.states
        inputs, outer_gate, rate, decay = self._split(self._project(hidden))
        log_decay = F.softplus(decay.float() + tensors["dt_bias"].float())
        log_decay = -tensors["A_log"].float().exp() * log_decay  # (T, H)
        rates = rate.float().sigmoid()
        kept = states.read(self._index)
        convs = kept[:, : spec.conv_numbers].view(len(kept), -1, spec.channels)
        shape = (len(kept), spec.num_value_heads, spec.key_dim, spec.value_dim)
        matrices = kept[:, spec.conv_numbers :].reshape(shape)
        mixed = torch.empty_like(inputs, dtype=torch.float32)
        new_convs = torch.empty_like(convs)
        single = slice(0, states.num_decodes)
        starts = states.query_starts
        spans = [
            (slice(row, row + 1), slice(starts[row], starts[row + 1]))
            for row in range(single.stop, len(kept))
        ]
        if single.stop:
            window = torch.cat((convs[single], inputs[single].float().unsqueeze(1)), dim=1)
            mixed[single] = self._convolve(window)[:, 0]
            new_convs[single] = window[:, 1:]
        for row, tokens in spans:
            window = torch.cat((convs[row], inputs[tokens].float().unsqueeze(0)), dim=1)
            mixed[tokens] = self._convolve(window)[0]
            new_convs[row] = window[:, window.shape[1] - convs.shape[1] :]
        if self._weights.keeps_bits:
            from exo_engine.kernels.triton import states as kernels

            result, moved = kernels.move(
                mixed, log_decay, rates, matrices, states.query_starts_on_device
            )
        else:
            pairs = (*self._heads(mixed), log_decay, rates)
            result = torch.empty(len(hidden), *shape[1::2], device=hidden.device)
            moved = torch.empty_like(matrices)
            if single.stop:
                now = (each[single] for each in pairs)
                result[single], moved[single] = _one_token(matrices[single], *now)
            for row, tokens in spans:
                now = (each[tokens] for each in pairs)
                result[tokens], moved[row] = _many_tokens(matrices[row][0], *now)
        states.write(self._index, torch.cat((new_convs.flatten(1), moved.flatten(1)), dim=1))
        normed = normalise(result, None, self._eps)
        normed = normed.to(hidden.dtype)
        gate = F.silu(outer_gate.float()).view_as(result)
        gated = (tensors["norm.weight"] * normed).float() * gate
        return self._output(gated.flatten(1).to(hidden.dtype))

    def _split(self, merged: Tensor) -> tuple[Tensor, ...]:
        """Return the convolution's inputs, gates, rates and decays (T, ...) of what was projected."""
        spec = self._spec
        parts = torch.split(merged, list(self._sizes.values()), dim=1)
        if not spec.is_merged:
            return parts
        mixed, rates = (part.view(len(merged), spec.num_key_heads, -1) for part in parts)
        values = spec.num_value_heads // spec.num_key_heads * spec.value_dim
        *inputs, gates = torch.split(mixed, [spec.key_dim, spec.key_dim, values, values], dim=2)
        apart = torch.cat([each.flatten(1) for each in inputs], dim=1)
        return apart, gates.flatten(1), *(each.flatten(1) for each in rates.chunk(2, dim=2))

    def _convolve(self, window: Tensor) -> Tensor:
        """Return what each token but the first ones of (S, n, C) makes of itself and those: float32."""
        weight = self._weights.tensors["conv1d.weight"].float()
        if self._weights.keeps_bits:
            size = weight.shape[2]
            num_tokens = window.shape[1] - size + 1
            parts = (window[:, i : i + num_tokens] * weight[:, 0, i] for i in range(size))
            return F.silu(sum(parts, start=window.new_zeros(())))
        mixed = F.conv1d(window.transpose(1, 2), weight, groups=len(weight))
        return F.silu(mixed.transpose(1, 2))

    def _heads(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries and keys (T, H, K), normalised, and values (T, H, V)."""
        spec = self._spec
        num_keys = spec.num_key_heads * spec.key_dim
        queries, keys, values = torch.split(
            mixed, [num_keys, num_keys, mixed.shape[1] - 2 * num_keys], dim=1
        )
        repeats = spec.num_value_heads // spec.num_key_heads
        queries, keys = (
            _normalise(each.reshape(len(mixed), -1, spec.key_dim)).repeat_interleave(repeats, dim=1)
            for each in (queries, keys)
        )
        return queries * spec.key_dim**-0.5, keys, values.reshape(len(mixed), -1, spec.value_dim)


def _normalise(states: Tensor) -> Tensor:
    return states * torch.rsqrt(states.square().sum(dim=-1, keepdim=True) + 1e-6)


def _one_token(
    matrices: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    log_decay: Tensor,
    rates: Tensor,
) -> tuple[Tensor, Tensor]:
    """Move S sequences on by one token each: results (S, H, V), matrices (S, H, K, V)."""
    matrices = matrices * log_decay.exp()[..., None, None]
    known = (keys.unsqueeze(2) @ matrices).squeeze(2)
    change = (values - known) * rates.unsqueeze(-1)
    matrices = matrices + keys.unsqueeze(3) * change.unsqueeze(2)
    return (queries.unsqueeze(2) @ matrices).squeeze(2), matrices


def _many_tokens(
    matrices: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    log_decay: Tensor,
    rates: Tensor,
) -> tuple[Tensor, Tensor]:
    """Move one sequence on by n tokens: results (n, H, V), matrices (H, K, V)."""
    results = []
    by_head = [each.transpose(0, 1) for each in (queries, keys, values, log_decay, rates)]
    for start in range(0, len(queries), _CHUNK):
        part = (each[:, start : start + _CHUNK] for each in by_head)
        result, matrices = _chunk(matrices, *part)
        results.append(result)
    return torch.cat(results, dim=1).transpose(0, 1), matrices


def _chunk(
    matrices: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    log_decay: Tensor,
    rates: Tensor,
) -> tuple[Tensor, Tensor]:
    """Move the heads of one sequence, (H, n, ...) each, on by a chunk.

    What token i corrects is b (v - decayed S k) less what the tokens before it in the chunk have
    corrected already: (I + A) U = B, with A strictly lower triangular.
    """
    total = log_decay.cumsum(dim=1)  # (H, n)
    since = (total.unsqueeze(2) - total.unsqueeze(1)).tril().exp().tril()  # (H, n, n)
    rates = rates.unsqueeze(2)
    overlaps = (rates * (keys @ keys.transpose(1, 2)) * since).tril(-1)
    known = total.exp().unsqueeze(2) * (keys @ matrices)
    changes = torch.linalg.solve_triangular(
        overlaps, rates * (values - known), upper=False, unitriangular=True
    )
    results = total.exp().unsqueeze(2) * (queries @ matrices)
    results = results + ((queries @ keys.transpose(1, 2)) * since) @ changes
    left = (total[:, -1:] - total).exp().unsqueeze(2)
    decayed = total[:, -1, None, None].exp() * matrices
    return results, decayed + (keys * left).transpose(1, 2) @ changes
