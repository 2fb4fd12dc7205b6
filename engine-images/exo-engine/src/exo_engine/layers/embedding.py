"""Token embeddings, which may also be the output head.

Legend: T tokens in step, N rows that need logits, E hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from exo_engine.kernels.linear import PackedMatrix, packed_shape
from exo_engine.layers.base import Context, Layer, Slot
from exo_engine.weight_formats.base import Share, Stored, is_for_triton, multiplies_row
from exo_engine.weight_formats.int8 import Int8


class Embedding(Layer):
    """A row of plain numbers per token, the same on every rank."""

    def __init__(self, context: Context, name: str, vocab_size: int, hidden_size: int) -> None:
        super().__init__(context)
        shape = (vocab_size, hidden_size)
        kernels = context.kernels if hidden_size % 2 == 0 else None
        self._packed = None
        self.keeps_bits = context.is_fixed and is_for_triton(context.device)
        if kernels is None or context.device.type == "meta":
            self.weight = context.empty(*(shape if kernels is None else packed_shape(*shape)))
            load: Callable[[Tensor], object] = self.weight.copy_
        else:
            self._packed = PackedMatrix(kernels, *shape)
            self.weight = self._packed.storage
            load = partial(self._packed.fill, 0)
        self.slots[f"{name}.weight"] = Slot(Stored(shape), load)

    @property
    def is_computed_by_kernels(self) -> bool:
        """Whether the CPU kernels look up and project."""
        return self._packed is not None

    def look_up(self, token_ids: Tensor) -> Tensor:
        """Return (T, E) for token ids (T,), integers."""
        if self._packed is not None:
            return self._packed.rows(token_ids.long())
        return F.embedding(token_ids, self.weight)

    def project(self, hidden: Tensor) -> Tensor:
        """Return how well each token's row fits hidden states (N, E): (N, V), of their type or float32."""
        if self._packed is not None:
            return self._packed.multiply(hidden.contiguous(), dtype=torch.float32)
        if self.keeps_bits:
            from exo_engine.kernels.triton import fixed

            return fixed.multiply(hidden, self.weight)
        if multiplies_row(hidden):
            from exo_engine.kernels.triton import matmul

            return matmul.multiply_row(self.weight, hidden)
        return F.linear(hidden, self.weight)

    @property
    def num_bytes(self) -> int:
        """See `Layer.num_bytes`."""
        return self.weight.nbytes


class Int8Embedding(Layer):
    """Token embeddings in INT8, with a scale per token, for the CPU kernels.

    Logits read half of the bytes so. Hidden states are quantized to 16 bits for them, as their errors are the logits'.
    """

    is_computed_by_kernels = True

    def __init__(self, context: Context, name: str, vocab_size: int, hidden_size: int) -> None:
        super().__init__(context)
        self._matrix = Int8(vocab_size, hidden_size, dtype=context.dtype, device=context.device)
        rows = slice(0, vocab_size)
        whole = Share(rows, rows, slice(0, hidden_size))
        load = partial(self._matrix.load, "weight", share=whole)
        self.slots[f"{name}.weight"] = Slot(Stored((vocab_size, hidden_size)), load)

    def finish(self) -> None:
        """See `Layer.finish`."""
        self._matrix.finish()

    def look_up(self, token_ids: Tensor) -> Tensor:
        """Return (T, E) for token ids (T,), integers."""
        return self._matrix.look_up(token_ids.long())

    def project(self, hidden: Tensor) -> Tensor:
        """Return how well each token's row fits hidden states (N, E): (N, V) float32."""
        return self._matrix.project(hidden)

    @property
    def num_bytes(self) -> int:
        """See `Layer.num_bytes`."""
        return self._matrix.num_bytes


def make_head(
    context: Context, name: str, vocab_size: int, hidden_size: int
) -> Embedding | Int8Embedding:
    """Return an output head, or an embedding that is one too: in INT8 where the weight format has it so."""
    is_int8 = context.weight_format.has_int8_head and Int8.has_kernels(
        hidden_size, context.dtype, context.device
    )
    make = Int8Embedding if is_int8 else Embedding
    return make(context, name, vocab_size, hidden_size)
