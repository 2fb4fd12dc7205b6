"""Products of many matrices of one shape, each with its own rows, in one call (`csrc/linear.h`).

Legend: X matrices, R rows of inputs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from exo_engine.kernels.library import GroupsCall, Kernels, LinearCall
from exo_engine.kernels.tensors import check


class MatrixGroups:
    """Matrices that the kernels multiply with. Whoever has it keeps what `calls` name.

    Args:
        kernels: what computes.
        calls: X of one shape and format, without bias.
    """

    def __init__(self, kernels: Kernels, calls: Sequence[LinearCall]) -> None:
        first = calls[0]
        for call in calls:
            for name in ("num_inputs", "num_outputs", "bits", "group", "has_zeros"):
                assert getattr(call, name) == getattr(first, name), "matrices are of one form"
        self._kernels = kernels
        self._calls = (LinearCall * len(calls))(*calls)
        for call in self._calls:
            call.bias = call.floats = None

    def multiply(self, inputs: Tensor, starts: Tensor) -> Tensor:
        """Return each row times the transposed matrix of its group; the bits are those of a product of its own.

        Args:
            inputs: (R, inputs) bf16, contiguous, matrix after matrix.
            starts: (X + 1,) int32: where each one's rows begin, and where the last one's end.

        Returns:
            (R, outputs) bf16.
        """
        first = self._calls[0]
        check(inputs, torch.bfloat16, len(inputs), first.num_inputs)
        check(starts, torch.int32, len(self._calls) + 1)
        outputs = torch.empty(len(inputs), first.num_outputs, dtype=torch.bfloat16)
        call = GroupsCall(
            matrices=self._calls,
            starts=starts.data_ptr(),
            inputs=inputs.data_ptr(),
            outputs=outputs.data_ptr(),
            count=len(self._calls),
        )
        self._kernels.linear_groups(ctypes.byref(call))
        return outputs
