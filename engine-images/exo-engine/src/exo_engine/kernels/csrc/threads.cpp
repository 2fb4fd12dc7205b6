#include "threads.h"

#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
static void pause_briefly() { _mm_pause(); }
#else
static void pause_briefly() { std::this_thread::yield(); }
#endif

namespace exo {
namespace {

// Within a step the next call comes after some 10 µs: longer than waking a thread takes to pay for itself.
constexpr auto kSpin = std::chrono::microseconds(40);
// From one step to the next it takes up to a millisecond, after which a thread that slept is late, and its core slow.
// Until then it yields to other threads that want the core.
std::atomic<int> most_awake_us{1000};

class Pool {
 public:
  explicit Pool(int num_threads) : num_threads_(num_threads) {}

  int num_threads() const { return num_threads_; }

  void resize(int num_threads) {
    std::lock_guard<std::mutex> lock(call_);
    num_threads_ = std::clamp(num_threads, 1, kMaxThreads);
  }

  void run(Task task, void* context) {
    std::lock_guard<std::mutex> lock(call_);
    if (num_threads_ == 1) return task(context, 0, 1);
    start_missing();
    task_ = task;
    context_ = context;
    shared_by_ = num_threads_;
    unfinished_.store(shared_by_, std::memory_order_relaxed);
    const unsigned turn = turn_.load(std::memory_order_relaxed) + 1;
    unclaimed_.store(pack(turn, shared_by_), std::memory_order_release);
    turn_.store(turn, std::memory_order_release);
    turn_.notify_all();
    take_parts(turn);
    for (int left; (left = unfinished_.load(std::memory_order_acquire)) != 0;)
      await_change(unfinished_, left);
  }

 private:
  void start_missing() {
    while (static_cast<int>(workers_.size()) < num_threads_ - 1) {
      try {
        workers_.emplace_back([this, seen = turn_.load()] { serve(seen); });
      } catch (const std::system_error&) {  // no more threads are to be had
        num_threads_ = static_cast<int>(workers_.size()) + 1;
      }
    }
  }

  static std::uint64_t pack(unsigned turn, int parts) {
    return static_cast<std::uint64_t>(turn) << 32 | static_cast<unsigned>(parts);
  }

  // Takes parts of the call `turn` until none is left. Who is awake takes them: a thread that waits for a core
  // beside other work holds up only a part that it has begun. Which thread takes a part changes no result.
  void take_parts(unsigned turn) {
    std::uint64_t now = unclaimed_.load(std::memory_order_acquire);
    while (now >> 32 == turn && now != pack(turn, 0)) {
      if (!unclaimed_.compare_exchange_weak(now, now - 1, std::memory_order_acq_rel)) continue;
      task_(context_, shared_by_ - static_cast<int>(now & 0xffffffffu), shared_by_);
      if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1) unfinished_.notify_one();
      now = unclaimed_.load(std::memory_order_acquire);
    }
  }

  void serve(unsigned seen) {
    for (;;) {
      await_change(turn_, seen);
      seen = turn_.load(std::memory_order_acquire);
      take_parts(seen);
    }
  }

  template <class T>
  static void await_change(std::atomic<T>& value, T old) {
    const auto begun = std::chrono::steady_clock::now();
    const std::chrono::microseconds most{most_awake_us.load(std::memory_order_relaxed)};
    for (auto waited = begun - begun; waited < most; waited = std::chrono::steady_clock::now() - begun) {
      for (int i = 0; i < 32; i++) {
        if (value.load(std::memory_order_acquire) != old) return;
        pause_briefly();
      }
      if (waited > kSpin) std::this_thread::yield();
    }
    value.wait(old, std::memory_order_acquire);
  }

  std::mutex call_;
  std::vector<std::thread> workers_;
  int num_threads_;
  Task task_ = nullptr;
  void* context_ = nullptr;
  int shared_by_ = 1;
  std::atomic<unsigned> turn_{0};
  std::atomic<std::uint64_t> unclaimed_{0};  // the turn, and how many of its parts nobody has taken
  std::atomic<int> unfinished_{0};
};

// Never destroyed: its threads may be waiting when the process ends.
Pool* the_pool = new Pool(1);

// A process that was forked has none of its parent's threads.
[[maybe_unused]] const int registered =
    pthread_atfork(nullptr, nullptr, [] { the_pool = new Pool(the_pool->num_threads()); });

// A store alone, so that threads do not wait for each other's: none is lost that matters, as the last one counts.
std::atomic<long long> no_pulse[2];
std::atomic<std::atomic<long long>*> the_pulse{no_pulse};

}  // namespace

void beat() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  the_pulse.load(std::memory_order_relaxed)[0].store(now.tv_sec * 1000000000LL + now.tv_nsec,
                                                     std::memory_order_relaxed);
}

void count_layer() {
  std::atomic<long long>& layers = the_pulse.load(std::memory_order_relaxed)[1];
  layers.store(layers.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  beat();
}

void set_pulse(long long* pulse) {
  static_assert(sizeof(std::atomic<long long>) == sizeof(long long));
  the_pulse.store(reinterpret_cast<std::atomic<long long>*>(pulse), std::memory_order_relaxed);
}

void set_num_threads(int num_threads) { the_pool->resize(num_threads); }

void wait_awake(int microseconds) { most_awake_us.store(microseconds, std::memory_order_relaxed); }

void run_on_threads(Task task, void* context) { the_pool->run(task, context); }

}  // namespace exo
