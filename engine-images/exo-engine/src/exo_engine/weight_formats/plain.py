"""Plain numbers: the checkpoint's, in the number format of the computation.

Where there are kernels for it, they lie as these read them (`kernels/linear.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from exo_engine.kernels.library import LinearCall, kernels_for
from exo_engine.kernels.linear import PackedMatrix, packed_shape
from exo_engine.weight_formats.base import (
    GroupedProduct,
    Share,
    Stored,
    WeightFormat,
    is_for_triton,
    multiplies_row,
)


class Plain(WeightFormat):
    """A matrix of float32, bfloat16 or float16."""

    def __init__(
        self, rows: int, columns: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        kernels = kernels_for(dtype, device) if columns % 2 == 0 else None
        self._packed = None
        if kernels is None or device.type == "meta":
            shape = (rows, columns) if kernels is None else packed_shape(rows, columns)
            self._weight = torch.empty(shape, dtype=dtype, device=device)
        else:
            self._packed = PackedMatrix(kernels, rows, columns)
            self._weight = self._packed.storage

    @classmethod
    def stored(cls, rows: int, columns: int) -> Mapping[str, Stored]:
        """See `WeightFormat.stored`."""
        return {"weight": Stored((rows, columns))}

    def load(self, suffix: str, tensor: Tensor, share: Share) -> None:
        """See `WeightFormat.load`."""
        source = tensor[share.rows, share.columns]
        if self._packed is not None:
            self._packed.fill(share.target.start, source)
        else:
            self._weight[share.target].copy_(source)

    def multiply(self, inputs: Tensor, bias: Tensor | None) -> Tensor:
        """See `WeightFormat.multiply`."""
        if self._packed is not None:
            return self._packed.multiply(inputs.contiguous(), bias)
        if self.keeps_bits:
            from exo_engine.kernels.triton import fixed

            return fixed.multiply(inputs, self._weight, bias)
        if multiplies_row(inputs):
            from exo_engine.kernels.triton import matmul

            return matmul.multiply_row(self._weight, inputs, bias)
        return F.linear(inputs, self._weight, bias)

    def multiply_gated(self, inputs: Tensor, activation: str) -> Tensor | None:
        """See `WeightFormat.multiply_gated`."""
        if self._packed is not None or self.keeps_bits or not multiplies_row(inputs):
            return None
        from exo_engine.kernels.triton import matmul

        return matmul.multiply_row(self._weight, inputs, gates=activation)

    def kernel_call(self) -> LinearCall | None:
        """See `WeightFormat.kernel_call`."""
        return None if self._packed is None else self._packed.call

    @classmethod
    def grouped(cls, matrices: Sequence[Self]) -> GroupedProduct | None:
        """See `WeightFormat.grouped`."""
        if not is_for_triton(matrices[0]._weight.device):
            return super().grouped(matrices)
        from exo_engine.kernels.triton.matmul import Matrices

        weights = [each._weight for each in matrices]
        return Matrices.of(weights, is_fixed=matrices[0].is_fixed)

    @property
    def keeps_bits(self) -> bool:
        """See `WeightFormat.keeps_bits`."""
        return self.is_fixed and is_for_triton(self._weight.device)

    @property
    def num_bytes(self) -> int:
        """See `WeightFormat.num_bytes`."""
        return self._weight.nbytes
