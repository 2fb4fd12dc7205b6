"""FP8 (e4m3), made while a plain checkpoint is loaded: a byte per weight, and scales of float32.

`scale = max |weights| / 448` over an output (`fp8`), a matrix of the checkpoint (`fp8_per_tensor`) or 128
inputs of an output (`fp8_per_block`); `weight = e4m3(number / scale)`. On a GPU that multiplies FP8 the
first two make inputs FP8, too, each row with a scale of its own, and multiply by PyTorch's scaled product; by
`kernels/triton/matmul.py` where rows are few or matrices many, or where a row's bits may not depend on the others.
Blocks are multiplied by that with inputs as they are. Elsewhere weights are turned back into numbers a slab at a time.

Legend: N outputs, K inputs, G groups of inputs with a scale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, Self

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from exo_engine.errors import ConfigurationError
from exo_engine.weight_formats.base import (
    GroupedProduct,
    Share,
    Stored,
    WeightFormat,
    check_finite,
    is_for_triton,
    slabs,
)

if TYPE_CHECKING:
    from exo_engine.kernels.triton.launch import Target

_LARGEST = 448.0
_BLOCK = 128
_SLAB_WEIGHTS = {"cpu": 2**20, "cuda": 2**24}
_LOADING_SLAB_WEIGHTS = {"cpu": 2**18, "cuda": 2**22}
# Rows up to which Triton multiplies blocks: more are worth turning all weights into numbers.
_MOST_ROWS = 128
# The same of inputs in FP8: PyTorch's library is as slow for few rows as for 128. 32 were timed on an H200.
_MOST_SCALED_ROWS = 32
# What torch._scaled_mm wants inputs and outputs to be multiples of.
_SCALED_MULTIPLE = 16


class Fp8(WeightFormat):
    """A matrix of e4m3 with one scale per output."""

    scaled_by: ClassVar[Literal["output", "matrix", "block"]] = "output"

    def __init__(
        self, rows: int, columns: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        is_in_blocks = self.scaled_by == "block"
        self._group = min(_BLOCK, columns) if is_in_blocks else columns
        self.weight = torch.empty(rows, columns, dtype=torch.float8_e4m3fn, device=device)
        """(N, K)."""
        num_groups = -(-columns // self._group)
        self.scale = torch.empty(num_groups, rows, dtype=torch.float32, device=device)
        """(G, N)."""
        self._parts: list[slice] = []
        self._is_triton = is_for_triton(device)
        self.is_scaled = not is_in_blocks and self._multiplies_scaled(device)
        """Whether PyTorch's scaled product multiplies it, with inputs in FP8."""
        self._slab_rows = max(1, _SLAB_WEIGHTS.get(device.type, 1) // columns)

    def _multiplies_scaled(self, device: torch.device) -> bool:
        """Whether PyTorch's scaled product multiplies this matrix.

        Raises:
            ConfigurationError: this GPU cannot multiply FP8.
        """
        if not is_for_triton(device):
            return False
        from exo_engine.kernels.triton.launch import Target

        if problem := why_not_scaled(Target.of(device)):
            raise ConfigurationError(
                f"--quantization {'fp8' if self.scaled_by == 'output' else 'fp8_per_tensor'} multiplies in FP8, "
                f"and {problem}",
                param="quantization",
                hint="Use fp8_per_block, int8 or int4, which hold weights as small and compute in 16 bits.",
            )
        return not any(size % _SCALED_MULTIPLE for size in self.weight.shape)

    @classmethod
    def stored(cls, rows: int, columns: int) -> Mapping[str, Stored]:
        """See `WeightFormat.stored`."""
        return {"weight": Stored((rows, columns))}

    def load(self, suffix: str, tensor: Tensor, share: Share) -> None:
        """See `WeightFormat.load`: quantize a few rows at a time."""
        self._parts.append(share.target)
        of_matrix = None
        if (
            self.scaled_by == "matrix"
        ):  # whole, so that every rank has the weights that one alone would
            whole = tensor if share.whole is None else tensor[share.whole]
            of_matrix = torch.stack(torch.aminmax(whole)).abs().amax()
        source, device = tensor[share.rows], self.weight.device
        step = max(1, _LOADING_SLAB_WEIGHTS[device.type] // source.shape[1])
        for rows in slabs(len(source), step):
            numbers = source[rows].to(device, torch.float32)
            largest = self._largest(numbers, share.columns, of_matrix)
            check_finite(largest)
            scale = torch.where(largest > 0, largest / _LARGEST, 1.0)
            own = slice(share.target.start + rows.start, share.target.start + rows.stop)
            self.scale[:, own] = scale
            numbers = numbers[:, share.columns] / self._spread(scale)
            self.weight[own] = numbers.clamp_(-_LARGEST, _LARGEST).to(self.weight.dtype)

    def finish(self) -> None:
        """See `WeightFormat.finish`."""
        self._parts.sort(key=lambda rows: rows.start)
        if any((rows.stop - rows.start) % _SCALED_MULTIPLE for rows in self._parts):
            self.is_scaled = False

    def multiply(self, inputs: Tensor, bias: Tensor | None) -> Tensor:
        """See `WeightFormat.multiply`."""
        if self._is_triton and (self.is_fixed or len(inputs) <= self._most_rows):
            from exo_engine.kernels.triton import matmul

            return matmul.multiply(self._operand, self.scale, inputs, bias, is_fixed=self.is_fixed)
        if self.is_scaled:
            outputs = self._multiply_scaled(inputs)
            return outputs if bias is None else outputs.add_(bias)
        parts = [
            F.linear(
                inputs, self.numbers(rows).to(inputs.dtype), None if bias is None else bias[rows]
            )
            for rows in slabs(len(self.weight), self._slab_rows)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    @property
    def _most_rows(self) -> int:
        """Rows up to which Triton multiplies, where a row's bits may depend on the others."""
        if self.scaled_by == "block":
            return _MOST_ROWS
        return _MOST_SCALED_ROWS if self.is_scaled and torch.version.hip is None else 0

    @property
    def _operand(self) -> Tensor:
        """The numbers (N, K) as Triton's kernels take them."""
        return self.weight.view(torch.uint8) if self.scaled_by == "block" else self.weight

    @classmethod
    def grouped(cls, matrices: Sequence[Self]) -> GroupedProduct | None:
        """See `WeightFormat.grouped`."""
        if not matrices[0]._is_triton:
            return None
        from exo_engine.kernels.triton.matmul import Matrices

        numbers, scales = [each._operand for each in matrices], [each.scale for each in matrices]
        return Matrices.of(numbers, scales, is_fixed=matrices[0].is_fixed)

    def _multiply_scaled(self, inputs: Tensor) -> Tensor:
        """Multiply in FP8; a row's result does not depend on the others beside it."""
        from exo_engine.kernels.triton.matmul import encode

        codes, factors = encode(inputs if inputs.stride(1) == 1 else inputs.contiguous())
        if self.scaled_by == "output":
            # PyTorch's product with a scale per row gives bfloat16 only.
            return _scaled_product(codes, self.weight, factors, self.scale).to(inputs.dtype)
        one = self.scale.new_ones(())
        outputs = [
            _scaled_product(codes, self.weight[rows], one, self.scale[0, rows.start])
            for rows in self._parts
        ]
        merged = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)
        return (merged * factors).to(inputs.dtype)

    def numbers(self, rows: slice) -> Tensor:
        """Return the weights of some outputs: (n, K) float32."""
        return self.weight[rows].float() * self._spread(self.scale[:, rows])

    def _spread(self, scale: Tensor) -> Tensor:
        """Return scales (G, n) as (n, K), or (n, 1) where there is one group."""
        if len(scale) == 1:
            return scale.T
        return scale.T.repeat_interleave(self._group, dim=1)[:, : self.weight.shape[1]]

    def _largest(self, numbers: Tensor, columns: slice, of_matrix: Tensor | None) -> Tensor:
        """Return the largest magnitudes (G, n) of whole rows (n, inputs of the checkpoint)."""
        if of_matrix is not None:
            return of_matrix.to(numbers).expand(1, len(numbers))
        if self.scaled_by == "output":  # of the whole row, for the same reason
            return numbers.abs().amax(dim=1).unsqueeze(0)
        blocks = torch.split(numbers[:, columns].abs(), self._group, dim=1)
        return torch.stack([block.amax(dim=1) for block in blocks])

    @property
    def keeps_bits(self) -> bool:
        """See `WeightFormat.keeps_bits`."""
        return self.is_fixed and self._is_triton

    @property
    def num_bytes(self) -> int:
        """See `WeightFormat.num_bytes`."""
        return self.weight.nbytes + self.scale.nbytes


class Fp8PerTensor(Fp8):
    """A matrix of e4m3 with one scale per matrix of the checkpoint."""

    scaled_by = "matrix"


class Fp8PerBlock(Fp8):
    """A matrix of e4m3 with one scale per output and 128 inputs."""

    scaled_by = "block"


def _scaled_product(codes: Tensor, weight: Tensor, factors: Tensor, scales: Tensor) -> Tensor:
    found: Tensor = torch._scaled_mm(codes, weight.t(), factors, scales, out_dtype=torch.bfloat16)
    return found


def why_not_scaled(target: Target) -> str:
    """Return why a GPU does not multiply e4m3; empty if it does."""
    if target.has_e4m3:
        return ""
    if target.is_nvidia:
        major, minor = divmod(target.capability, 10)
        return f"compute capability {major}.{minor} cannot; 8.9 and later can"
    return f"gfx{target.capability} has another 8-bit format (fnuz); gfx950 can"
