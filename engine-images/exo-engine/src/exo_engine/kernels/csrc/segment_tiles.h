// Attention of up to 16 rows over one segment, on the tiles of AMX: what segment.h leaves to a set of instructions.
//
// Pages have keys and values in the order that the instruction reads: a row of a tile has a pair of dimensions of 16
// tokens' keys, or of 16 dimensions a pair of tokens' values. 16 tokens of a page are 8 such rows of values, so these
// are half a tile. What an instruction adds to a row's sum does not depend on the other rows.
//
// Legend: D head dim.
#pragma once

#include "segment.h"
#include "tiles.h"

namespace {

// Registers; sums have those below.
constexpr int kWholeRows = 4, kHalfRows = 5, kWholeNumbers = 6, kHalfNumbers = 7;
constexpr long kHalfStep = kTileStep / 2;

inline void shape_attention_tiles(int count) {
  TileShapes shapes;
  for (int tile = 0; tile < 8; tile++) {
    shapes.row_bytes[tile] = tile == kHalfRows ? kTileRowBytes / 2 : kTileRowBytes;
    shapes.rows[tile] = (uint8_t)(tile == kWholeNumbers ? kMaxTileRows : tile == kHalfNumbers ? kHalfStep : count);
  }
  use_shapes(shapes);
}

// Adds rows times numbers to sums [0, Sums); each one's numbers begin at from[Sum] + offset.
template <int Rows, int Numbers, int Sums, int Sum = 0>
inline void add_to_sums(const char* const* from, long offset, long stride) {
  load_tile<Numbers>(from[Sum] + offset, stride);
  add_tile_products<TileNumbers::kBf16, Sum, Rows, Numbers>();
  if constexpr (Sum + 1 < Sums) add_to_sums<Rows, Numbers, Sums, Sum + 1>(from, offset, stride);
}

template <int Sums, int Sum = 0>
inline void load_all(const char* from, long stride) {
  load_tile<Sum>(from + Sum * kTileRowBytes, stride);
  if constexpr (Sum + 1 < Sums) load_all<Sums, Sum + 1>(from, stride);
}

template <int Sums, int Sum = 0>
inline void store_all(char* to, long stride) {
  store_tile<Sum>(to + Sum * kTileRowBytes, stride);
  if constexpr (Sum + 1 < Sums) store_all<Sums, Sum + 1>(to, stride);
}

// Where keys or values of a block's vectors of tokens are as bf16, and the bytes from a row of pairs to the next.
struct WideNumbers {
  const char* from[kBlockVectors];
  long stride;
};

// Room for numbers of 8 bits as bf16.
template <class Number>
struct WideRoom {
  alignas(64) char numbers[kScaleNumbers<Number> > 0 ? kBlockTokens * kMaxHeadDim * sizeof(Bf16) : 1];
};

template <class Number>
WideNumbers widen_keys(const AttentionCall& call, const BlockPages<Number>& pages, int first, int past,
                       WideRoom<Number>& room) {
  const long stride = call.pages.page_size * 2;
  WideNumbers wide{{}, kScaleNumbers<Number> > 0 ? kTileRowBytes : stride * (long)sizeof(Number)};
  for (int v = first; v < past; v++) {
    wide.from[v] = (const char*)pages.keys[v];
    if constexpr (kScaleNumbers<Number> > 0) {
      char* to = room.numbers + v * kPageStep * kMaxHeadDim * sizeof(Bf16);
      wide.from[v] = to;
      for (long pair = 0; pair < call.pages.head_dim / 2; pair++)
        store(to + pair * kTileRowBytes, load_pairs(pages.keys[v] + pair * stride));
    }
  }
  return wide;
}

template <class Number>
WideNumbers widen_values(const AttentionCall& call, const BlockPages<Number>& pages, int first, int past,
                         WideRoom<Number>& room) {
  WideNumbers wide{{}, call.pages.head_dim * 4L};
  for (int v = first; v < past; v++) {
    wide.from[v] = (const char*)pages.values[v];
    if constexpr (kScaleNumbers<Number> > 0) {
      char* to = room.numbers + v * kPageStep * kMaxHeadDim * sizeof(Bf16);
      wide.from[v] = to;
      for (long pair = 0; pair < kPageStep / 2 * call.pages.head_dim; pair += kLanes)
        store(to + pair * 4, load_pairs(pages.values[v] + pair * 2));
    }
  }
  return wide;
}

// Fetches `count` rows of pairs of what comes next, `stride` numbers from one to the next: while products are made, as
// memory brings only so many lines at once.
template <class Number>
inline void fetch(const Number* from, long count, long stride) {
  for (long i = 0; i < count; i++) __builtin_prefetch(from + i * stride);
}

// Products of the rows' queries with the keys of `Vectors` vectors of tokens; reads those of the next block ahead.
template <int Vectors, class Number>
void multiply_keys(const AttentionCall& call, const Bf16 (*queries)[kMaxHeadDim], const WideNumbers& keys,
                   const BlockPages<Number>& next, int first, Floats (*logits)[kBlockVectors]) {
  const char *rows = (const char*)queries, *from[Vectors];
  for (int v = 0; v < Vectors; v++) from[v] = keys.from[first + v];
  const long pairs = call.pages.head_dim / 2, next_stride = call.pages.page_size * 2;
  clear_sums<1, Vectors>();
  long pair = 0;
  for (; pair + kTileStep <= pairs; pair += kTileStep) {
    for (int v = 0; v < Vectors; v++) fetch(next.keys[first + v] + pair * next_stride, kTileStep, next_stride);
    load_tile<kWholeRows>(rows + pair * 4, sizeof queries[0]);
    add_to_sums<kWholeRows, kWholeNumbers, Vectors>(from, pair * keys.stride, keys.stride);
  }
  if (pair < pairs) {
    for (int v = 0; v < Vectors; v++) fetch(next.keys[first + v] + pair * next_stride, kHalfStep, next_stride);
    load_tile<kHalfRows>(rows + pair * 4, sizeof queries[0]);
    add_to_sums<kHalfRows, kHalfNumbers, Vectors>(from, pair * keys.stride, keys.stride);
  }
  store_all<Vectors>((char*)&logits[0][first], sizeof logits[0]);
}

// Adds weighted values of the tokens in vectors [first, past) to `Vectors` vectors of dimensions.
template <int Vectors, class Number>
void add_values(const Bf16 (*weights)[kBlockTokens], const WideNumbers& values, const BlockPages<Number>& next,
                int first, int past, int dim, Partial& partial) {
  char* sums = (char*)(partial.weighted[0] + dim);
  const long numbers = values.stride / (long)sizeof(Bf16);  // of a pair of tokens
  load_all<Vectors>(sums, sizeof partial.weighted[0]);
  for (int v = first; v < past; v++) {
    for (int d = 0; d < Vectors; d++)
      fetch(next.values[v] + (dim + d * kLanes) * 2, kHalfStep, numbers);
    const char* from[Vectors];
    for (int d = 0; d < Vectors; d++) from[d] = values.from[v] + dim * 4 + d * kTileRowBytes;
    load_tile<kHalfRows>(weights[0] + v * kLanes, sizeof weights[0]);
    add_to_sums<kHalfRows, kHalfNumbers, Vectors>(from, 0, values.stride);
  }
  store_all<Vectors>(sums, sizeof partial.weighted[0]);
}

// Calls body.operator()<Count>() for 1 to 4.
template <class Body>
inline void with_count(int count, const Body& body) {
  switch (count) {
    case 1:
      return body.template operator()<1>();
    case 2:
      return body.template operator()<2>();
    case 3:
      return body.template operator()<3>();
    default:
      return body.template operator()<4>();
  }
}

// A few rows fill no tile, and wait for memory: vectors do the same arithmetic, without the tiles that threads of a
// core share. Of each step of a tile they make the sum of the first numbers of pairs and that of the second ones, each
// rounded at every product, and add both to the sum so far; numbers smaller than normal ones are zero.
constexpr int kVectorRows = 4;

class SmallAreZero {
 public:
  SmallAreZero() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }
  ~SmallAreZero() { _mm_setcsr(before_); }

