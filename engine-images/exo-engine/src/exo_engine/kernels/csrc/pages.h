// Pages of keys and of values: a block of tokens of one layer, which attention reads in place.
//
// Of each key/value head a page has numbers in the order that the dot-product instruction reads,
//
//     keys[dim / 2][token][dim % 2]      values[token / 2][dim][token % 2]
//
// bf16, or int8 with float32 scales[token] behind them, by which a token's numbers of the head are to be multiplied.
// A number of 8 bits is one of bf16, too, so products take it as it is, and scales the sums and weights.
#pragma once

#include "vectors.h"

namespace {

typedef int8_t Code;

// What a token's scale of one head takes, in numbers.
template <class Number>
constexpr int kScaleNumbers = sizeof(float) / sizeof(Number);
template <>
constexpr int kScaleNumbers<Bf16> = 0;

struct PageShape {
  void *keys, *values;
  long page_stride;  // numbers from page to page, of keys as of values
  int kv_heads, head_dim, page_size;
  int is_quantized;  // int8 with scales
};

// The number that a head of a page begins with.
template <class Number>
inline long page_at(const PageShape& shape, long page, int head) {
  return page * shape.page_stride + (long)head * shape.page_size * (shape.head_dim + kScaleNumbers<Number>);
}

// The scale of a token of the head that begins at `head`.
inline char* scale_of(const PageShape& shape, const Code* head, long token) {
  return (char*)head + (long)shape.page_size * shape.head_dim + token * (long)sizeof(float);
}

// kLanes pairs of numbers, as bf16.
inline Pairs load_pairs(const Bf16* from) { return load<Pairs>(from); }

inline Pairs load_pairs(const Code* from) {
#if defined(__AVX512BF16__)
  const __m512 first = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load<__m128i>(from)));
  const __m512 second = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load<__m128i>(from + 16)));
  return (Pairs)_mm512_cvtne2ps_pbh(second, first);
#else
  typedef int16_t Shorts __attribute__((vector_size(kLanes * 2)));
  const Ints both = __builtin_convertvector(load<Shorts>(from), Ints);
  const Pairs first = (Pairs)__builtin_convertvector((both << 24) >> 24, Floats);
  const Pairs second = (Pairs)__builtin_convertvector(both >> 8, Floats);
  return (first >> 16) | second;  // no more than 8 bits of either's digits are set
#endif
}

// Rounds a head's numbers to int8, by their largest magnitude; the largest one is to become 127. NaN and infinity make
// the scale NaN.
inline float quantize_head(const Bf16* head, int size, Code* codes) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: added, a number is rounded to the nearest, ties to even
  float most = 0, poison = 0;
  for (int i = 0; i < size; i++) {
    const float magnitude = __builtin_fabsf(widen_one(head[i]));
    if (magnitude > most) most = magnitude;
    poison += magnitude * 0.0f;
  }
  const float scale = (most > 1e-12f ? most : 1e-12f) / 127.0f;
  for (int i = 0; i < size; i++) {
    const float rounded = widen_one(head[i]) / scale + kRound;
    int32_t bits;
    memcpy(&bits, &rounded, sizeof bits);
    codes[i] = (Code)(bits - 0x4b400000);
  }
  return scale + poison;
}

}  // namespace
