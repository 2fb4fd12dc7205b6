"""INT4, made while a plain checkpoint is loaded: half a byte per weight, a scale per output and group of inputs.

`weight = (code - 8) * scale`, codes from 0 to 15. Of several scales the one with the least squared error is
taken, and then what fits the codes best. Where there are CPU kernels inputs are quantized to 8 bits
(`kernels/quantized.py`); on a GPU they keep their format (`kernels/triton/codes.py`); elsewhere weights are turned
back into numbers a slab at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, Self

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from exo_engine.kernels.library import LinearCall, kernels_for
from exo_engine.kernels.quantized import QuantizedMatrix
from exo_engine.weight_formats import FORMATS
from exo_engine.weight_formats.base import (
    GroupedProduct,
    Share,
    Stored,
    WeightFormat,
    check_finite,
    is_for_triton,
)

_MIDDLE = 8
# Of the scale at which the number of the largest magnitude becomes -8.
_CANDIDATES = (0.8, 0.87, 0.94, 1.0, 1.07, 8 / 7)
_SQUARED_EXPONENT = 48
"""Of an eighth of a group's largest magnitude, as a power of two, above 0 or below: squares, and sums of them, are
numbers of float32."""
_LARGEST_SHIFT = 120
"""2 to its power, and to minus it, are numbers of float32."""
_SLAB_WEIGHTS = 2**20
# While loading several copies of a slab are made.
_LOADING_SLAB_WEIGHTS = 2**15
_GPU_LOADING_SLAB_WEIGHTS = 2**23


class Int4(WeightFormat):
    """A matrix of INT4 in groups of 32 inputs; a last one that is not full is filled up."""

    has_int8_head = True
    group: ClassVar[int] = FORMATS["int4"].group
    """Inputs with one scale."""

    def __init__(
        self, rows: int, columns: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._kernels = kernels_for(dtype, device)
        self._is_triton = is_for_triton(device)
        order: Literal["quads", "halves"] = "halves" if self._is_triton else "quads"
        self._packed = QuantizedMatrix(
            rows, columns, bits=4, group=self.group, order=order, device=device
        )
        self._slab_rows = max(1, _SLAB_WEIGHTS // columns // 64) * 64
        # There from the first load until all is packed.
        self._codes: Tensor | None = None
        self._scales: Tensor | None = None

    @classmethod
    def stored(cls, rows: int, columns: int) -> Mapping[str, Stored]:
        """See `WeightFormat.stored`."""
        return {"weight": Stored((rows, columns))}

    def load(self, suffix: str, tensor: Tensor, share: Share) -> None:
        """See `WeightFormat.load`: quantize a few rows at a time."""
        assert share.columns.start % self.group == 0, "ranks share no group: `check_ranks`"
        codes, scales = self._room()
        source = tensor[share.rows, share.columns]
        on_cpu = codes.device.type == "cpu"
        most = _LOADING_SLAB_WEIGHTS if on_cpu else _GPU_LOADING_SLAB_WEIGHTS
        step = max(1, most // source.shape[1])
        for first in range(0, len(source), step):
            rows = slice(share.target.start + first, share.target.start + first + step)
            numbers = source[first : first + step].to(codes.device, torch.float32)
            found = _quantize(numbers, self.group)
            rows = slice(rows.start, rows.start + len(found[0]))
            codes[rows], scales[rows] = found

    def finish(self) -> None:
        """See `WeightFormat.finish`."""
        self._packed.pack_scaled(*self._room())
        self._codes = self._scales = None

    def kernel_call(self) -> LinearCall | None:
        """See `WeightFormat.kernel_call`."""
        return None if self._kernels is None else self._packed.kernel_call()

    def multiply(self, inputs: Tensor, bias: Tensor | None) -> Tensor:
        """See `WeightFormat.multiply`."""
        if self._kernels is not None:
            return self._packed.multiply(self._kernels, inputs.contiguous(), bias)
        if self._is_triton:
            from exo_engine.kernels.triton import codes

            return codes.multiply(self._packed, inputs, bias, is_fixed=self.is_fixed)
        num_rows = self._packed.num_outputs
        slabs = []
        for first in range(0, num_rows, self._slab_rows):
            rows = slice(first, min(first + self._slab_rows, num_rows))
            slabs.append(F.linear(inputs, self._packed.numbers(rows).to(inputs.dtype)))
        outputs = torch.cat(slabs, dim=1)
        return outputs if bias is None else outputs.add_(bias)

    @classmethod
    def grouped(cls, matrices: Sequence[Self]) -> GroupedProduct | None:
        """See `WeightFormat.grouped`."""
        if not matrices[0]._is_triton:
            return super().grouped(matrices)
        from exo_engine.kernels.triton.codes import CodedMatrices

        packed = [each._packed for each in matrices]
        return CodedMatrices.of(packed, is_fixed=matrices[0].is_fixed)

    @property
    def keeps_bits(self) -> bool:
        """See `WeightFormat.keeps_bits`."""
        return self.is_fixed and self._is_triton

    @property
    def num_bytes(self) -> int:
        """See `WeightFormat.num_bytes`."""
        return self._packed.storage.nbytes

    def _room(self) -> tuple[Tensor, Tensor]:
        """Return codes (rows, columns) uint8 and scales (rows, groups) float32."""
        if self._codes is None or self._scales is None:
            packed = self._packed
            device, rows = packed.storage.device, packed.num_outputs
            self._codes = torch.empty(rows, packed.num_inputs, dtype=torch.uint8, device=device)
            self._scales = torch.empty(rows, packed.num_groups, device=device)
        return self._codes, self._scales


class Int4PerGroup64(Int4):
    """The same with fewer scales: less memory, less exact."""

    group = FORMATS["int4_per_group_64"].group


class Int4PerGroup128(Int4):
    """The same with the fewest scales."""

    group = FORMATS["int4_per_group_128"].group


def _quantize(numbers: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """Return codes (n, columns) uint8 and scales (n, groups) for numbers (n, columns) float32."""
    num_columns = numbers.shape[1]
    groups = F.pad(numbers, (0, -num_columns % group)).view(len(numbers), -1, group)
    at = groups.abs().argmax(dim=2, keepdim=True)
    full = groups.gather(2, at) / -_MIDDLE
    check_finite(full)
    # Powers of two change no code, and keep squares of numbers beyond 1e19 and below 1e-19 within float32.
    exponents = torch.frexp(full)[1].clamp_(-_LARGEST_SHIFT, _LARGEST_SHIFT)
    if bool((exponents.abs() > _SQUARED_EXPONENT).any()):
        codes, scales = _quantize(torch.ldexp(groups, -exponents).flatten(1), group)
        return codes[:, :num_columns], torch.ldexp(scales, exponents.squeeze(2))
    least, chosen = torch.full_like(full, torch.inf), torch.zeros_like(groups)
    for factor in _CANDIDATES:
        scales = full * factor
        steps = (groups / scales).nan_to_num_(0.0).round_().clamp_(-_MIDDLE, _MIDDLE - 1)
        error = (steps * scales).sub_(groups).square_().sum(dim=2, keepdim=True)
        is_better = error < least
        least, chosen = torch.minimum(error, least), torch.where(is_better, steps, chosen)
    products, squares = (chosen * groups).sum(dim=2), chosen.square().sum(dim=2)
    best = (products / squares.clamp_min(1.0)).nan_to_num_(0.0)
    codes = (chosen.flatten(1)[:, :num_columns] + _MIDDLE).to(torch.uint8)
    return codes, best
