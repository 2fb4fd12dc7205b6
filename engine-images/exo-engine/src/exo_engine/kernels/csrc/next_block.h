// Reads the next block of a matrix ahead while this one is multiplied. With few rows a product waits for memory, with
// many for the processor: so each pass over a block, for some rows, fetches its part of the next block.
#pragma once

#include "store.h"

namespace {

class NextBlock {
 public:
  // Args:
  //   block_bytes: of each block, which follow one another.
  //   row, end: the pass's first row, and the output behind its last: the pass that ends a block reads ahead.
  //   past: the output behind the last that this thread computes.
  //   steps: how often the pass calls `read_ahead`.
  //   rows: of each pass, at most.
  NextBlock(const LinearCall& call, long block_bytes, long row, long end, long past, long steps,
            long rows = kMaxRows) {
    const long passes = (call.rows + rows - 1) / rows, reads = steps * passes;
    if (passes < kLeastPasses || block_bytes > kMostBytes || end % kBlock || end >= past || reads == 0) return;
    const long step = (block_bytes + reads - 1) / reads, first = row / rows * steps * step;
    if (first >= block_bytes) return;  // more passes than a block has bytes for
    at_ = (const char*)call.packed + end / kBlock * block_bytes + first;
    step_ = step;
  }

  // Whether this pass does so; else it reads a little of its own block ahead.
  bool is_wanted() const { return step_ > 0; }

  void read_ahead() {
    for (long line = 0; line < step_; line += kLine) __builtin_prefetch(at_ + line, 0, 2);
    at_ += step_;
  }

 private:
  static constexpr long kLeastPasses = 3;      // with two, what is left to fetch in one holds that one up
  static constexpr long kMostBytes = 1 << 18;  // more, and a second cache of 1 MiB has no room for inputs beside two
  static constexpr long kLine = 64;

  const char* at_ = nullptr;
  long step_ = 0;
};

}  // namespace
