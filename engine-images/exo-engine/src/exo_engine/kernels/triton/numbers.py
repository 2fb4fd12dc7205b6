"""Numbers of one byte inside kernels: read and written by integer operations, or by the hardware's own.

e4m3 has a sign, four bits of exponent with bias 7, three bits of fraction, and 448 as its largest number
(OCP, 8-bit Floating Point Specification, 2023). Moved to the same places of a float32 it is the number
times 2^-120, its smallest numbers included.
"""

from __future__ import annotations

import triton
import triton.language as tl

LARGEST_E4M3 = tl.constexpr(448.0)
LARGEST_INT8 = tl.constexpr(127.0)
LEAST_SCALE = tl.constexpr(1e-12)
_TWO_TO_120 = tl.constexpr(2.0**120)
_SMALLEST_NORMAL = tl.constexpr(2.0**-6)
# Adding and taking it away rounds a float32 to an integer, halves to even.
_ROUNDER = tl.constexpr(1.5 * 2**23)


@triton.jit
def decode_e4m3(codes, target: tl.constexpr, has_e4m3: tl.constexpr):
    """Turn bytes into numbers of the type `target`; `has_e4m3`: by the hardware's conversion."""
    if has_e4m3:
        return codes.to(tl.float8e4nv, bitcast=True).to(target)
    wide = codes.to(tl.uint32)
    moved = ((wide & 0x80) << 24) | ((wide & 0x7F) << 20)
    return (moved.to(tl.float32, bitcast=True) * _TWO_TO_120).to(target)


@triton.jit
def encode_e4m3(numbers):
    """Turn float32 into bytes, rounding to the nearest, halves to even; beyond 448 is 448."""
    bits = numbers.to(tl.uint32, bitcast=True)
    magnitudes = tl.minimum(tl.abs(numbers), LARGEST_E4M3)
    held = magnitudes.to(tl.uint32, bitcast=True)
    normal = ((held + 0x7FFFF + ((held >> 20) & 1)) >> 20).to(tl.int32) - ((127 - 7) << 3)
    small = ((magnitudes * 512.0 + _ROUNDER) - _ROUNDER).to(tl.int32)
    codes = tl.where(magnitudes < _SMALLEST_NORMAL, small, normal)
    return (codes | ((bits >> 24) & 0x80).to(tl.int32)).to(tl.uint8)


@triton.jit
def encode_int8(numbers):
    """Turn float32 of at most 127 into int8, rounding to the nearest, halves to even."""
    return ((numbers + _ROUNDER) - _ROUNDER).to(tl.int8)


@triton.jit
def multiply(a, b, sums, is_interpreted: tl.constexpr):
    """Return a @ b + sums in float32; the interpreter has no products of 16-bit numbers."""
    if is_interpreted:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), sums, input_precision="ieee")
    return tl.dot(a, b, sums, input_precision="ieee")
