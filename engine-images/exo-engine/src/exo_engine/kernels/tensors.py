"""What kernels rely on: they get addresses, so the tensors are checked before."""

from __future__ import annotations

import torch
from torch import Tensor


def check(tensor: Tensor, dtype: torch.dtype, *shape: int) -> None:
    """Hold that a tensor lies in one piece, is of `dtype`, and, if given, of `shape`."""
    is_right = tensor.dtype == dtype and tensor.is_contiguous()
    assert is_right and (not shape or tensor.shape == shape), (  # noqa: PT018 - one message
        f"expected a contiguous {dtype} of {shape or 'any shape'}, "
        f"got {tensor.dtype} of {tuple(tensor.shape)}"
    )
