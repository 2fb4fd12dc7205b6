// Attention over paged keys and values of bf16, read in place, for decoding and for prompts alike.
//
// A page (block of tokens, one key/value head) is stored as the dot-product instruction reads it:
//
//     keys[dim / 2][token][dim % 2]      values[token / 2][dim][token % 2]
//
// Work is cut into tiles of up to 8 query rows of one key/value head (its query heads, of one or several
// tokens) and, along the context, into segments at fixed places. A row's arithmetic depends on its own
// position alone: not on who shares its tile, on threads, or on whether its token came in a prompt, in a
// chunk of one, or alone.
//
// Legend: D head dim, G query heads per key/value head.
#pragma once

#include <stdlib.h>

#include "parallel.h"
#include "vectors.h"

namespace {

constexpr int kTileRows = 8;
constexpr int kPageStep = 16;      // tokens of a page are read by so many,
constexpr int kBlockTokens = 64;   // and weighed by up to so many, which begin at multiples of it
constexpr int kBlockVectors = kBlockTokens / kLanes;
constexpr long kSegment = 256;  // tokens
constexpr int kMaxHeadDim = 256;

struct AttentionCall {
  const Bf16* queries;      // (tokens, kv_heads * group, D)
  const Bf16* keys;         // (pages, kv_heads, D / 2, page_size, 2)
  const Bf16* values;       // (pages, kv_heads, page_size / 2, D, 2)
  const int32_t* tables;    // (sequences, table_stride)
  const int32_t* starts;    // (sequences + 1): where each sequence's tokens are in `queries`
  const int32_t* contexts;  // (sequences): tokens up to and including its last one of this step
  const float* sinks;       // (kv_heads * group) or null: logits that take part in the sum alone
  Bf16* outputs;            // as queries
  long num_sequences, table_stride;
  long page_stride;  // numbers from page to page, of keys as of values
  int kv_heads, group, head_dim, page_size;
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

// Where a block's keys or values of one head begin, by vectors of tokens.
struct BlockPages {
  const Bf16 *keys[kBlockVectors], *values[kBlockVectors];
};

inline BlockPages pages_of(const AttentionCall& call, const int32_t* table, int head, long position, int first,
                           int past) {
  BlockPages pages;
  for (int v = 0; v < kBlockVectors; v++) pages.keys[v] = call.keys, pages.values[v] = call.values;
  for (int v = first; v < past; v++) {
    const long token = position + v * kLanes, inside = token % call.page_size;
    const long at = table[token / call.page_size] * call.page_stride + (long)head * call.page_size * call.head_dim;
    pages.keys[v] = call.keys + at + inside * 2;
    pages.values[v] = call.values + at + inside * call.head_dim;
  }
  return pages;
}

// Products of the rows' queries with the keys of `Vectors` vectors of tokens; reads those of the next block ahead.
template <int Rows, int Vectors>
void multiply_keys(const AttentionCall& call, const Bf16 (*queries)[kMaxHeadDim], const Bf16* const* keys,
                   const Bf16* const* next, Floats (*logits)[kBlockVectors]) {
  const Bf16 *from[Vectors], *ahead[Vectors];
  for (int v = 0; v < Vectors; v++) from[v] = keys[v], ahead[v] = next[v];
  Floats sums[Rows][Vectors] = {};
  for (long pair = 0; pair < call.head_dim / 2; pair++) {
    Pairs columns[Vectors];
    for (int v = 0; v < Vectors; v++) {
      columns[v] = load<Pairs>(from[v] + pair * call.page_size * 2);
      __builtin_prefetch(ahead[v] + pair * call.page_size * 2);
    }
    for (int r = 0; r < Rows; r++) {
      Pairs query = splat_pair(queries[r] + pair * 2);
      for (int v = 0; v < Vectors; v++) sums[r][v] = add_products(sums[r][v], query, columns[v]);
    }
  }
  for (int r = 0; r < Rows; r++)
    for (int v = 0; v < Vectors; v++) logits[r][v] = sums[r][v] * call.scale;
}

// Adds weighted values of the tokens in vectors [first, past) to `Vectors` vectors of dimensions.
template <int Rows, int Vectors>
void add_values(const AttentionCall& call, const Bf16 (*weights)[kBlockTokens], const float* shrink,
                const BlockPages& pages, const BlockPages& next, int first, int past, int dim, Partial& partial) {
  Floats sums[Rows][Vectors];
  for (int r = 0; r < Rows; r++)
    for (int d = 0; d < Vectors; d++)
      sums[r][d] = load<Floats>(partial.weighted[r] + dim + d * kLanes) * shrink[r];
  for (int v = first; v < past; v++)
    for (long pair = 0; pair < kLanes / 2; pair++) {
      Pairs columns[Vectors];
      for (int d = 0; d < Vectors; d++) {
        const long at = (pair * call.head_dim + dim + d * kLanes) * 2;
        columns[d] = load<Pairs>(pages.values[v] + at);
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

inline void hide(const AttentionCall& call, const Row& row, long position, int first, int past, Floats* logits) {
  Ints lanes;
  for (int i = 0; i < kLanes; i++) lanes[i] = i;
  for (int v = first; v < past; v++) {
    if (call.soft_cap > 0) logits[v] = capped(logits[v], call.soft_cap);
    Ints at = lanes + (int)(position + v * kLanes);
    logits[v] = (at >= (int)row.low) & (at < (int)row.past) ? logits[v] : splat(-__builtin_inff());
  }
}

// Turns a row's logits into weights, and returns what its sums so far are to be multiplied by.
inline float weigh(Floats* logits, int first, int past, float& largest_so_far, Floats& total, Bf16* weights) {
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
    store(weights + v * kLanes, narrow_small(power));
  }
  return shrink;
}

// What nobody has written yet may be anything, and zero times NaN is NaN: has values of tokens past `context`
// read as zeros.
inline void clean_values(const AttentionCall& call, long position, long context, int past, BlockPages& pages,
                         Bf16* room) {
  for (int v = past - 1; v >= 0 && position + (v + 1) * kLanes > context; v--, room += kLanes * kMaxHeadDim) {
    memset(room, 0, sizeof(Bf16) * kLanes * call.head_dim);
    for (long token = 0; token < context - position - v * kLanes; token++)
      for (int dim = 0; dim < call.head_dim; dim++) {
        long number = (token / 2 * call.head_dim + dim) * 2 + token % 2;
        room[number] = pages.values[v][number];
      }
    pages.values[v] = room;
  }
}

template <int Rows>
void attend_block(const AttentionCall& call, const Row* rows, const Bf16 (*queries)[kMaxHeadDim],
                  const BlockPages& pages, const BlockPages& next, long position, int first, int past, bool is_whole,
                  Floats* totals, Partial& partial) {
  constexpr int kWide = Rows <= 4 && kLanes == 16 ? 4 : 2;
  Floats logits[Rows][kBlockVectors];
  int v = first;
  for (; v + kWide <= past; v += kWide)
    multiply_keys<Rows, kWide>(call, queries, pages.keys + v, next.keys + v, (Floats(*)[kBlockVectors])(logits[0] + v));
  for (; v < past; v++)
    multiply_keys<Rows, 1>(call, queries, pages.keys + v, next.keys + v, (Floats(*)[kBlockVectors])(logits[0] + v));
  float shrink[Rows];
  alignas(64) Bf16 weights[Rows][kBlockTokens];
  for (int r = 0; r < Rows; r++) {
    if (!is_whole) hide(call, rows[r], position, first, past, logits[r]);
    shrink[r] = weigh(logits[r], first, past, partial.largest[r], totals[r], weights[r]);
  }
  int dim = 0;
  for (; dim + kWide * kLanes <= call.head_dim; dim += kWide * kLanes)
    add_values<Rows, kWide>(call, weights, shrink, pages, next, first, past, dim, partial);
  for (; dim < call.head_dim; dim += kLanes)
    add_values<Rows, 1>(call, weights, shrink, pages, next, first, past, dim, partial);
}

template <int Rows>
void attend_segment(const AttentionCall& call, const Row* rows, const int32_t* table, int head, long segment,
                    long context, Partial& partial) {
  alignas(64) Bf16 queries[Rows][kMaxHeadDim], clean[kPageStep * kMaxHeadDim];
  Floats totals[Rows] = {};
  long low = rows[0].low, past = rows[0].past, last_low = low, first_past = past;
  for (int r = 0; r < Rows; r++) {
    memcpy(queries[r], rows[r].query, sizeof(Bf16) * call.head_dim);
    partial.largest[r] = -__builtin_inff();
    for (int dim = 0; dim < call.head_dim; dim += kLanes) store(partial.weighted[r] + dim, Floats{});
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
  BlockPages pages = pages_of(call, table, head, position, from, past_block(position, past)), next;
  for (; position < past; position += kBlockTokens, from = 0, pages = next) {
    const int until = past_block(position, past);
    const long after = position + kBlockTokens, seen_until = position + until * kLanes;
    next = pages_of(call, table, head, after, 0, after < end ? past_block(after, end) : 0);
    const bool is_whole =
        call.soft_cap <= 0 && position + from * kLanes >= last_low && seen_until <= first_past;
    if (seen_until > context) clean_values(call, position, context, until, pages, clean);
    attend_block<Rows>(call, rows, queries, pages, next, position, from, until, is_whole, totals, partial);
  }
  for (int r = 0; r < Rows; r++) partial.total[r] = sum(totals[r]);
}

inline void attend_rows(int count, const AttentionCall& call, const Row* rows, const int32_t* table, int head,
                        long segment, long context, Partial& partial) {
  switch (count) {
    case 1:
      return attend_segment<1>(call, rows, table, head, segment, context, partial);
    case 2:
      return attend_segment<2>(call, rows, table, head, segment, context, partial);
    case 3:
      return attend_segment<3>(call, rows, table, head, segment, context, partial);
    case 4:
      return attend_segment<4>(call, rows, table, head, segment, context, partial);
    case 5:
      return attend_segment<5>(call, rows, table, head, segment, context, partial);
    case 6:
      return attend_segment<6>(call, rows, table, head, segment, context, partial);
    case 7:
      return attend_segment<7>(call, rows, table, head, segment, context, partial);
    default:
      return attend_segment<8>(call, rows, table, head, segment, context, partial);
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

// Up to kTileRows queries of one sequence and key/value head, over one segment of its context.
struct Piece {
  long sequence, first_row;  // row = token * group + query head, from the sequence's first token in the step
  int head, rows;
  long segment;
  bool is_first, is_last;  // of the tile's segments
};

struct Tile {
  Row rows[kTileRows];
  Bf16* outputs[kTileRows];
  int head_index[kTileRows];
};

inline Tile tile_of(const AttentionCall& call, const Piece& piece) {
  Tile tile;
  const long first = call.starts[piece.sequence], tokens = call.starts[piece.sequence + 1] - first;
  const long offset = call.contexts[piece.sequence] - tokens;
  for (int r = 0; r < piece.rows; r++) {
    const long token = (piece.first_row + r) / call.group;
    const int head = piece.head * call.group + (int)((piece.first_row + r) % call.group);
    const long at = ((first + token) * call.kv_heads * call.group + head) * call.head_dim,
               past = offset + token + 1;
    tile.rows[r] = {call.queries + at, first_seen(call, past - 1), past};
    tile.outputs[r] = call.outputs + at;
    tile.head_index[r] = head;
  }
  return tile;
}

// Calls body(piece, its cost in tokens) for the segments that rows [row, row + rows) of a sequence and head see.
template <class Body>
void for_each_segment(const AttentionCall& call, long sequence, int head, long row, int rows, const Body& body) {
  const long tokens = call.starts[sequence + 1] - call.starts[sequence],
             offset = call.contexts[sequence] - tokens;
  const long past = offset + (row + rows - 1) / call.group + 1;
  const long first = first_seen(call, offset + row / call.group) / kSegment, last = (past - 1) / kSegment;
  for (long segment = first; segment <= last; segment++)
    body(Piece{sequence, row, head, rows, segment, segment == first, segment == last},
         (segment == last ? past - segment * kSegment : kSegment) + kPageStep);
}

// Calls body(piece) for every piece in a fixed order: sequences, heads, tiles, segments. So what a head's first
// tile has read is in the cache for its others.
template <class Body>
void for_each_piece(const AttentionCall& call, const Body& body) {
  for (long sequence = 0; sequence < call.num_sequences; sequence++) {
    const long rows = (call.starts[sequence + 1] - call.starts[sequence]) * call.group;
    for (int head = 0; head < call.kv_heads; head++)
      for (long row = 0; row < rows; row += kTileRows)
        for_each_segment(call, sequence, head, row, rows - row < kTileRows ? (int)(rows - row) : kTileRows, body);
  }
}

inline void finish(const AttentionCall& call, const Tile& tile, const Partial& partial, int rows) {
  for (int r = 0; r < rows; r++) {
    float most = partial.largest[r], total = partial.total[r], scale = 1;
    if (call.sinks) {
      const float sink = call.sinks[tile.head_index[r]];
      if (sink > most) scale = exponential(splat(most - sink))[0];
      total = total * scale + exponential(splat(sink > most ? 0 : sink - most))[0];
    }
    scale /= total;
    for (int dim = 0; dim < call.head_dim; dim += kLanes)
      store(tile.outputs[r] + dim, narrow(load<Floats>(partial.weighted[r] + dim) * scale));
  }
}

inline void attend_piece(const AttentionCall& call, const Piece& piece, const Tile& tile, Partial& partial) {
  const int32_t* table = call.tables + piece.sequence * call.table_stride;
  attend_rows(piece.rows, call, tile.rows, table, piece.head, piece.segment, call.contexts[piece.sequence],
              partial);
}

// What a thread has of a tile that another one has a part of: of one begun here the sum so far, of one begun
// by a thread before it each segment.
struct Leftover {
  Piece piece;
  bool is_begun_here;
  Partial partial;
};

struct Leftovers {
  Leftover* items;
  long count, room;

  void add(const Leftover& item) {
    if (count == room) {
      room = room ? 2 * room : 4;
      items = static_cast<Leftover*>(realloc(items, sizeof(Leftover) * room));
    }
    items[count++] = item;
  }
};

struct SharedCall {
  const AttentionCall* call;
  long tokens;           // read by all pieces
  Leftovers* leftovers;  // by thread
};

inline void attend_share(const SharedCall& shared, int thread, int num_threads) {
  const AttentionCall& call = *shared.call;
  const long from = shared.tokens * thread / num_threads, past = shared.tokens * (thread + 1) / num_threads;
  long at = 0;
  bool is_begun_here = false;
  Partial total, next;
  for_each_piece(call, [&](const Piece& piece, long tokens) {
    const bool is_mine = at >= from && at < past;
    at += tokens;
    if (!is_mine) return;
    const Tile tile = tile_of(call, piece);
    attend_piece(call, piece, tile, piece.is_first ? total : next);
    exo::beat();
    if (piece.is_first) is_begun_here = true;
    if (!is_begun_here) return shared.leftovers[thread].add({piece, false, next});
    if (!piece.is_first) append(total, next, piece.rows, call.head_dim);
    if (piece.is_last)
      finish(call, tile, total, piece.rows);
    else if (at >= past)
      shared.leftovers[thread].add({piece, true, total});
    if (piece.is_last) is_begun_here = false;
  });
}

// Threads share the pieces by the tokens that they read. A tile that several threads have parts of is put
// together afterwards, from left to right as everywhere.
inline void attend(const AttentionCall& call) {
  Leftovers leftovers[exo::kMaxThreads] = {};
  SharedCall shared{&call, 0, leftovers};
  for_each_piece(call, [&](const Piece&, long tokens) { shared.tokens += tokens; });
  if (shared.tokens < 2 * kSegment) return attend_share(shared, 0, 1);
  exo::run_on_threads(
      [](void* context, int thread, int num_threads) {
        attend_share(*static_cast<SharedCall*>(context), thread, num_threads);
      },
      &shared);
  Partial total;
  for (Leftovers& of_thread : leftovers) {
    for (long i = 0; i < of_thread.count; i++) {
      const Leftover& item = of_thread.items[i];
      if (item.is_begun_here)
        total = item.partial;
      else
        append(total, item.partial, item.piece.rows, call.head_dim);
      if (item.piece.is_last) finish(call, tile_of(call, item.piece), total, item.piece.rows);
    }
    free(of_thread.items);
  }
}

}  // namespace
