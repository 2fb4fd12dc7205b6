"""All layers of a decoder in one call (`csrc/stack.h`): what would be some 240 calls from Python per step.

Legend: T tokens in step, S sequences, E hidden size.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from exo_engine.kernels.library import AttentionCall, Kernels, LinearCall, RotateCall

_pointer, _long = ctypes.c_void_p, ctypes.c_long


class _LayerCall(ctypes.Structure):
    """As in `csrc/stack.h`."""

    _fields_ = (
        ("attention_norm", _pointer),
        ("mlp_norm", _pointer),
        ("merged", LinearCall),
        ("output", LinearCall),
        ("gates", LinearCall),
        ("down", LinearCall),
        ("rotate", RotateCall),
        ("attention", AttentionCall),
        ("group", ctypes.c_int),
        ("eps", ctypes.c_float),
    )


class _GroupCall(ctypes.Structure):
    """As in `csrc/stack.h`."""

    _fields_ = (("slots", _pointer), ("tables", _pointer), ("table_stride", _long))


_ROOM = ("update", "normalised", "merged", "queries", "attended", "gates", "inner")


class _StackCall(ctypes.Structure):
    """As in `csrc/stack.h`."""

    _fields_ = (
        ("layers", ctypes.POINTER(_LayerCall)),
        ("groups", ctypes.POINTER(_GroupCall)),
        ("cosines", _pointer),
        ("sines", _pointer),
        ("positions", _pointer),
        ("starts", _pointer),
        ("contexts", _pointer),
        ("states", _pointer),
        *((name, _pointer) for name in _ROOM),
        ("num_layers", _long),
        ("tokens", _long),
        ("num_sequences", _long),
    )


@dataclass(frozen=True, slots=True)
class StackLayer:
    """One layer: norm, attention, norm, gated MLP. Whoever has it keeps its tensors."""

    index: int
    attention_norm: Tensor
    """(E,) bf16, as `mlp_norm`."""
    mlp_norm: Tensor
    eps: float
    """Of these two."""
    head_norms: tuple[Tensor, Tensor] | None
    """Of query and key heads."""
    head_eps: float
    merged: LinearCall
    """Makes queries, keys and values."""
    output: LinearCall
    gates: LinearCall
    """Makes gates and what they gate."""
    down: LinearCall


class Stack:
    """The layers of one model over one cache.

    Args:
        kernels: what computes.
        layers: in their order.
        attention: of each layer, how it turns heads, attends, and its cache group.
    """

    def __init__(
        self,
        kernels: Kernels,
        layers: Sequence[StackLayer],
        attention: Sequence[tuple[RotateCall, AttentionCall, int]],
    ) -> None:
        self._kernels = kernels
        self._kept = tuple(layers)
        calls = [_layer_call(*each) for each in zip(layers, attention, strict=True)]
        self._layers = (_LayerCall * len(calls))(*calls)
        self._widths = {name: max(_widths(call)[name] for call in calls) for name in _ROOM}

    def run(
        self,
        states: Tensor,
        angles: tuple[Tensor, Tensor, Tensor],
        groups: Sequence[tuple[Tensor, Tensor]],
        starts: Tensor,
        contexts: Tensor,
    ) -> Tensor:
        """Run a step's tokens through all layers.

        Args:
            states: (T, E) bf16; changed: afterwards it is what the result is to be added to.
            angles: cosines and sines (positions, D / 2) float32, and positions (T,) int32.
            groups: of each cache group slots (T,) int64 and block tables (S, M) int32.
            starts: (S + 1,) int32, as `attention.attend` takes them.
            contexts: (S,) int32, likewise.

        Returns:
            (T, E) bf16: the last update.
        """
        num_tokens = len(states)
        tensors = {
            name: torch.empty(num_tokens, width, dtype=torch.bfloat16)
            for name, width in self._widths.items()
        }
        groups_of_step = (_GroupCall * len(groups))(
            *(
                _GroupCall(slots.data_ptr(), table.data_ptr(), table.shape[1])
                for slots, table in groups
            )
        )
        cosines, sines, positions = (each.data_ptr() for each in angles)
        call = _StackCall(
            layers=self._layers,
            groups=groups_of_step,
            cosines=cosines,
            sines=sines,
            positions=positions,
            starts=starts.data_ptr(),
            contexts=contexts.data_ptr(),
            states=states.data_ptr(),
            num_layers=len(self._layers),
            tokens=num_tokens,
            num_sequences=len(contexts),
            **{name: tensor.data_ptr() for name, tensor in tensors.items()},
        )
        self._kernels.run_stack(ctypes.addressof(call))
        return tensors["update"]


def _layer_call(layer: StackLayer, attention: tuple[RotateCall, AttentionCall, int]) -> _LayerCall:
    rotate, attend, group = attention
    return _LayerCall(
        attention_norm=layer.attention_norm.data_ptr(),
        mlp_norm=layer.mlp_norm.data_ptr(),
        merged=layer.merged,
        output=layer.output,
        gates=layer.gates,
        down=layer.down,
        rotate=rotate,
        attention=attend,
        group=group,
        eps=layer.eps,
    )


def _widths(call: _LayerCall) -> dict[str, int]:
    """Return how many numbers a token needs in each of `_ROOM`."""
    hidden, queries = call.merged.num_inputs, call.output.num_inputs
    return {
        "update": hidden,
        "normalised": hidden,
        "merged": call.merged.num_outputs,
        "queries": queries,
        "attended": queries,
        "gates": call.gates.num_outputs,
        "inner": call.down.num_inputs,
    }
