"""A matrix of bf16 in the packed form of the kernels (`csrc/linear.h`), and products with it.

Legend: T rows of inputs.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from exo_engine.kernels.library import Kernels, LinearCall
from exo_engine.kernels.tensors import check
from exo_engine.kernels.weight_memory import WEIGHTS

_BLOCK = 64
# Rows that are converted to bf16 at a time while packing other number types.
_SLAB_ROWS = 1024


def packed_shape(num_outputs: int, num_inputs: int) -> tuple[int, ...]:
    """Return the shape of a matrix's packed form: outputs are filled up to whole blocks."""
    return (-(-num_outputs // _BLOCK), num_inputs // 2, _BLOCK, 2)


class PackedMatrix:
    """A matrix (outputs, inputs); the number of inputs is even.

    Args:
        kernels: what computes.
        num_outputs: rows.
        num_inputs: columns.
    """

    def __init__(self, kernels: Kernels, num_outputs: int, num_inputs: int) -> None:
        assert num_inputs % 2 == 0, "weights are packed in pairs"
        self.num_outputs = num_outputs
        self.num_inputs = num_inputs
        self._kernels = kernels
        shape = packed_shape(num_outputs, num_inputs)
        self.storage = WEIGHTS.empty(shape, torch.bfloat16)
        """The packed form."""
        self.storage[-1] = 0  # outputs that fill up the last block
        self.call = LinearCall(
            packed=self.storage.data_ptr(), num_inputs=num_inputs, num_outputs=num_outputs, bits=16
        )
        """What the kernel is to be told, but for inputs and outputs."""

    def fill(self, first: int, rows: Tensor) -> None:
        """Take `rows` (n, inputs) of any number type as outputs [first, first + n)."""
        for start in range(0, len(rows), _SLAB_ROWS):
            slab = rows[start : start + _SLAB_ROWS].to(torch.bfloat16)
            if slab.stride(1) != 1:
                slab = slab.contiguous()
            self._kernels.pack(
                slab.data_ptr(),
                slab.stride(0),
                len(slab),
                self.num_inputs,
                self.storage.data_ptr(),
                first + start,
            )

    def multiply(
        self, inputs: Tensor, bias: Tensor | None = None, *, dtype: torch.dtype = torch.bfloat16
    ) -> Tensor:
        """Return inputs (T, inputs) bf16 times the transposed matrix, plus bias.

        Args:
            inputs: contiguous.
            bias: (outputs,) bf16.
            dtype: of the result, bfloat16 or float32; sums are float32 either way.

        Returns:
            (T, outputs).
        """
        check(inputs, torch.bfloat16, len(inputs), self.num_inputs)
        if bias is not None:
            check(bias, torch.bfloat16, self.num_outputs)
        outputs = torch.empty(len(inputs), self.num_outputs, dtype=dtype)
        is_float = dtype == torch.float32
        call = self.call
        call.inputs = inputs.data_ptr()
        call.bias = None if bias is None else bias.data_ptr()
        call.outputs = None if is_float else outputs.data_ptr()
        call.floats = outputs.data_ptr() if is_float else None
        call.rows = len(inputs)
        self._kernels.linear(ctypes.byref(call))
        return outputs

    def rows(self, ids: Tensor) -> Tensor:
        """Return rows of the matrix by their ids (T,) int64: (T, inputs)."""
        check(ids, torch.int64, len(ids))
        rows = torch.empty(len(ids), self.num_inputs, dtype=torch.bfloat16)
        self._kernels.unpack_rows(
            ctypes.byref(self.call), ids.data_ptr(), len(ids), rows.data_ptr()
        )
        return rows
