// Vectors of numbers, of the width that this file is compiled for. GCC and Clang turn the operators into
// instructions; only what has no operator is written for each set of instructions.
#pragma once

#include <stdint.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

// Everything is in an unnamed namespace: this header is compiled once per set of instructions, and the linker
// must not take one's function for another's. For the same reason nothing of the standard library's templates
// is used.
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef uint16_t Bf16;

typedef float Floats __attribute__((vector_size(kLanes * 4)));
typedef int32_t Ints __attribute__((vector_size(kLanes * 4)));
typedef uint32_t Pairs
    __attribute__((vector_size(kLanes * 4)));  // two bf16 each; the first is the lower half
typedef uint16_t Bf16s __attribute__((vector_size(kLanes * 2)));

template <class V>
inline V load(const void* from) {
  V value;
  memcpy(&value, from, sizeof value);
  return value;
}

template <class V>
inline void store(void* to, V value) {
  memcpy(to, &value, sizeof value);
}

inline Floats splat(float value) { return value - Floats{}; }

inline Pairs splat_pair(const Bf16* pair) {
  uint32_t bits;
  memcpy(&bits, pair, sizeof bits);
  return bits | Pairs{};
}

inline Floats widen(Bf16s values) { return (Floats)(__builtin_convertvector(values, Pairs) << 16); }

// Rounds to the nearest, ties to even; NaN stays NaN.
inline Bf16s narrow(Floats values) {
  Pairs bits = (Pairs)values;
  Pairs rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  Pairs nan = (bits >> 16) | 0x40;
  return __builtin_convertvector((Pairs)(values == values ? (Ints)rounded : (Ints)nan), Bf16s);
}

// The same for numbers that are 0 or of a normal size.
inline Bf16s narrow_small(Floats values) {
#if defined(__AVX512BF16__)
  return (Bf16s)_mm512_cvtneps_pbh((__m512)values);
#else
  return narrow(values);
#endif
}

inline float widen_one(Bf16 value) {
  uint32_t bits = (uint32_t)value << 16;
  float result;
  memcpy(&result, &bits, sizeof result);
  return result;
}

inline Bf16 narrow_one(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  if (value != value) return (Bf16)((bits >> 16) | 0x40);
  return (Bf16)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// a * b + c, rounded once where there is an instruction for it. The compiler makes none of its own
// (-ffp-contract=off): it would in one function and not in another, and the same numbers would get other
// bits.
inline Floats multiply_add(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
  return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
  return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}

// sums + first of a * first of b + second of a * second of b, lane by lane.
inline Floats add_products(Floats sums, Pairs a, Pairs b) {
#if defined(__AVX512BF16__)
  return (Floats)_mm512_dpbf16_ps((__m512)sums, (__m512bh)a, (__m512bh)b);
#else
  sums = multiply_add((Floats)(a << 16), (Floats)(b << 16), sums);
  return multiply_add((Floats)(a & 0xffff0000u), (Floats)(b & 0xffff0000u), sums);
#endif
}

// Fixed order: halves are added until one is left.
inline float sum(Floats values) {
  float lanes[kLanes];
  store(lanes, values);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; i++) lanes[i] += lanes[i + half];
  return lanes[0];
}

inline float largest(Floats values) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)values);
#endif
  float lanes[kLanes];
  store(lanes, values);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; i++) lanes[i] = lanes[i] > lanes[i + half] ? lanes[i] : lanes[i + half];
  return lanes[0];
}

inline bool is_any(Ints lanes) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)lanes, (__m512i)lanes);
#elif defined(__AVX2__)
  return !_mm256_testz_si256((__m256i)lanes, (__m256i)lanes);
#else
  for (int i = 0; i < kLanes; i++)
    if (lanes[i]) return true;
  return false;
#endif
}

// NaN in b comes through.
inline Floats larger(Floats a, Floats b) {
#if defined(__AVX512F__)
  return (Floats)_mm512_max_ps((__m512)a, (__m512)b);
#else
  return a > b ? a : b;
#endif
}

inline Floats smaller(Floats a, Floats b) {
#if defined(__AVX512F__)
  return (Floats)_mm512_min_ps((__m512)a, (__m512)b);
#else
  return a < b ? a : b;
#endif
}

// e to the power of values, within 2 units of the last place for -87 to 88 and flat beyond; NaN stays NaN:
// 2^n times a polynomial on [-ln 2 / 2, ln 2 / 2] (coefficients 1/k!, degree 6), after Cody and Waite's
// splitting of ln 2.
inline Floats exponential(Floats values) {
  values = smaller(splat(88.0f), larger(splat(-87.0f), values));
  const float round = 12582912.0f;  // 1.5 * 2^23: added, a number is rounded to the nearest whole one
  Floats turns = values * 1.44269504f + round;
  Floats count = turns - round;
  Floats rest = multiply_add(count, splat(-0.693359375f), values);
  rest = multiply_add(count, splat(2.12194440e-4f), rest);
  Floats result = splat(1.0f / 720);
  const float coefficients[] = {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
  for (float coefficient : coefficients) result = multiply_add(result, rest, splat(coefficient));
  return result * (Floats)(((Ints)turns << 23) + (127 << 23));
}

}  // namespace
