"""What a weight format must do: everything about one matrix of a layer but where it is used.

A layer makes one object per matrix, hands it the checkpoint's tensors one by one as they are stored,
says when that was all, and multiplies by it. Tensors come as views of a mapped file: what is kept of
them is copied, and nothing else of them stays in memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, Self

import torch
from torch import Tensor

from exo_engine.kernels.groups import MatrixGroups
from exo_engine.kernels.library import LinearCall, chosen_kernels

FLOATS = ("F32", "F16", "BF16", "F64")
"""Plain numbers, as safetensors names them."""


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor as a checkpoint must have it."""

    shape: tuple[int, ...]
    dtypes: tuple[str, ...] = FLOATS
    """Any of these, as safetensors names them."""


@dataclass(frozen=True, slots=True)
class Share:
    """Which part of a checkpoint's matrix goes where. A rank keeps a share of the rows or columns.

    ::

        target   rows of the layer's own matrix, in which several may follow one another
        rows     rows of the checkpoint's matrix (its outputs), as many
        columns  columns of it (its inputs)
        whole    rows of the checkpoint's tensor that are one matrix, where there are several in it; None: all
    """

    target: slice
    rows: slice
    columns: slice
    whole: slice | None = None


class NotFinite(ValueError):
    """A tensor that is to be quantized has NaN or infinity in it."""


def check_finite(largest: Tensor) -> None:
    """Refuse numbers that a format cannot keep.

    Args:
        largest: magnitudes of the largest of some numbers each, NaN where one of them is.

    Raises:
        NotFinite
    """
    if not largest.isfinite().all():
        raise NotFinite("has numbers that are not finite")


class GroupedProduct(Protocol):
    """Many matrices of one shape on a device; how many rows each has is not asked on the host."""

    def multiply(self, inputs: Tensor, starts: Tensor) -> Tensor:
        """Return (R, rows) for inputs (R, columns), group after group.

        Args:
            inputs: contiguous.
            starts: (groups + 1,) int32: where each group's rows begin, and where the last one's end.
        """


class WeightFormat(ABC):
    """One matrix (rows, columns) in one format: outputs by inputs.

    Args:
        rows: of this rank, of all that is merged in this matrix.
        columns: of this rank.
        dtype: of what is multiplied with it.
        device: where it lies; `meta` holds nothing and is for asking.
    """

    has_int8_head: ClassVar[bool] = False
    """Whether the output head, and an embedding that is one, are in INT8 where CPU kernels compute."""
    is_fixed = False
    """Whether a row's product may not depend on the rows beside it; the layer sets it."""

    @abstractmethod
    def __init__(
        self, rows: int, columns: int, *, dtype: torch.dtype, device: torch.device
    ) -> None: ...

    @classmethod
    @abstractmethod
    def stored(cls, rows: int, columns: int) -> Mapping[str, Stored]:
        """Return the tensors that a checkpoint has for a whole matrix, by the end of their name."""

    @abstractmethod
    def load(self, suffix: str, tensor: Tensor, share: Share) -> None:
        """Take this matrix's share of one stored tensor, which is whole and not to be changed."""

    def finish(self) -> None:  # noqa: B027 - most formats have nothing left to do
        """Do what needs all tensors of the matrix: pack, transpose. They may be dropped here."""

    @abstractmethod
    def multiply(self, inputs: Tensor, bias: Tensor | None) -> Tensor:
        """Return inputs (T, columns) times the transposed matrix, plus bias (rows,): (T, rows)."""

    def multiply_gated(self, inputs: Tensor, activation: str) -> Tensor | None:
        """Return the first half of what `multiply` gives, activated, times the second; None: in two steps only."""
        del inputs, activation
        return None

    def kernel_call(self) -> LinearCall | None:
        """Return what the CPU kernels need to multiply with it; None: only `multiply` can."""
        return None

    @classmethod
    def multiply_groups(
        cls, matrices: Sequence[Self], inputs: Tensor, sizes: Sequence[int]
    ) -> Tensor:
        """Multiply each group of rows by its own matrix, as `multiply` does, without bias.

        Args:
            matrices: of one shape, one per group.
            inputs: (R, columns), group after group.
            sizes: rows of each group; may be 0.

        Returns:
            (R, rows).
        """
        groups = zip(matrices, torch.split(inputs, list(sizes)), strict=True)
        return torch.cat([each.multiply(rows, None) for each, rows in groups if len(rows)])

    @property
    def keeps_bits(self) -> bool:
        """Whether `is_fixed` is kept."""
        return False

    @classmethod
    def grouped(cls, matrices: Sequence[Self]) -> GroupedProduct | None:
        """Return what multiplies as `multiply_groups` does in one launch; None: nothing does.

        The matrices are finished, and stay where they are.
        """
        calls = [call for each in matrices if (call := each.kernel_call()) is not None]
        kernels = chosen_kernels()
        if kernels is None or len(calls) < len(matrices):
            return None
        return MatrixGroups(kernels, calls)

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Bytes that it takes once it is finished; known from the start."""


def slabs(num_rows: int, size: int) -> Iterator[slice]:
    """Yield rows in turns of at most `size`."""
    for start in range(0, num_rows, size):
        yield slice(start, min(start + size, num_rows))


def is_for_triton(device: torch.device) -> bool:
    """Whether Triton's kernels multiply on this device."""
    return device.type == "cuda"


def multiplies_row(inputs: Tensor) -> bool:
    """Whether inputs (T, K) are one row of 16-bit numbers, for which Triton has a kernel of its own."""
    return len(inputs) == 1 and inputs.element_size() == 2 and is_for_triton(inputs.device)
