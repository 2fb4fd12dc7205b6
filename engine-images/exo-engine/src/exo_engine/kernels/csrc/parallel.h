// Shares a loop among the threads: `for_each_part(n, body)` calls body(first, past) for consecutive parts of
// [0, n).
#pragma once

#include <stdlib.h>

#include "threads.h"

namespace {

template <class Body>
struct Parts {
  long count;
  const Body* body;

  static void run(void* context, int thread, int num_threads) {
    const Parts& parts = *static_cast<Parts*>(context);
    long first = parts.count * thread / num_threads, past = parts.count * (thread + 1) / num_threads;
    if (first < past) (*parts.body)(first, past);
  }
};

constexpr long kLeastNumbers = 16384;  // for which waking the other threads pays

// Rows of so many numbers for which it does.
inline long least_rows(long numbers) { return numbers > 0 ? kLeastNumbers / numbers + 2 : 2; }

// Below `least` the caller does all of it: waking the others would take longer.
template <class Body>
void for_each_part(long count, long least, const Body& body) {
  if (count < least) {
    if (count > 0) body(0L, count);
    return;
  }
  Parts<Body> parts{count, &body};
  exo::run_on_threads(Parts<Body>::run, &parts);
}

// Room of the calling thread, kept for its next call. Those of different numbers do not overlap.
template <int Number = 0>
char* room_for(long bytes) {
  static thread_local char* room = nullptr;
  static thread_local long size = 0;
  if (bytes > size) {
    free(room);
    size = 2 * bytes;
    room = static_cast<char*>(aligned_alloc(64, (size + 63) / 64 * 64));
  }
  return room;
}

}  // namespace