 private:
  unsigned before_;
};

// What one step of a tile adds to sums (Rows, Vectors): numbers of rows[r] times those of from[v], `stride` from one
// pair's to the next.
template <int Rows, int Vectors, long Steps, class Number>
inline void add_step(const float* const* rows, const Number* const* from, const Number* const* ahead, long stride,
                     Floats (*sums)[Vectors]) {
  Floats firsts[Rows][Vectors] = {}, seconds[Rows][Vectors] = {};
  for (long pair = 0; pair < Steps; pair++)
    for (int v = 0; v < Vectors; v++) {
      const Pairs column = load_pairs(from[v] + pair * stride);
      __builtin_prefetch(ahead[v] + pair * stride);
      const Floats first = (Floats)(column << 16), second = (Floats)(column & 0xffff0000u);
      for (int r = 0; r < Rows; r++) {
        firsts[r][v] = multiply_add(splat(rows[r][pair * 2]), first, firsts[r][v]);
        seconds[r][v] = multiply_add(splat(rows[r][pair * 2 + 1]), second, seconds[r][v]);
      }
    }
  for (int r = 0; r < Rows; r++)
    for (int v = 0; v < Vectors; v++) sums[r][v] += firsts[r][v] + seconds[r][v];
}

// Rows (count, size) of bf16 as float32.
template <int Size>
inline void widen_rows(const Bf16 (*rows)[Size], int count, int size, float (*floats)[Size]) {
  for (int r = 0; r < count; r++)
    for (int i = 0; i < size; i += kLanes) store(floats[r] + i, widen(load<Bf16s>(rows[r] + i)));
}

