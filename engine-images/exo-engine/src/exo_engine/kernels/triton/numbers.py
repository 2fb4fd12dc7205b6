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

E4M3_PTX = tl.constexpr("""{
.reg .b16 low, high;
mov.b32 {low, high}, $2;
cvt.rn.f16x2.e4m3x2 $0, low;
cvt.rn.f16x2.e4m3x2 $1, high;
}""")
"""By the conversion that the hardware has since compute capability 8.9."""
E4M3_INTEGERS_PTX = tl.constexpr("""{
.reg .b32 low, high, sign, scale;
mov.b32 scale, 0x5c005c00;
prmt.b32 low, $2, 0, 0x1404;
prmt.b32 high, $2, 0, 0x3424;
and.b32 sign, low, 0x80008000;
shr.b32 low, low, 1;
and.b32 low, low, 0x3f803f80;
or.b32 low, low, sign;
mul.f16x2 $0, low, scale;
and.b32 sign, high, 0x80008000;
shr.b32 high, high, 1;
and.b32 high, high, 0x3f803f80;
or.b32 high, high, sign;
mul.f16x2 $1, high, scale;
}""")
"""Moved to the same places of a float16 it is the number times 2^-8, its smallest numbers included."""
INT8_PTX = tl.constexpr("""{
.reg .b32 low, high, other;
xor.b32 low, $2, 0x80808080;
mov.b32 other, 0x64646464;
prmt.b32 high, low, other, 0x4342;
prmt.b32 low, low, other, 0x4140;
mov.b32 other, 0x64806480;
sub.f16x2 $0, low, other;
sub.f16x2 $1, high, other;
}""")
"""The number plus 128 in the last places of 1024, less 1152."""


@triton.jit
def decode_e4m3(codes, target: tl.constexpr, has_e4m3: tl.constexpr):
    """Turn bytes into numbers of the type `target`; `has_e4m3`: by the hardware's conversion."""
    if has_e4m3:
        return codes.to(tl.float8e4nv, bitcast=True).to(target)
    wide = codes.to(tl.uint32)
    moved = ((wide & 0x80) << 24) | ((wide & 0x7F) << 20)
    return (moved.to(tl.float32, bitcast=True) * _TWO_TO_120).to(target)


@triton.jit
def unpack_bytes(stored, STORED: tl.constexpr, BYTES: tl.constexpr):
    """Turn bytes into float16 on one of NVIDIA's GPUs, four at a time; `BYTES`: `packed` or `packed integers`.

    The compiler moves what it knows as a conversion behind the change of layout before a product, and then reads the bytes
    of a tile one by one. Of this it knows nothing.
    """
    asm: tl.constexpr = (
        INT8_PTX if STORED == "int8" else E4M3_PTX if BYTES == "packed" else E4M3_INTEGERS_PTX
    )
    return tl.inline_asm_elementwise(
        asm, "=&r,=&r,r", [stored], dtype=tl.float16, is_pure=False, pack=4
    )


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
