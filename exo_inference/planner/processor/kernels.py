"""The form in which an engine's rules say what its compiled kernels for processors compute; `engine_rules.py` fills it in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PLAIN_LOOPS = "plain"
"""The path of exo-engine's kernels that has no vectors (`exo_engine/kernels/library.py`)."""


@dataclass(frozen=True, slots=True)
class TorchPart:
    """What PyTorch computes of the layers of a family.

    Attributes:
        what: in a noun or several.
        most_times: as long as an estimate for the kernels a step was measured to take, at most; None: longer than can be
            told by one number.
    """

    what: str
    most_times: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProcessorKernels:
    """What the kernels compute.

    Attributes:
        dtype: the number type of activations.
        quantizations: values of --quantization.
        cache_types: values of --kv-cache-dtype.
        input_multiple: plain weights have a multiple of so many inputs.
        most_int8_inputs: inputs of INT8 weights, whose sums are whole numbers of 32 bits.
        backend: the value of --attention-backend that asks for them; without the flag they are taken where they can be.
        other_backends: its values that take no kernels and start on a processor all the same.
        head_multiple, longest_head: heads have a multiple of so many numbers, and so many at most.
        block_multiple: blocks of the cache have a multiple of so many tokens.
        by_torch: model types of which PyTorch computes a part.
    """

    dtype: str
    quantizations: frozenset[str]
    cache_types: frozenset[str]
    input_multiple: int
    most_int8_inputs: int
    backend: str
    other_backends: frozenset[str]
    head_multiple: int
    longest_head: int
    block_multiple: int
    by_torch: Mapping[str, TorchPart]
