"""How numbers of keys and values are stored, and what a row of them takes. No torch.

A row is one token's keys (or values) in one layer: for each head its numbers, and where the type is
scaled a float32 after them, by which they are to be multiplied. A scale per token and head is exact
whatever is written later, and needs no calibration.
"""

from __future__ import annotations

from dataclasses import dataclass

_SCALE_BYTES = 4


@dataclass(frozen=True, slots=True)
class KVFormat:
    """One number type of the cache."""

    name: str
    """As torch calls the type."""
    num_bytes: int
    largest: float | None = None
    """The number that the largest magnitude of a head becomes; None: stored as it is."""

    def row_bytes(self, num_heads: int, head_dim: int) -> int:
        """Return the bytes of one token's keys, or values, in one layer."""
        return num_heads * (head_dim * self.num_bytes + (_SCALE_BYTES if self.is_scaled else 0))

    @property
    def is_scaled(self) -> bool:
        """Whether each head of a row has a scale."""
        return self.largest is not None


KV_FORMATS: dict[str, KVFormat] = {
    "float32": KVFormat("float32", 4),
    "bfloat16": KVFormat("bfloat16", 2),
    "float16": KVFormat("float16", 2),
    "fp8_e4m3": KVFormat("float8_e4m3fn", 1, largest=448.0),
    "int8": KVFormat("int8", 1, largest=127.0),
}
"""Each value of `--kv-cache-dtype` but auto, which is the model's own type."""
