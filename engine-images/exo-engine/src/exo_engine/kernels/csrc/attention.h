// Attention over paged keys and values (pages.h), read in place, for decoding and for prompts alike.
//
// Work is cut into tiles of up to 8 query rows (16 with AMX) of one key/value head (its query heads, of one or several
// tokens) and, along the context, into segments at fixed places (segment.h). A row's arithmetic depends on its
// own position alone: not on who shares its tile, on threads, or on whether its token came in a prompt, in a
// chunk of one, or alone.
//
// Legend: D head dim, G query heads per key/value head.
#pragma once

#include <stdlib.h>

#if defined(__AMX_TILE__)
#include "segment_tiles.h"
#else
#include "segment_vectors.h"
#endif

namespace {

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
    const long at = ((first + token) * call.pages.kv_heads * call.group + head) * call.pages.head_dim,
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
    for (int head = 0; head < call.pages.kv_heads; head++)
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
    for (int dim = 0; dim < call.pages.head_dim; dim += kLanes)
      store(tile.outputs[r] + dim, narrow(load<Floats>(partial.weighted[r] + dim) * scale));
  }
}

inline void attend_piece(const AttentionCall& call, const Piece& piece, const Tile& tile, Partial& partial) {
  const int32_t* table = call.tables + piece.sequence * call.table_stride;
  const auto attend_some = call.pages.is_quantized ? attend_rows<Code> : attend_rows<Bf16>;
  attend_some(piece.rows, call, tile.rows, table, piece.head, piece.segment, call.contexts[piece.sequence], partial);
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
    if (!piece.is_first) append(total, next, piece.rows, call.pages.head_dim);
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
        append(total, item.partial, item.piece.rows, call.pages.head_dim);
      if (item.piece.is_last) finish(call, tile_of(call, item.piece), total, item.piece.rows);
    }
    free(of_thread.items);
  }
}

}  // namespace
