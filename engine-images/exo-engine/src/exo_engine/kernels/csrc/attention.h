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
constexpr int kPageStep = 16;   // tokens of a page are taken by so many
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

template <int Rows>
void logits_of_page(const AttentionCall& call, const Row* rows, const Bf16* keys, long position,
                    Floats (*logits)[kPageStep / kLanes]) {
  constexpr int kVectors = kPageStep / kLanes;
  Floats sums[Rows][kVectors] = {};
  for (int pair = 0; pair < call.head_dim / 2; pair++) {
    Pairs columns[kVectors];
    for (int v = 0; v < kVectors; v++)
      columns[v] = load<Pairs>(keys + (pair * call.page_size + v * kLanes) * 2);
    for (int r = 0; r < Rows; r++) {
      Pairs query = splat_pair(rows[r].query + pair * 2);
      for (int v = 0; v < kVectors; v++) sums[r][v] = add_products(sums[r][v], query, columns[v]);
    }
  }
  Ints lanes;
  for (int i = 0; i < kLanes; i++) lanes[i] = i;
  for (int r = 0; r < Rows; r++)
    for (int v = 0; v < kVectors; v++) {
      Floats row = sums[r][v] * call.scale;
      if (call.soft_cap > 0) row = capped(row, call.soft_cap);
      Ints at = lanes + (int)(position + v * kLanes);
      Ints seen = (at >= (int)rows[r].low) & (at < (int)rows[r].past);
      logits[r][v] = seen ? row : splat(-__builtin_inff());
    }
}

template <int Rows>
void add_values(const AttentionCall& call, const Bf16 (*weights)[kPageStep], const float* shrink,
                const Bf16* values, Partial& partial) {
  for (int dim = 0; dim < call.head_dim; dim += kLanes) {
    Floats sums[Rows];
    for (int r = 0; r < Rows; r++) sums[r] = load<Floats>(partial.weighted[r] + dim) * shrink[r];
    for (int pair = 0; pair < kPageStep / 2; pair++) {
      Pairs columns = load<Pairs>(values + ((long)pair * call.head_dim + dim) * 2);
      for (int r = 0; r < Rows; r++)
        sums[r] = add_products(sums[r], splat_pair(weights[r] + pair * 2), columns);
    }
    for (int r = 0; r < Rows; r++) store(partial.weighted[r] + dim, sums[r]);
  }
}

template <int Rows>
void attend_segment(const AttentionCall& call, const Row* rows, const int32_t* table, int head, long segment,
                    long context, Partial& partial) {
  constexpr int kVectors = kPageStep / kLanes;
  Floats totals[Rows] = {};
  for (int r = 0; r < Rows; r++) {
    partial.largest[r] = -__builtin_inff();
    for (int dim = 0; dim < call.head_dim; dim += kLanes) store(partial.weighted[r] + dim, Floats{});
  }
  long low = rows[0].low, past = rows[0].past;
  for (int r = 1; r < Rows; r++) {
    if (rows[r].low < low) low = rows[r].low;
    if (rows[r].past > past) past = rows[r].past;
  }
  if (past > (segment + 1) * kSegment) past = (segment + 1) * kSegment;
  if (low < segment * kSegment) low = segment * kSegment;
  for (long position = low / kPageStep * kPageStep; position < past; position += kPageStep) {
    long page = table[position / call.page_size], inside = position % call.page_size;
    long at = page * call.page_stride + (long)head * call.page_size * call.head_dim;
    const Bf16* keys = call.keys + at + inside * 2;
    const Bf16* values = call.values + at + inside * call.head_dim;
    Floats logits[Rows][kVectors];
    logits_of_page<Rows>(call, rows, keys, position, logits);
    float shrink[Rows];
    alignas(64) Bf16 weights[Rows][kPageStep];
    for (int r = 0; r < Rows; r++) {
      float before = partial.largest[r], now = before;
      for (int v = 0; v < kVectors; v++) {
        float most = largest(logits[r][v]);
        if (most > now) now = most;
      }
      partial.largest[r] = now;
      shrink[r] = 1;
      if (now > before) {
        shrink[r] = before == -__builtin_inff() ? 0 : exponential(splat(before - now))[0];
        totals[r] *= shrink[r];
      }
      for (int v = 0; v < kVectors; v++) {
        Ints hidden = logits[r][v] == -__builtin_inff();
        Floats power = hidden ? Floats{} : exponential(logits[r][v] - now);
        totals[r] += power;
        store(weights[r] + v * kLanes, narrow(power));
      }
    }
    // What nobody has written yet may be anything, and zero times NaN is NaN.
    alignas(64) Bf16 clean[kPageStep * kMaxHeadDim];
    if (position + kPageStep > context) {
      memset(clean, 0, sizeof(Bf16) * kPageStep * call.head_dim);
      for (long token = 0; token < context - position; token++)
        for (int dim = 0; dim < call.head_dim; dim++) {
          long number = (token / 2 * call.head_dim + dim) * 2 + token % 2;
          clean[number] = values[number];
        }
      values = clean;
    }
    add_values<Rows>(call, weights, shrink, values, partial);
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

// Calls body(piece) for every piece in a fixed order: sequences, tiles, heads, segments.
template <class Body>
void for_each_piece(const AttentionCall& call, const Body& body) {
  for (long sequence = 0; sequence < call.num_sequences; sequence++) {
    const long tokens = call.starts[sequence + 1] - call.starts[sequence],
               offset = call.contexts[sequence] - tokens;
    for (long row = 0; row < tokens * call.group; row += kTileRows) {
      const long left = tokens * call.group - row;
      const int rows = left < kTileRows ? (int)left : kTileRows;
      const long past = offset + (row + rows - 1) / call.group + 1;
      const long first = first_seen(call, offset + row / call.group) / kSegment, last = (past - 1) / kSegment;
      for (int head = 0; head < call.kv_heads; head++)
        for (long segment = first; segment <= last; segment++)
          body(Piece{sequence, row, head, rows, segment, segment == first, segment == last},
               (segment == last ? past - segment * kSegment : kSegment) + kPageStep);
    }
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
