"""Linear layers: one matrix in some weight format, and a bias.

Legend: T tokens in step.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Literal

from torch import Tensor

from exo_engine import pulse
from exo_engine.kernels.library import LinearCall
from exo_engine.layers.base import Context, Layer, Slot
from exo_engine.weight_formats.base import Share, Stored


class Linear(Layer):
    """`inputs @ matrix.T + bias`. Made by `column` or `row`, which say what ranks share."""

    def __init__(
        self,
        context: Context,
        parts: Mapping[str, int],
        in_features: int,
        split: Literal["outputs", "inputs"],
        *,
        has_bias: bool,
    ) -> None:
        super().__init__(context)
        splits_outputs = split == "outputs"
        columns = slice(0, in_features) if splits_outputs else context.share(in_features)
        self.shares: dict[str, tuple[Share, int]] = {}
        """This rank's share of each matrix of the checkpoint, and the rows of the whole one."""
        num_rows = 0
        for name, out_features in parts.items():
            rows = context.share(out_features) if splits_outputs else slice(0, out_features)
            target = slice(num_rows, num_rows + rows.stop - rows.start)
            self.shares[name] = Share(target, rows, columns), out_features
            num_rows = target.stop
        self.matrix = context.weight_format(
            num_rows, columns.stop - columns.start, dtype=context.dtype, device=context.device
        )
        self.matrix.is_fixed = context.is_fixed
        self.keeps_bits = self.matrix.keeps_bits
        self.bias = context.empty(num_rows) if has_bias else None
        self._add_up = None if splits_outputs else context.add_up
        # Where results of ranks are added up, one of them brings the bias.
        self._has_own_bias = splits_outputs or context.rank == 0
        for name, (share, out_features) in self.shares.items():
            for suffix, stored in self.matrix.stored(out_features, in_features).items():
                load = partial(self.matrix.load, suffix, share=share)
                self.slots[f"{name}.{suffix}"] = Slot(stored, load)
            if has_bias:
                load = partial(self._load_bias, share)
                self.slots[f"{name}.bias"] = Slot(Stored((out_features,)), load)

    @classmethod
    def column(
        cls,
        context: Context,
        parts: Mapping[str, int],
        in_features: int,
        *,
        has_bias: bool = False,
    ) -> Linear:
        """Make a layer of which each rank has a part of the outputs.

        Args:
            context: what it is made with.
            parts: outputs of each matrix of the checkpoint, by name. Several that read the same
                inputs become one, and their outputs follow one another.
            in_features: inputs.
            has_bias: whether each part has a bias.
        """
        return cls(context, parts, in_features, "outputs", has_bias=has_bias)

    @classmethod
    def row(
        cls,
        context: Context,
        name: str,
        in_features: int,
        out_features: int,
        *,
        has_bias: bool = False,
    ) -> Linear:
        """Make a layer of which each rank has a part of the inputs; their results are added up."""
        return cls(context, {name: out_features}, in_features, "inputs", has_bias=has_bias)

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return (T, outputs) for inputs (T, inputs)."""
        outputs = self.matrix.multiply(inputs, self.bias)
        pulse.OWN.beat()  # a layer of a long text takes seconds on a CPU
        return outputs if self._add_up is None else self._add_up(outputs)

    def gated(self, inputs: Tensor, activation: str) -> Tensor | None:
        """Return (T, outputs / 2): the first half of the outputs, activated, times the second; None: in two steps only."""
        if self.bias is not None or self._add_up is not None:
            return None
        return self.matrix.multiply_gated(inputs, activation)

    def kernel_call(self) -> LinearCall | None:
        """Return what the CPU kernels need to compute this layer; None: they cannot."""
        found = self.matrix.kernel_call()
        if found is None or self._add_up is not None:
            return None
        call = LinearCall.from_buffer_copy(found)
        call.bias = None if self.bias is None else self.bias.data_ptr()
        return call

    def finish(self) -> None:
        """See `Layer.finish`."""
        self.matrix.finish()

    @property
    def num_bytes(self) -> int:
        """See `Layer.num_bytes`."""
        return self.matrix.num_bytes + (0 if self.bias is None else self.bias.nbytes)

    def _load_bias(self, share: Share, tensor: Tensor) -> None:
        assert self.bias is not None, "only a layer with a bias has a slot for it"
        if self._has_own_bias:
            self.bias[share.target].copy_(tensor[share.rows])
        else:
            self.bias[share.target].zero_()
