"""INT8, made while a plain checkpoint is loaded: a byte per weight, a scale per output.

`scale = max |row| / 127`, `weight = round(row / scale)`. A row is quantized whole, so every rank has the
weights that one alone would have. Where there are CPU kernels inputs are quantized to 8 bits, too
(`kernels/quantized.py`); on a GPU few rows, and those of many matrices, are multiplied by `kernels/triton/matmul.py`.
There and elsewhere inputs and outputs keep the number format of the computation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from exo_engine.kernels.library import Kernels, LinearCall, kernels_for
from exo_engine.kernels.quantized import MAX_GROUP, QuantizedMatrix
from exo_engine.weight_formats.base import (
    GroupedProduct,
    Share,
    Stored,
    WeightFormat,
    check_finite,
    is_for_triton,
    slabs,
)

_MOST = 127
# Weights that are turned back into numbers at a time: what fits into a CPU's cache, and on a GPU
# what keeps it busy. While loading several copies of a slab are made, so it is a smaller one.
_SLAB_WEIGHTS = {"cpu": 2**20, "cuda": 2**24}
_LOADING_SLAB_WEIGHTS = {"cpu": 2**18, "cuda": 2**22}
# Inputs up to which torch's kernel for 16-bit inputs is faster than numbers and a plain product.
_MAX_KERNEL_INPUTS = 8
# Rows up to which Triton multiplies: more are worth turning all weights into numbers.
_MOST_ROWS = 128


class Int8(WeightFormat):
    """A matrix of INT8 with one scale per row."""

    has_int8_head = True

    def __init__(
        self, rows: int, columns: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._kernels = self._kernels_for(columns, dtype, device)
        self._is_triton = is_for_triton(device)
        self._packed = None
        if self._kernels is not None:
            group = -(-columns // 8) * 8
            self._packed = QuantizedMatrix(rows, columns, bits=8, group=group, device=device)
        # With kernels they are there from the first load until all is packed.
        where = device if self._kernels is None else torch.device("meta")
        self.weight = torch.empty(rows, columns, dtype=torch.int8, device=where)
        # float16 has too few digits for the scale of a row of small weights.
        scale_dtype = torch.float32 if dtype == torch.float16 else dtype
        self.scale = torch.empty(rows, dtype=scale_dtype, device=where)
        # It reads past the end of rows that are no multiple of 16.
        can_read = columns % 16 == 0 and device.type == "cpu"
        self._has_torch_kernel = can_read and dtype == torch.bfloat16
        self._slab_rows = max(1, _SLAB_WEIGHTS.get(device.type, 1) // columns)

    @classmethod
    def has_kernels(cls, columns: int, dtype: torch.dtype, device: torch.device) -> bool:
        """Whether the CPU kernels multiply with such a matrix, so that it has `look_up` and `project`."""
        return cls._kernels_for(columns, dtype, device) is not None

    @classmethod
    def stored(cls, rows: int, columns: int) -> Mapping[str, Stored]:
        """See `WeightFormat.stored`."""
        return {"weight": Stored((rows, columns))}

    def load(self, suffix: str, tensor: Tensor, share: Share) -> None:
        """See `WeightFormat.load`: quantize a few rows at a time."""
        source = tensor[share.rows]
        if self._packed is not None and len(source) == len(self.weight):
            self._load_packed(self._packed, source, share.columns)
            return
        if self._packed is not None and self.weight.is_meta:
            self.weight, self.scale = (
                torch.empty_like(each, device="cpu") for each in (self.weight, self.scale)
            )
        weight, scale = self.weight[share.target], self.scale[share.target]
        most = _LOADING_SLAB_WEIGHTS[weight.device.type] // source.shape[1]
        for rows in slabs(len(source), max(1, most)):
            numbers = source[rows].to(weight.device, torch.float32)
            scale[rows] = _scales_of(numbers, scale.dtype)
            weight[rows] = _steps_of(numbers[:, share.columns], scale[rows])

    def _load_packed(self, packed: QuantizedMatrix, source: Tensor, columns: slice) -> None:
        """Take all of a matrix that is in one tensor, with no more than a slab of it beside what is packed."""
        most = max(64, _LOADING_SLAB_WEIGHTS["cpu"] // source.shape[1] // 64 * 64)
        every = list(slabs(len(source), most))
        scales = torch.cat([_scales_of(source[rows].float(), self.scale.dtype) for rows in every])
        packed.set_scale(scales)
        for rows in every:
            steps = _steps_of(source[rows, columns].float(), scales[rows])
            codes = steps.view(torch.uint8).bitwise_xor_(128)
            packed.pack_scaled_rows(rows.start, codes, scales[rows].unsqueeze(1))

    def finish(self) -> None:
        """See `WeightFormat.finish`."""
        if self._packed is not None and not self.weight.is_meta:
            codes = self.weight.view(torch.uint8).bitwise_xor_(128)
            self._packed.pack_scaled(codes, self.scale.unsqueeze(1))
            self.weight, self.scale = self.weight.to("meta"), self.scale.to("meta")

    def kernel_call(self) -> LinearCall | None:
        """See `WeightFormat.kernel_call`."""
        return None if self._packed is None else self._packed.kernel_call()

    def multiply(self, inputs: Tensor, bias: Tensor | None) -> Tensor:
        """See `WeightFormat.multiply`."""
        if self._packed is not None and self._kernels is not None:
            return self._packed.multiply(self._kernels, inputs.contiguous(), bias)
        if self._is_triton and (self.is_fixed or len(inputs) <= _MOST_ROWS):
            from exo_engine.kernels.triton import matmul

            return matmul.multiply(self.weight, self.scale, inputs, bias, is_fixed=self.is_fixed)
        if self._has_torch_kernel and len(inputs) <= _MAX_KERNEL_INPUTS:
            outputs = torch._weight_int8pack_mm(inputs, self.weight, self.scale)
        else:
            parts = [
                self._multiply(inputs, rows) for rows in slabs(len(self.weight), self._slab_rows)
            ]
            outputs = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        return outputs if bias is None else outputs.add_(bias)

    def look_up(self, ids: Tensor) -> Tensor:
        """Return rows of the matrix by their ids (T,) int64: (T, columns)."""
        assert self._packed is not None and self._kernels is not None, "`has_kernels` was asked"  # noqa: PT018
        return self._packed.rows(self._kernels, ids)

    def project(self, inputs: Tensor) -> Tensor:
        """Return what `multiply` does, in float32: (T, rows), of inputs that are quantized to 16 bits."""
        assert self._packed is not None and self._kernels is not None, "`has_kernels` was asked"  # noqa: PT018
        return self._packed.multiply(
            self._kernels, inputs.contiguous(), dtype=torch.float32, input_bits=16
        )

    @staticmethod
    def _kernels_for(columns: int, dtype: torch.dtype, device: torch.device) -> Kernels | None:
        return kernels_for(dtype, device) if columns <= MAX_GROUP else None

    def _multiply(self, inputs: Tensor, rows: slice) -> Tensor:
        weight, scale = self.weight[rows], self.scale[rows]
        if scale.dtype == inputs.dtype:
            return F.linear(inputs, weight.to(inputs.dtype)).mul_(scale)
        # float16: sums of unscaled weights would overflow.
        return F.linear(inputs, weight.to(scale.dtype).mul_(scale.unsqueeze(1)).to(inputs.dtype))

    @classmethod
    def grouped(cls, matrices: Sequence[Self]) -> GroupedProduct | None:
        """See `WeightFormat.grouped`."""
        if not matrices[0]._is_triton:
            return super().grouped(matrices)
        from exo_engine.kernels.triton.matmul import Matrices

        numbers, scales = [each.weight for each in matrices], [each.scale for each in matrices]
        return Matrices.of(numbers, scales, is_fixed=matrices[0].is_fixed)

    @property
    def keeps_bits(self) -> bool:
        """See `WeightFormat.keeps_bits`."""
        return self.is_fixed and self._is_triton

    @property
    def num_bytes(self) -> int:
        """See `WeightFormat.num_bytes`."""
        if self._packed is not None:
            return self._packed.storage.nbytes
        return self.weight.nbytes + self.scale.nbytes


def _scales_of(numbers: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the scale of each row (n,) of numbers (n, columns) float32; 0 where all are 0.

    Raises:
        NotFinite
    """
    largest = torch.linalg.vector_norm(numbers, float("inf"), dim=1)
    check_finite(largest)
    scales: Tensor = largest / _MOST
    return scales.to(dtype)


def _steps_of(numbers: Tensor, scales: Tensor) -> Tensor:
    """Return how many of its row's scale each of the numbers (n, columns) float32 is: int8."""
    divisors = torch.where(scales > 0, scales.float(), 1.0).unsqueeze(1)
    return (numbers / divisors).round_().clamp_(-_MOST, _MOST).to(torch.int8)
