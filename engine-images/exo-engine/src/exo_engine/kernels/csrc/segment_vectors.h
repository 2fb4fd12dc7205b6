// Attention of up to 8 rows over one segment, with vectors: what segment.h leaves to a set of instructions.
//
// Legend: D head dim.
#pragma once

#include "segment.h"

namespace {

// Products of the rows' queries with the keys of `Vectors` vectors of tokens; reads those of the next block ahead.
template <int Rows, int Vectors, class Number>
void multiply_keys(const AttentionCall& call, const Bf16 (*queries)[kMaxHeadDim], const BlockPages<Number>& pages,
                   const BlockPages<Number>& next, int first, Floats (*logits)[kBlockVectors]) {
  const Number *from[Vectors], *ahead[Vectors];
  for (int v = 0; v < Vectors; v++) from[v] = pages.keys[first + v], ahead[v] = next.keys[first + v];
  Floats sums[Rows][Vectors] = {};
  for (long pair = 0; pair < call.pages.head_dim / 2; pair++) {
    Pairs columns[Vectors];
    for (int v = 0; v < Vectors; v++) {
      columns[v] = load_pairs(from[v] + pair * call.pages.page_size * 2);
      __builtin_prefetch(ahead[v] + pair * call.pages.page_size * 2);
    }
    for (int r = 0; r < Rows; r++) {
      Pairs query = splat_pair(queries[r] + pair * 2);
      for (int v = 0; v < Vectors; v++) sums[r][v] = add_products(sums[r][v], query, columns[v]);
    }
  }
  for (int v = 0; v < Vectors; v++) {
    Floats scale = splat(call.scale);
    if constexpr (kScaleNumbers<Number>) {
      scale *= load<Floats>(pages.key_scales[first + v]);
      __builtin_prefetch(next.key_scales[first + v]);
      __builtin_prefetch(next.value_scales[first + v]);
    }
    for (int r = 0; r < Rows; r++) logits[r][first + v] = sums[r][v] * scale;
  }
}

// Adds weighted values of the tokens in vectors [first, past) to `Vectors` vectors of dimensions.
template <int Rows, int Vectors, class Number>
void add_values(const AttentionCall& call, const Bf16 (*weights)[kBlockTokens], const float* shrink,
                const BlockPages<Number>& pages, const BlockPages<Number>& next, int first, int past, int dim,
                Partial& partial) {
  Floats sums[Rows][Vectors];
  for (int r = 0; r < Rows; r++)
    for (int d = 0; d < Vectors; d++)
      sums[r][d] = load<Floats>(partial.weighted[r] + dim + d * kLanes) * shrink[r];
  for (int v = first; v < past; v++)
    for (long pair = 0; pair < kLanes / 2; pair++) {
      Pairs columns[Vectors];
      for (int d = 0; d < Vectors; d++) {
        const long at = (pair * call.pages.head_dim + dim + d * kLanes) * 2;
        columns[d] = load_pairs(pages.values[v] + at);
        __builtin_prefetch(next.values[v] + at);
      }
      for (int r = 0; r < Rows; r++) {
        Pairs weight = splat_pair(weights[r] + v * kLanes + pair * 2);
        for (int d = 0; d < Vectors; d++) sums[r][d] = add_products(sums[r][d], weight, columns[d]);
      }
    }
  for (int r = 0; r < Rows; r++)
    for (int d = 0; d < Vectors; d++) store(partial.weighted[r] + dim + d * kLanes, sums[r][d]);
}

template <int Rows, class Number>
void attend_block(const AttentionCall& call, const Row* rows, const Bf16 (*queries)[kMaxHeadDim],
                  const BlockPages<Number>& pages, const BlockPages<Number>& next, long position, int first, int past,
                  bool is_whole, Floats* totals, Partial& partial) {
  constexpr int kWide = Rows <= 4 && kLanes == 16 ? 4 : 2;
  Floats logits[Rows][kBlockVectors];
  int v = first;
  for (; v + kWide <= past; v += kWide)
    multiply_keys<Rows, kWide>(call, queries, pages, next, v, logits);
  for (; v < past; v++) multiply_keys<Rows, 1>(call, queries, pages, next, v, logits);
  float shrink[Rows];
  alignas(64) Bf16 weights[Rows][kBlockTokens];
  for (int r = 0; r < Rows; r++) {
    if (!is_whole) hide(call, rows[r], position, first, past, logits[r]);
    shrink[r] =
        weigh<Number>(logits[r], first, past, pages.value_scales, partial.largest[r], totals[r], weights[r]);
  }
  int dim = 0;
  for (; dim + kWide * kLanes <= call.pages.head_dim; dim += kWide * kLanes)
    add_values<Rows, kWide>(call, weights, shrink, pages, next, first, past, dim, partial);
  for (; dim < call.pages.head_dim; dim += kLanes)
    add_values<Rows, 1>(call, weights, shrink, pages, next, first, past, dim, partial);
}

template <int Rows, class Number>
void attend_segment(const AttentionCall& call, const Row* rows, const int32_t* table, int head, long segment,
                    long context, Partial& partial) {
  alignas(64) Bf16 queries[Rows][kMaxHeadDim];
  Floats totals[Rows] = {};
  for (int r = 0; r < Rows; r++) memcpy(queries[r], rows[r].query, sizeof(Bf16) * call.pages.head_dim);
  begin(partial, Rows, call.pages.head_dim);
  for_each_block<Number>(
      call, rows, Rows, table, head, segment, context,
      [&](const BlockPages<Number>& pages, const BlockPages<Number>& next, long position, int first, int past,
          bool is_whole) {
        attend_block<Rows, Number>(call, rows, queries, pages, next, position, first, past, is_whole, totals, partial);
      });
  for (int r = 0; r < Rows; r++) partial.total[r] = sum(totals[r]);
}

template <class Number>
void attend_rows(int count, const AttentionCall& call, const Row* rows, const int32_t* table, int head,
                        long segment, long context, Partial& partial) {
  switch (count) {
    case 1:
      return attend_segment<1, Number>(call, rows, table, head, segment, context, partial);
    case 2:
      return attend_segment<2, Number>(call, rows, table, head, segment, context, partial);
    case 3:
      return attend_segment<3, Number>(call, rows, table, head, segment, context, partial);
    case 4:
      return attend_segment<4, Number>(call, rows, table, head, segment, context, partial);
    case 5:
      return attend_segment<5, Number>(call, rows, table, head, segment, context, partial);
    case 6:
      return attend_segment<6, Number>(call, rows, table, head, segment, context, partial);
    case 7:
      return attend_segment<7, Number>(call, rows, table, head, segment, context, partial);
    default:
      return attend_segment<8, Number>(call, rows, table, head, segment, context, partial);
  }
}

}  // namespace
