// Attention of a few rows of queries over one segment of their context: the arithmetic of attention.h.
//
// Legend: D head dim.
#pragma once

#include "pages.h"
#include "parallel.h"
#include "vectors.h"

namespace {

#if defined(__AMX_TILE__)
constexpr int kTileRows = 16;  // those of a tile, see segment_tiles.h
#else
constexpr int kTileRows = 8;
#endif
constexpr int kPageStep = 16;      // tokens of a page are read by so many,
constexpr int kBlockTokens = 64;   // and weighed by up to so many, which begin at multiples of it
constexpr int kBlockVectors = kBlockTokens / kLanes;
constexpr long kSegment = 256;  // tokens
constexpr int kMaxHeadDim = 256;

struct AttentionCall {
  PageShape pages;
  const Bf16* queries;      // (tokens, kv_heads * group, D)
  const int32_t* tables;    // (sequences, table_stride)
  const int32_t* starts;    // (sequences + 1): where each sequence's tokens are in `queries`
  const int32_t* contexts;  // (sequences): tokens up to and including its last one of this step
  const float* sinks;       // (kv_heads * group) or null: logits that take part in the sum alone
  Bf16* outputs;            // as queries
  long num_sequences, table_stride;
  int group;
  int window;             // a token sees so many, itself included; 0: all before it
  int chunk;              // a token sees those of its own chunk, chunks begin at 0; 0: all before it
  float scale, soft_cap;  // soft_cap 0: none
};

// The first position that the token at `position` sees.
inline long first_seen(const AttentionCall& call, long position) {
  if (call.chunk > 0) return position / call.chunk * call.chunk;
  return call.window > 0 && position >= call.window ? position - call.window + 1 : 0;
}

inline long rounded_to_pages(long tokens) { return (tokens + kPageStep - 1) / kPageStep * kPageStep; }

struct Row {
  const Bf16* query;
  long low, past;  // the positions it sees: [low, past)
};

// One tile over one segment: for each row the largest logit, the sum of exponentials, and the weighted
// values.
struct Partial {
  float largest[kTileRows], total[kTileRows];
  alignas(64) float weighted[kTileRows][kMaxHeadDim];
};

inline Floats capped(Floats logits, float cap) {
  Floats power = exponential(logits * (2.0f / cap));
  return cap * (1.0f - 2.0f / (power + 1.0f));  // cap * tanh(logits / cap)
}

// Where a block's keys or values of one head begin, by vectors of tokens, and their scales.
template <class Number>
struct BlockPages {
  const Number *keys[kBlockVectors], *values[kBlockVectors];
  const char *key_scales[kBlockVectors], *value_scales[kBlockVectors];
};

template <class Number>
BlockPages<Number> pages_of(const AttentionCall& call, const int32_t* table, int head, long position, int first,
                            int past) {
  const PageShape& shape = call.pages;
  const Number *keys = (const Number*)shape.keys, *values = (const Number*)shape.values;
  BlockPages<Number> pages;
  for (int v = 0; v < kBlockVectors; v++) {
    pages.keys[v] = keys, pages.values[v] = values;
    pages.key_scales[v] = (const char*)keys, pages.value_scales[v] = (const char*)values;
  }
  for (int v = first; v < past; v++) {
    const long token = position + v * kLanes, inside = token % shape.page_size;
    const long at = page_at<Number>(shape, table[token / shape.page_size], head);
    pages.keys[v] = keys + at + inside * 2;
    pages.values[v] = values + at + inside * shape.head_dim;
    if constexpr (kScaleNumbers<Number>) {
      pages.key_scales[v] = scale_of(shape, keys + at, inside);
      pages.value_scales[v] = scale_of(shape, values + at, inside);
    }
  }
  return pages;
}

inline void hide(const AttentionCall& call, const Row& row, long position, int first, int past, Floats* logits) {
  Ints lanes;
  for (int i = 0; i < kLanes; i++) lanes[i] = i;
  for (int v = first; v < past; v++) {
    if (call.soft_cap > 0) logits[v] = capped(logits[v], call.soft_cap);
    Ints at = lanes + (int)(position + v * kLanes);
    logits[v] = (at >= (int)row.low) & (at < (int)row.past) ? logits[v] : splat(-__builtin_inff());
  }
}

// Turns a row's logits into weights of stored numbers, and returns what its sums so far are to be multiplied by.
template <class Number>
float weigh(Floats* logits, int first, int past, const char* const* scales, float& largest_so_far, Floats& total,
            Bf16* weights) {
  Floats most = logits[first];
  for (int v = first + 1; v < past; v++) most = larger(logits[v], most);
  const float before = largest_so_far, of_block = largest(most), now = of_block > before ? of_block : before;
  float shrink = 1;
  if (now > before) {
    shrink = before == -__builtin_inff() ? 0 : exponential(splat(before - now))[0];
    total *= shrink;
    largest_so_far = now;
  }
  for (int v = first; v < past; v++) {
    Floats power = exponential(logits[v] - now);
    power = logits[v] == -__builtin_inff() ? Floats{} : power;
    total += power;
    if constexpr (kScaleNumbers<Number>) power *= load<Floats>(scales[v]);
    store(weights + v * kLanes, narrow_small(power));
  }
  return shrink;
}

// Where values are put that are not read as they are stored: those of one page step, and their scales.
template <class Number>
struct CleanRoom {
  alignas(64) Number values[kPageStep * kMaxHeadDim];
  float scales[kPageStep];
};

// What nobody has written yet may be anything, and zero times NaN is NaN: has values of tokens past `context`
// read as zeros.
template <class Number>
void clean_values(const AttentionCall& call, long position, long context, int past, BlockPages<Number>& pages,
                  CleanRoom<Number>& room) {
  const int head_dim = call.pages.head_dim;
  for (int v = past - 1, at = 0; v >= 0 && position + (v + 1) * kLanes > context; v--, at += kLanes) {
    Number* values = room.values + at * kMaxHeadDim;
    float* scales = room.scales + at;
    const long written = context - position - v * kLanes;
    memset(values, 0, sizeof(Number) * kLanes * head_dim);
    memset(scales, 0, sizeof(float) * kLanes);
    if constexpr (kScaleNumbers<Number>) {
      if (written > 0) memcpy(scales, pages.value_scales[v], sizeof(float) * written);
    }
    for (long token = 0; token < written; token++)
      for (int dim = 0; dim < head_dim; dim++) {
        long number = (token / 2 * head_dim + dim) * 2 + token % 2;
        values[number] = pages.values[v][number];
      }
    pages.values[v] = values;
    pages.value_scales[v] = (const char*)scales;
  }
}

// Calls body(pages, next, position, first, past, is_whole) for the blocks of a segment that any of the rows sees, of
// vectors [first, past) each. `next` are the block's after it; is_whole: whether all rows see all of it.
template <class Number, class Body>
void for_each_block(const AttentionCall& call, const Row* rows, int count, const int32_t* table, int head, long segment,
                    long context, const Body& body) {
  CleanRoom<Number> clean;
  long low = rows[0].low, past = rows[0].past, last_low = low, first_past = past;
  for (int r = 1; r < count; r++) {
    if (rows[r].low < low) low = rows[r].low;
    if (rows[r].low > last_low) last_low = rows[r].low;
    if (rows[r].past > past) past = rows[r].past;
    if (rows[r].past < first_past) first_past = rows[r].past;
  }
  const long end = past;
  if (past > (segment + 1) * kSegment) past = (segment + 1) * kSegment;
  if (low < segment * kSegment) low = segment * kSegment;
  const auto past_block = [](long position, long past) {
    return (int)(past - position < kBlockTokens ? rounded_to_pages(past - position) : kBlockTokens) / kLanes;
  };
  long position = low / kBlockTokens * kBlockTokens;
  int from = (int)((low - position) / kPageStep * kPageStep / kLanes);
  BlockPages pages = pages_of<Number>(call, table, head, position, from, past_block(position, past)), next = pages;
  for (; position < past; position += kBlockTokens, from = 0, pages = next) {
    const int until = past_block(position, past);
    const long after = position + kBlockTokens, seen_until = position + until * kLanes;
    next = pages_of<Number>(call, table, head, after, 0, after < end ? past_block(after, end) : 0);
    const bool is_whole =
        call.soft_cap <= 0 && position + from * kLanes >= last_low && seen_until <= first_past;
    if (seen_until > context) clean_values(call, position, context, until, pages, clean);
    body(pages, next, position, from, until, is_whole);
  }
}

inline void begin(Partial& partial, int count, int head_dim) {
  for (int r = 0; r < count; r++) {
    partial.largest[r] = -__builtin_inff();
    for (int dim = 0; dim < head_dim; dim += kLanes) store(partial.weighted[r] + dim, Floats{});
  }
}

// Adds what comes after in the context to `partial`; always from left to right, so that sums have the same
// bits.
inline void append(Partial& partial, const Partial& next, int rows, int head_dim) {
  for (int r = 0; r < rows; r++) {
    if (next.largest[r] == -__builtin_inff()) continue;
    float most = partial.largest[r] > next.largest[r] ? partial.largest[r] : next.largest[r];
    float own =
        partial.largest[r] == -__builtin_inff() ? 0 : exponential(splat(partial.largest[r] - most))[0];
    float other = exponential(splat(next.largest[r] - most))[0];
    partial.largest[r] = most;
    partial.total[r] = partial.total[r] * own + next.total[r] * other;
    for (int dim = 0; dim < head_dim; dim += kLanes)
      store(partial.weighted[r] + dim,
            load<Floats>(partial.weighted[r] + dim) * own + load<Floats>(next.weighted[r] + dim) * other);
  }
}

}  // namespace
