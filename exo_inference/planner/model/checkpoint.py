"""Lays the exact tensor sizes of a checkpoint over an architecture.

Callers that have a model directory or the Hub at hand read the headers (`parse_safetensors_header`
on the first bytes of each file, or the index's `metadata.total_size`) and pass them here. Pure: bytes
and mappings in, an `Architecture` out.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from exo_inference.planner.model.architecture import Architecture
from exo_inference.planner.model.quantization import gguf_type_of, gguf_type_of_bits
from exo_inference.planner.model.requantize import with_quantization

MAX_HEADER_BYTES = 100_000_000
"""The limit of the safetensors format itself."""

_BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I64": 64,
    "I32": 32, "I16": 16, "I8": 8, "U8": 8, "BOOL": 8, "U32": 32, "U16": 16, "U64": 64, "F4": 4,
}  # fmt: skip

_NOT_LOADED = re.compile(
    r"(^|\.)(mtp|original)\.|consolidated|rotary_emb\.inv_freq|attn\.masked_bias"
)
"""Tensors that a server leaves out: prediction layers, second copies, old buffers."""


@dataclass(frozen=True, slots=True)
class TensorSize:
    """One tensor of a checkpoint, from its header."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes in the file."""
        return math.prod(self.shape) * _BITS.get(self.dtype, 16) // 8


def parse_safetensors_header(data: bytes) -> list[TensorSize]:
    """Return the tensors of one safetensors file, from its first bytes.

    Raises:
        ValueError: the bytes are not such a header, or end inside it.
    """
    if len(data) < 8:
        raise ValueError(
            f"a safetensors header starts with 8 bytes of length, got {len(data)} bytes"
        )
    (length,) = struct.unpack("<Q", data[:8])
    if length > MAX_HEADER_BYTES or len(data) < 8 + length:
        raise ValueError(f"the safetensors header has {length} bytes, {len(data) - 8} are here")
    try:
        entries = json.loads(data[8 : 8 + length])
        return [
            TensorSize(name, str(entry["dtype"]), tuple(int(n) for n in entry["shape"]))
            for name, entry in entries.items()
            if name != "__metadata__"
        ]
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as exc:
        raise ValueError(f"the safetensors header has another form: {exc!r:.200}") from exc


def with_tensors(architecture: Architecture, tensors: Iterable[TensorSize]) -> Architecture:
    """Return the architecture with its weights scaled to what the checkpoint holds.

    Prediction layers, second copies and a stored copy of tied embeddings are left out, as servers do.
    """
    layers = len(architecture.layers)
    tied = not any(w.part == "lm_head" for w in architecture.outer_weights)
    total = 0
    for tensor in tensors:
        extra_layer = re.search(r"\.layers\.(\d+)\.", tensor.name)
        is_extra = (
            architecture.num_mtp_layers > 0
            and extra_layer is not None
            and "vision" not in tensor.name
            and int(extra_layer.group(1)) >= layers
        )
        is_copy = tied and tensor.name.endswith("lm_head.weight")
        if not (is_extra or is_copy or _NOT_LOADED.search(tensor.name)):
            total += tensor.num_bytes
    return with_total_bytes(architecture, total)


def with_index(architecture: Architecture, index: Mapping[str, object]) -> Architecture:
    """Return the architecture with the total of a `model.safetensors.index.json`, where it fits.

    The index's total counts prediction layers and second copies; it is taken only where it is within
    2 % of what the architecture says, and is otherwise noted.
    """
    metadata = index.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, Mapping) else None
    if total is None or architecture.cannot_size:
        return architecture
    is_number = isinstance(total, int | float) and not isinstance(total, bool)
    if not is_number or not math.isfinite(total) or total <= 0:
        reason = (
            f"metadata.total_size in its index is {total!r:.60}, expected a number of bytes above 0"
        )
        return Architecture(
            architecture.name, architecture.model_type, reason, source=architecture.source
        )
    expected = stored_bytes(architecture)
    if abs(total / expected - 1) <= 0.02:
        return with_total_bytes(architecture, int(total))
    note = f"the checkpoint's index says {total / 1e9:.2f} GB, the architecture {expected / 1e9:.2f} GB"
    error = max(architecture.weights_error, abs(total / expected - 1))
    return replace(architecture, notes=(*architecture.notes, note), weights_error=min(error, 0.5))


def with_total_bytes(architecture: Architecture, total: int) -> Architecture:
    """Return the architecture with the exact size of what a server loads from the checkpoint."""
    return replace(architecture, checkpoint_bytes=total, weights_error=0.003)


def stored_bytes(architecture: Architecture) -> float:
    """Return the bytes of all loaded weights in the checkpoint's own formats."""
    size = architecture.dtype_bytes
    sets = [(architecture.outer_weights, 1)]
    sets += [(layer.weights, count) for layer, count in architecture.layer_counts]
    return sum(
        count
        * weight.copies
        * (
            weight.format.matrix_bytes(weight.out_features, weight.in_features)
            if weight.format is not None
            else weight.out_features * weight.in_features * size
        )
        for weights, count in sets
        for weight in weights
    )


_UNKNOWN_TYPE = "the GGUF type of"


def is_gguf(architecture: Architecture) -> bool:
    """Whether the model is one of GGUF files, by its format or its name."""
    form = architecture.quantization
    is_named = "gguf" in architecture.name.lower()
    unknown = any(note.startswith(_UNKNOWN_TYPE) for note in architecture.notes)
    return is_named or unknown or (form is not None and form.method == "gguf")


def with_gguf(architecture: Architecture, file_name: str, num_bytes: int) -> Architecture:
    """Return the architecture with the weights of a GGUF file (or of its parts together).

    Args:
        architecture: of the config.json beside it.
        file_name: its type is read from it, else from the size.
        num_bytes: of all parts.
    """
    bits = 8 * num_bytes / max(1, architecture.num_parameters)
    mix = gguf_type_of(file_name) or (gguf_type_of_bits(bits) if bits > 0 else None)
    if mix is None:
        note = (
            f"{_UNKNOWN_TYPE} {file_name} is not known: weights are counted in {architecture.dtype}"
        )
        unknown = replace(architecture, notes=(*architecture.notes, note), weights_error=0.5)
        return replace(_at_least(unknown, num_bytes), weights_error=0.5)
    model = with_quantization(architecture, mix)
    note = f"weights are those of {file_name}, {mix} by its {'name' if gguf_type_of(file_name) else 'size'}"
    model = replace(model, notes=(*model.notes, note), weights_error=max(model.weights_error, 0.05))
    return with_gguf_bytes(model, num_bytes)


def with_gguf_bytes(model: Architecture, num_bytes: int) -> Architecture:
    """Return a model in a GGUF type with the size of its file (or of its parts together), where the two are of one weight."""
    is_whole = abs(num_bytes / max(1.0, stored_bytes(model)) - 1) <= 0.15
    return with_total_bytes(model, num_bytes) if is_whole else _at_least(model, num_bytes)


def _at_least(model: Architecture, num_bytes: int) -> Architecture:
    """Return the model with no fewer bytes than its file has: a name says less than a size."""
    if num_bytes <= stored_bytes(model):
        return model
    note = f"its file has {num_bytes / 2**30:,.2f} GiB, more than its type explains: all of it is counted"
    return with_total_bytes(replace(model, notes=(*model.notes, note)), num_bytes)