// Calls body.operator()<Vectors>(first vector) for vectors [first, past), as many at once as registers hold.
template <int Rows, class Body>
inline void for_vectors(int first, int past, const Body& body) {
  constexpr int kWide = Rows <= 3 ? 4 : 2;
  for (; first + kWide <= past; first += kWide) body.template operator()<kWide>(first);
  for (; first < past; first++) body.template operator()<1>(first);
}

template <int Rows, class Number>
void multiply_keys_of_few(const AttentionCall& call, const float (*queries)[kMaxHeadDim],
                          const BlockPages<Number>& pages, const BlockPages<Number>& next, int first, int past,
                          Floats (*logits)[kBlockVectors]) {
  const SmallAreZero small_are_zero;
  const long pairs = call.pages.head_dim / 2, stride = call.pages.page_size * 2;
  for_vectors<Rows>(first, past, [&]<int Vectors>(int vector) {
    Floats sums[Rows][Vectors] = {};
    for (long pair = 0; pair < pairs; pair += kTileStep) {
      const float* rows[Rows];
      const Number *from[Vectors], *ahead[Vectors];
      for (int r = 0; r < Rows; r++) rows[r] = queries[r] + pair * 2;
      for (int v = 0; v < Vectors; v++) {
        from[v] = pages.keys[vector + v] + pair * stride;
        ahead[v] = next.keys[vector + v] + pair * stride;
      }
      if (pair + kTileStep <= pairs)
        add_step<Rows, Vectors, kTileStep>(rows, from, ahead, stride, sums);
      else
        add_step<Rows, Vectors, kHalfStep>(rows, from, ahead, stride, sums);
    }
    for (int r = 0; r < Rows; r++)
      for (int v = 0; v < Vectors; v++) logits[r][vector + v] = sums[r][v];
  });
}

template <int Rows, class Number>
void add_values_of_few(const AttentionCall& call, const Bf16 (*weights)[kBlockTokens],
                       const BlockPages<Number>& pages, const BlockPages<Number>& next, int first, int past,
                       Partial& partial) {
  const SmallAreZero small_are_zero;
  alignas(64) float floats[Rows][kBlockTokens];
  widen_rows(weights, Rows, past * kLanes, floats);
  for_vectors<Rows>(0, call.pages.head_dim / kLanes, [&]<int Vectors>(int vector) {
    const long at = vector * kLanes;
    Floats sums[Rows][Vectors];
    for (int r = 0; r < Rows; r++)
      for (int d = 0; d < Vectors; d++) sums[r][d] = load<Floats>(partial.weighted[r] + at + d * kLanes);
    for (int v = first; v < past; v++) {
      const float* rows[Rows];
      const Number *from[Vectors], *ahead[Vectors];
      for (int r = 0; r < Rows; r++) rows[r] = floats[r] + v * kLanes;
      for (int d = 0; d < Vectors; d++) {
        from[d] = pages.values[v] + (at + d * kLanes) * 2;
        ahead[d] = next.values[v] + (at + d * kLanes) * 2;
      }
      add_step<Rows, Vectors, kHalfStep>(rows, from, ahead, call.pages.head_dim * 2L, sums);
    }
    for (int r = 0; r < Rows; r++)
      for (int d = 0; d < Vectors; d++) store(partial.weighted[r] + at + d * kLanes, sums[r][d]);
  });
}

