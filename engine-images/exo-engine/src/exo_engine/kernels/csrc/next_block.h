// Reads the next block of a matrix ahead while this one is multiplied. With few rows a product waits for memory, with
// many for the processor: so each pass over a block, for some rows, fetches its part of the next block.
#pragma once

#include "store.h"

namespace {

class NextBlock {
 public:
  // Args:
  //   block_bytes: of each block, which follow one another.
  //   output, row: the first of this pass.
  //   steps: how often the pass calls `read_ahead`.
  NextBlock(const LinearCall& call, long block_bytes, long output, long row, long steps) {
    const long passes = (call.rows + kMaxRows - 1) / kMaxRows;
    if (passes < kLeastPasses || block_bytes > kMostBytes) return;
    step_ = (block_bytes + steps * passes - 1) / (steps * passes);
    at_ = (const char*)call.packed + (output / kBlock + 1) * block_bytes + row / kMaxRows * steps * step_;
  }

  // Whether it pays; else a pass reads a little of its own block ahead.
  bool is_wanted() const { return step_ > 0; }

  void read_ahead() {
    for (long line = 0; line < step_; line += kLine) __builtin_prefetch(at_ + line, 0, 2);
    at_ += step_;
  }

 private:
  static constexpr long kLeastPasses = 3;     // with two, what is left to fetch in one holds that one up
  static constexpr long kMostBytes = 1 << 18;  // two blocks fit into a core's second cache
  static constexpr long kLine = 64;

  const char* at_ = nullptr;
  long step_ = 0;
};

}  // namespace
