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


def check_pages(keys: Tensor, values: Tensor) -> None:
    """Hold that each page lies in one piece, and those of keys and values equally far apart."""
    check(keys[0], torch.bfloat16)
    check(values[0], torch.bfloat16)
    assert keys.stride(0) == values.stride(0), "one stride serves keys and values"
