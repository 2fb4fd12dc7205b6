"""A mixture of experts in place of an MLP: a router, and of many gated MLPs the few it chooses.

Legend: T tokens in step, E hidden size, I inner size of an expert, X experts, K chosen per token,
R = T K rows that experts compute.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from exo_engine.kernels.groups import MatrixGroups
from exo_engine.layers.base import Context, Layer, Slot
from exo_engine.layers.linear import Linear
from exo_engine.layers.mlp import GatedMLP, gate
from exo_engine.layers.transposed_experts import ExpertBiases, transposed_slots
from exo_engine.models.spec import ClampSpec, RoutingSpec
from exo_engine.weight_formats import PLAIN, load_format
from exo_engine.weight_formats.base import GroupedProduct, Share, Stored, WeightFormat

_FROM_ALL = RoutingSpec()
Product = Callable[[Tensor], Tensor]


class Experts(Layer):
    """Router and experts of one layer. Ranks share every expert, and all have the router.

    A checkpoint has three matrices per expert (`experts.0.gate_proj`), or all experts' in two tensors
    (`experts.gate_up_proj`, `experts.down_proj`), outputs by inputs behind the number of the expert; or
    inputs by outputs, as `MixtureSpec.is_transposed` says.

    Args:
        context: what the model is made with.
        name: that the names of its tensors begin with.
        hidden_size: E.
        inner_size: I.
        num_experts: X.
        num_chosen: K.
        normalizes: whether the weights of the chosen ones are made to add up to 1.
        routing: how they are chosen.
        clamp: of their gates; None: they are SiLU.
        is_transposed: see `MixtureSpec`.
    """

    def __init__(
        self,
        context: Context,
        name: str,
        hidden_size: int,
        inner_size: int,
        *,
        num_experts: int,
        num_chosen: int,
        normalizes: bool,
        routing: RoutingSpec = _FROM_ALL,
        clamp: ClampSpec | None = None,
        is_transposed: bool = False,
    ) -> None:
        super().__init__(context)
        inside = replace(context, layers=[])
        # Small, and what it decides is not to hang on a format.
        plain = replace(
            inside,
            weight_format=load_format(PLAIN),
            rank=0,
            num_ranks=1,
            dtype=torch.float32 if routing.is_float32 else context.dtype,
        )
        router = f"{name}.router" if is_transposed else f"{name}.gate"
        self._router = Linear.column(
            plain, {router: num_experts}, hidden_size, has_bias=is_transposed
        )
        self._experts = [
            GatedMLP(inside, f"{name}.experts.{index}", hidden_size, inner_size)
            for index in range(num_experts)
        ]
        self._grouped: tuple[GroupedProduct, GroupedProduct] | None = None
        self._kernels = context.kernels
        self._add_up = context.add_up
        self._num_chosen = num_chosen
        self._normalizes = normalizes
        self._routing = routing
        self._parts = inside.layers
        self._fused: dict[str, Slot] = {}
        self._bias = None
        for part in inside.layers:
            self.slots.update(part.slots)
        self._own_slots = dict(self._router.slots)
        if routing.has_bias:
            self._bias = torch.empty(num_experts, dtype=torch.float32, device=context.device)
            slot = Slot(Stored((num_experts,)), self._bias.copy_)
            self._own_slots[f"{name}.gate.e_score_correction_bias"] = slot
            self.slots.update(self._own_slots)
        self._clamp = clamp
        self._biases: ExpertBiases | None = None
        if is_transposed:
            self._biases = ExpertBiases(context, num_experts, hidden_size, inner_size)
            fused = transposed_slots(f"{name}.experts", self._experts, hidden_size, inner_size)
            self.slots = {**self._own_slots, **fused, **self._biases.slots(f"{name}.experts")}
        else:
            self._fused = self._fused_slots(f"{name}.experts", hidden_size, inner_size)

    def slots_for(self, names: Container[str]) -> Mapping[str, Slot]:
        """See `Layer.slots_for`: experts apart, or all in one where the checkpoint has them so."""
        if any(name in names for name in self._fused):
            return {**self._own_slots, **self._fused}
        return self.slots

    def __call__(self, hidden: Tensor) -> Tensor:
        """Return (T, E) for hidden states (T, E)."""
        weights, chosen = self._route(hidden)
        experts = chosen.flatten()
        order = experts.argsort(stable=True)
        inputs = hidden[order // self._num_chosen]
        gate_up, down = self._products(experts[order])
        merged = gate_up(inputs)
        if self._biases is not None:
            merged += self._biases.gate_up[experts[order]]
        results = down(gate(merged, self._kernels, clamp=self._clamp))
        if self._biases is not None:
            results += self._biases.down[experts[order]]
        outputs = torch.empty_like(results)
        outputs[order] = results
        # Added up in the order of the router's choice: the same for a token alone and among others.
        outputs = outputs.view(len(hidden), self._num_chosen, -1)
        total = self._sum(outputs * weights.unsqueeze(-1))
        return total if self._add_up is None else self._add_up(total)

    def finish(self) -> None:
        """See `Layer.finish`."""
        for part in self._parts:
            part.finish()
        pair = [self._matrices(kind) for kind in ("gate_up", "down")]
        first, second = (type(each[0]).grouped(each) for each in pair)
        self._grouped = (first, second) if first is not None and second is not None else None
        self.asks_host = self._grouped is None
        self.keeps_bits = not self.asks_host and all(part.keeps_bits for part in self._parts)

    @property
    def is_computed_by_kernels(self) -> bool:
        """Whether the CPU kernels compute all that is added up, so that a token has its bits in any batch."""
        is_plain = self._clamp is None and self._biases is None and self._add_up is None
        return is_plain and self._has_kernels and self._router.kernel_call() is not None

    @property
    def _has_kernels(self) -> bool:
        return self._grouped is not None and isinstance(self._grouped[0], MatrixGroups)

    @property
    def num_bytes(self) -> int:
        """See `Layer.num_bytes`."""
        bias = 0 if self._bias is None else self._bias.nbytes
        bias += 0 if self._biases is None else self._biases.num_bytes
        return bias + sum(part.num_bytes for part in self._parts)

    def _sum(self, outputs: Tensor) -> Tensor:
        """Return the sums over the experts of each token: (T, E) for (T, K, E)."""
        if not self.keeps_bits and not self._has_kernels:
            return outputs.sum(dim=1)
        total = outputs[:, 0].float()
        for place in range(1, outputs.shape[1]):
            total = total + outputs[:, place]
        return total.to(outputs.dtype)

    def _route(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights, of the dtype of `hidden` (T, E), and numbers of the chosen experts: (T, K)."""
        routing = self._routing
        numbers = self._router(hidden.float() if routing.is_float32 else hidden).float()
        scores = numbers.sigmoid() if routing.scoring == "sigmoid" else numbers.softmax(dim=-1)
        judged = scores if self._bias is None else scores + self._bias
        if routing.num_groups > 1:
            judged = self._of_best_groups(judged)
        chosen = judged.topk(self._num_chosen, dim=-1).indices
        weights = scores.gather(1, chosen)
        if self._normalizes:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        return (weights * routing.scale).to(hidden.dtype), chosen

    def _of_best_groups(self, judged: Tensor) -> Tensor:
        """Return scores (T, X), minus infinity for experts of all but the best groups."""
        routing = self._routing
        by_group = judged.view(len(judged), routing.num_groups, -1)
        worth = by_group.topk(routing.num_judging, dim=-1).values.sum(dim=-1)
        best = worth.topk(routing.num_groups_chosen, dim=-1).indices
        is_out = torch.ones_like(worth, dtype=torch.bool).scatter_(1, best, False)
        return by_group.masked_fill(is_out.unsqueeze(-1), -torch.inf).flatten(1)

    def _products(self, experts: Tensor) -> tuple[Product, Product]:
        """Return both products of rows whose experts are `experts` (R,), in order.

        Where the device multiplies by many matrices at once, nobody asks how many rows each has.
        """
        if self._grouped is not None:
            numbers = torch.arange(len(self._experts) + 1, device=experts.device)
            starts = torch.searchsorted(experts, numbers, out_int32=True)
            gate_up, down = self._grouped
            return partial(gate_up.multiply, starts=starts), partial(down.multiply, starts=starts)
        sizes = experts.bincount(minlength=len(self._experts)).tolist()
        gate_ups, downs = (self._matrices(kind) for kind in ("gate_up", "down"))
        multiply = type(gate_ups[0]).multiply_groups
        return partial(multiply, gate_ups, sizes=sizes), partial(multiply, downs, sizes=sizes)

    def _matrices(self, kind: Literal["gate_up", "down"]) -> list[WeightFormat]:
        return [getattr(expert, kind).matrix for expert in self._experts]

    def _fused_slots(self, name: str, hidden_size: int, inner_size: int) -> dict[str, Slot]:
        """Return the slots of tensors that hold one matrix of every expert."""
        slots = {}
        for kind, rows, columns in (
            ("gate_up", 2 * inner_size, hidden_size),
            ("down", hidden_size, inner_size),
        ):
            layers = [getattr(expert, kind) for expert in self._experts]
            for suffix, stored in layers[0].matrix.stored(rows, columns).items():
                # Plain numbers are a parameter of their own, without a suffix.
                end = "" if suffix == "weight" else f"_{suffix}"
                shape = (len(layers), *stored.shape)
                slots[f"{name}.{kind}_proj{end}"] = Slot(
                    Stored(shape, stored.dtypes), partial(_load_fused, layers, suffix)
                )
        return slots


def _load_fused(layers: list[Linear], suffix: str, tensor: Tensor) -> None:
    """Give each expert's layer its own of `tensor` (X, ...), in which its parts follow one another."""
    for layer, own in zip(layers, tensor, strict=True):
        first = 0
        for share, num_rows in layer.shares.values():
            rows = slice(first + share.rows.start, first + share.rows.stop)
            whole = slice(first, first + num_rows)
            layer.matrix.load(suffix, own, Share(share.target, rows, share.columns, whole))
            first = whole.stop
