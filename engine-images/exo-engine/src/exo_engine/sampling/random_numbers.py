"""Counter-based random numbers: a pure function of (key, counter), without state.

A request's n-th draw is `uniform(key, n)`, so it does not matter which other requests share the step,
how the prompt was chunked or how often the request was preempted.

Philox4x32-10 from Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"; constants and
known answers from Random123. In numpy: one draw per sequence and step is no work for a GPU.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_NUM_ROUNDS = 10

Words = NDArray[np.uint64]
"""32-bit words, kept in 64 bits so that products do not overflow."""


def philox(
    counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]
) -> tuple[Words, ...]:
    """Return four 32-bit words for each counter and key (arrays of one shape)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_NUM_ROUNDS):
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (product1 >> _SHIFT) ^ c1 ^ k0,
            product1 & _LOW,
            (product0 >> _SHIFT) ^ c3 ^ k1,
            product0 & _LOW,
        )
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return c0, c1, c2, c3


def uniform(keys: NDArray[np.uint64], counters: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return numbers in [0, 1) with 53 random bits, one per 64-bit key and counter."""
    zero = np.zeros_like(counters)
    high, low, _, _ = philox(
        (counters & _LOW, counters >> _SHIFT, zero, zero), (keys & _LOW, keys >> _SHIFT)
    )
    bits = (high << np.uint64(21)) | (low >> np.uint64(11))  # 32 + 21 of 53
    return bits.astype(np.float64) * 2.0**-53
