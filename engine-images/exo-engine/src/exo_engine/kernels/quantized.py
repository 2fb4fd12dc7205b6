"""A matrix of 8-bit or 4-bit codes in the packed form of the kernels (`csrc/quantized.h`, `triton/codes.py`).

A weight is `(code - zero) * scale`, with a scale per output and group of inputs, and a zero likewise or
2^(bits - 1). Codes are without sign, scales float16. GGUF's Q8_0 and Q4_0 blocks (group 32) and groups of AWQ
and GPTQ are of this form. On a CPU inputs are quantized to 8 bits, or 16, each row by its
largest magnitude.

Legend: T rows of inputs, G groups.
"""

from __future__ import annotations

import ctypes
from typing import Literal

import torch
from torch import Tensor

from exo_engine.kernels.library import Kernels, LinearCall
from exo_engine.kernels.tensors import check
from exo_engine.kernels.weight_memory import WEIGHTS

_BLOCK = 64
# Codes that are packed at a time.
_SLAB_CODES, _GPU_SLAB_CODES = 2**18, 2**24
MAX_GROUP = 2**16
"""Inputs whose products an int32 surely holds: 255 * 128 * 2^16 < 2^31."""


class QuantizedMatrix:
    """A matrix (outputs, inputs) of codes.

    Args:
        num_outputs: rows.
        num_inputs: columns; filled up to whole groups.
        bits: of a code, 8 or 4.
        group: inputs with one scale, a multiple of 8.
        has_zeros: whether zeros are stored; with 4 bits only.
        order: of codes in a block: `quads`, as a CPU reads them; `halves`, of 4 bits, as a GPU does: an
            output's bytes after one another, whose lower halves are the first inputs of the group.
        device: `meta` holds nothing.
    """

    def __init__(
        self,
        num_outputs: int,
        num_inputs: int,
        *,
        bits: int,
        group: int,
        has_zeros: bool = False,
        order: Literal["quads", "halves"] = "quads",
        device: torch.device | None = None,
    ) -> None:
        assert bits in (4, 8), "codes have 4 or 8 bits"
        assert group % 8 == 0, "a group is a multiple of 8 inputs"
        assert group <= MAX_GROUP, "an int32 holds the sum of a group"
        assert bits == 4 or not has_zeros, "8-bit codes have zeros of 128"
        assert bits == 4 or order == "quads", "a byte has two halves where codes have 4 bits"
        self.num_outputs, self.num_inputs = num_outputs, num_inputs
        self.bits, self.group, self.has_zeros, self.order = bits, group, has_zeros, order
        self.num_groups = -(-num_inputs // group)
        self._head = _BLOCK * (3 if has_zeros else 2)
        shape = (
            -(-num_outputs // _BLOCK),
            self.num_groups,
            self._head + _BLOCK * group * bits // 8,
        )
        is_on_cpu = (device or torch.get_default_device()).type == "cpu"
        self.storage = (
            WEIGHTS.empty(shape, torch.uint8)
            if is_on_cpu
            else torch.empty(shape, dtype=torch.uint8, device=device)
        )
        """The packed form: blocks, groups, bytes."""
        self.scale = 1.0

    def pack(self, codes: Tensor, scales: Tensor, zeros: Tensor | None = None) -> None:
        """Take all of the matrix.

        Args:
            codes: (outputs, inputs) uint8.
            scales: (outputs, G), any float; those that float16 has come back as they are.
            zeros: (outputs, G) uint8, where the matrix has them.
        """
        most = _SLAB_CODES if self.storage.device.type == "cpu" else _GPU_SLAB_CODES
        step = most // (self.num_groups * self.group) // _BLOCK * _BLOCK or _BLOCK
        for first in range(0, self.num_outputs, step):
            rows = slice(first, first + step)
            zeros_of_rows = None if zeros is None else zeros[rows]
            self._pack_rows(first // _BLOCK, codes[rows], scales[rows], zeros_of_rows)

    def pack_scaled(self, codes: Tensor, scales: Tensor) -> None:
        """As `pack`, with one power of two taken out of all scales, so that float16 loses none of their digits.

        Scales of float32 are overwritten.
        """
        self.set_scale(scales)
        self.pack(codes, scales.float().div_(self.scale))

    def set_scale(self, scales: Tensor) -> None:
        """Choose what is taken out of all scales of the matrix, for `pack_scaled_rows`; INT4 has scales below 0, too."""
        _, exponent = torch.frexp(scales.float().abs().amax())
        self.scale = 2.0 ** (int(exponent) - 14)

    def pack_scaled_rows(self, first: int, codes: Tensor, scales: Tensor) -> None:
        """Take some rows of what `pack_scaled` takes, from `first` on, a multiple of 64; all but the last ones are, too."""
        assert first % _BLOCK == 0, "rows are packed by whole blocks"
        self._pack_rows(first // _BLOCK, codes, scales.float() / self.scale, None)

    def _pack_rows(self, block: int, codes: Tensor, scales: Tensor, zeros: Tensor | None) -> None:
        num_blocks = -(-len(codes) // _BLOCK)
        shape = (num_blocks, _BLOCK, self.num_groups)
        to_fill = num_blocks * _BLOCK - len(codes)
        storage = self.storage[block : block + num_blocks]
        columns = self.num_groups * self.group - codes.shape[1]
        padded = torch.nn.functional.pad(codes, (0, columns, 0, to_fill))
        storage[..., self._head :] = self._ordered(padded.view(*shape, self.group)).flatten(2)
        halves = torch.nn.functional.pad(scales.half(), (0, 0, 0, to_fill)).view(shape)
        storage[..., : 2 * _BLOCK] = halves.transpose(1, 2).contiguous().view(torch.uint8)
        if zeros is not None:
            filled = torch.nn.functional.pad(zeros, (0, 0, 0, to_fill)).view(shape)
            storage[..., 2 * _BLOCK : 3 * _BLOCK] = filled.transpose(1, 2)

    def _ordered(self, codes: Tensor) -> Tensor:
        """Return codes (blocks, 64, G, group) as bytes (blocks, G, ...) in the order of a block."""
        if self.order == "halves":
            lower, upper = codes.transpose(1, 2).chunk(2, dim=3)
            return lower | upper << 4
        quads = codes.view(*codes.shape[:3], -1, 4).permute(0, 2, 3, 1, 4)
        if self.bits == 4:  # blocks, G, quads, outputs, 4
            quads = quads[:, :, 0::2] | quads[:, :, 1::2] << 4
        return quads

    def _in_rows(self, stored: Tensor) -> Tensor:
        """Return what `_ordered` took, in any shape of that order, for what it gave (blocks, G, bytes)."""
        shape = stored.shape[:2]
        if self.order == "halves":
            pairs = stored.reshape(*shape, _BLOCK, -1)
            return torch.cat((pairs & 15, pairs >> 4), dim=3).transpose(1, 2)
        codes = stored.reshape(*shape, -1, _BLOCK, 4)
        if self.bits == 4:
            codes = torch.stack((codes & 15, codes >> 4), dim=3).flatten(2, 3)
        return codes.permute(0, 3, 1, 2, 4)

    def unpack(self, rows: slice) -> tuple[Tensor, Tensor, Tensor]:
        """Return codes (n, inputs) uint8, scales (n, G) float16 and zeros (n, G) uint8 of some outputs."""
        first = rows.start // _BLOCK
        storage = self.storage[first : -(-rows.stop // _BLOCK)]
        own = slice(rows.start - first * _BLOCK, rows.stop - first * _BLOCK)
        halves = storage[..., : 2 * _BLOCK].contiguous().view(torch.float16)
        scales = halves.transpose(1, 2).reshape(-1, self.num_groups)[own]
        zeros = torch.full_like(scales, 2 ** (self.bits - 1), dtype=torch.uint8)
        if self.has_zeros:
            stored = storage[..., 2 * _BLOCK : 3 * _BLOCK]
            zeros = stored.transpose(1, 2).reshape(-1, self.num_groups)[own]
        codes = self._in_rows(storage[..., self._head :]).reshape(-1, self.num_groups * self.group)
        return codes[own, : self.num_inputs], scales, zeros

    def numbers(self, rows: slice) -> Tensor:
        """Return the weights of some outputs: (n, inputs) float32."""
        codes, scales, zeros = self.unpack(rows)
        spread = torch.stack((scales.float() * self.scale, zeros.float()))
        spread = spread.repeat_interleave(self.group, dim=2)[..., : self.num_inputs]
        return (codes.float() - spread[1]) * spread[0]

    def kernel_call(self) -> LinearCall:
        """Return what the kernel is to be told, but for inputs, outputs and bias."""
        return LinearCall(
            packed=self.storage.data_ptr(),
            num_inputs=self.num_inputs,
            num_outputs=self.num_outputs,
            bits=self.bits,
            group=self.group,
            has_zeros=self.has_zeros,
            scale=self.scale,
        )

    def multiply(
        self,
        kernels: Kernels,
        inputs: Tensor,
        bias: Tensor | None = None,
        *,
        dtype: torch.dtype = torch.bfloat16,
        input_bits: Literal[8, 16] = 8,
    ) -> Tensor:
        """Return inputs (T, inputs) bf16 times the transposed matrix, plus bias (outputs,) bf16.

        Args:
            kernels: what computes.
            inputs: contiguous.
            bias: or None.
            dtype: of the result, bfloat16 or float32.
            input_bits: what inputs are quantized to. 16 take as many operations as twice the rows, and are for codes of 8
                bits.

        Returns:
            (T, outputs).
        """
        assert self.bits == 8 or input_bits == 8, "inputs in 16 bits are for codes of 8"
        check(inputs, torch.bfloat16, len(inputs), self.num_inputs)
        if bias is not None:
            check(bias, torch.bfloat16, self.num_outputs)
        outputs = torch.empty(len(inputs), self.num_outputs, dtype=dtype)
        call = self.kernel_call()
        call.inputs = inputs.data_ptr()
        call.bias = None if bias is None else bias.data_ptr()
        setattr(call, "outputs" if dtype == torch.bfloat16 else "floats", outputs.data_ptr())
        call.rows, call.input_bits = len(inputs), input_bits
        kernels.linear(ctypes.byref(call))
        return outputs

    def rows(self, kernels: Kernels, ids: Tensor) -> Tensor:
        """Return rows of a matrix of 8-bit codes by their ids (T,) int64: (T, inputs) bf16."""
        assert self.bits == 8, "rows of 4-bit codes are not looked up"
        check(ids, torch.int64, len(ids))
        rows = torch.empty(len(ids), self.num_inputs, dtype=torch.bfloat16)
        call = self.kernel_call()
        kernels.unpack_rows(ctypes.byref(call), ids.data_ptr(), len(ids), rows.data_ptr())
        return rows