template <class Number>
void attend_block(const AttentionCall& call, const Row* rows, int count, const Bf16 (*queries)[kMaxHeadDim],
                  const float (*few_queries)[kMaxHeadDim], const BlockPages<Number>& pages,
                  const BlockPages<Number>& next, long position, int first, int past, bool is_whole, Floats* totals,
                  Partial& partial) {
  const int head_dim = call.pages.head_dim;
  WideRoom<Number> room;
  Floats logits[kTileRows][kBlockVectors];
  alignas(64) Bf16 weights[kTileRows][kBlockTokens];
  if (count <= kVectorRows)
    with_count(count, [&]<int Rows>() {
      multiply_keys_of_few<Rows>(call, few_queries, pages, next, first, past, logits);
    });
  else
    with_count(past - first, [&]<int Vectors>() {
      const WideNumbers keys = widen_keys(call, pages, first, past, room);
      finish_stores();
      multiply_keys<Vectors>(call, queries, keys, next, first, logits);
    });
  if constexpr (kScaleNumbers<Number> > 0)
    for (int v = first; v < past; v++)
      __builtin_prefetch(next.key_scales[v]), __builtin_prefetch(next.value_scales[v]);
  for (int r = 0; r < count; r++) {
    for (int v = first; v < past; v++) {
      Floats scale = splat(call.scale);
      if constexpr (kScaleNumbers<Number> > 0) scale *= load<Floats>(pages.key_scales[v]);
      logits[r][v] *= scale;
    }
    if (!is_whole) hide(call, rows[r], position, first, past, logits[r]);
    const float shrink =
        weigh<Number>(logits[r], first, past, pages.value_scales, partial.largest[r], totals[r], weights[r]);
    if (shrink == 1) continue;
    for (int dim = 0; dim < head_dim; dim += kLanes)
      store(partial.weighted[r] + dim, load<Floats>(partial.weighted[r] + dim) * shrink);
  }
  if (count <= kVectorRows)
    return with_count(count, [&]<int Rows>() {
      add_values_of_few<Rows>(call, weights, pages, next, first, past, partial);
    });
  const WideNumbers values = widen_values(call, pages, first, past, room);
  finish_stores();
  for (int dim = 0; dim < head_dim; dim += 4 * kLanes)
    with_count((head_dim - dim) / kLanes, [&]<int Vectors>() {
      add_values<Vectors>(weights, values, next, first, past, dim, partial);
    });
}

template <class Number>
void attend_rows(int count, const AttentionCall& call, const Row* rows, const int32_t* table, int head, long segment,
                 long context, Partial& partial) {
  alignas(64) Bf16 queries[kTileRows][kMaxHeadDim];
  alignas(64) float few_queries[kVectorRows][kMaxHeadDim];
  Floats totals[kTileRows] = {};
  for (int r = 0; r < count; r++) memcpy(queries[r], rows[r].query, sizeof(Bf16) * call.pages.head_dim);
  begin(partial, count, call.pages.head_dim);
  if (count > kVectorRows)
    shape_attention_tiles(count);
  else
    widen_rows(queries, count, call.pages.head_dim, few_queries);
  for_each_block<Number>(
      call, rows, count, table, head, segment, context,
      [&](const BlockPages<Number>& pages, const BlockPages<Number>& next, long position, int first, int past,
          bool is_whole) {
        attend_block<Number>(call, rows, count, queries, few_queries, pages, next, position, first, past, is_whole,
                             totals, partial);
      });
  if (count > kVectorRows) release_tiles();
  for (int r = 0; r < count; r++) partial.total[r] = sum(totals[r]);
}

}  // namespace
