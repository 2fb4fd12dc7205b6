#include "threads.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
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
    unfinished_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
    turn_.fetch_add(1, std::memory_order_release);
    turn_.notify_all();
    task(context, 0, shared_by_);
    for (int left; (left = unfinished_.load(std::memory_order_acquire)) != 0;)
      await_change(unfinished_, left);
  }

 private:
  void start_missing() {
    while (static_cast<int>(workers_.size()) < num_threads_ - 1) {
      int thread = static_cast<int>(workers_.size()) + 1;
      try {
        workers_.emplace_back([this, thread, seen = turn_.load()] { serve(thread, seen); });
      } catch (const std::system_error&) {  // no more threads are to be had
        num_threads_ = thread;
      }
    }
  }

  void serve(int thread, unsigned seen) {
    for (;;) {
      await_change(turn_, seen);
      seen = turn_.load(std::memory_order_acquire);
      if (thread < shared_by_) task_(context_, thread, shared_by_);
      if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1) unfinished_.notify_one();
    }
  }

  template <class T>
  static void await_change(std::atomic<T>& value, T old) {
    const auto until = std::chrono::steady_clock::now() + kSpin;
    do {
      for (int i = 0; i < 32; i++) {
        if (value.load(std::memory_order_acquire) != old) return;
        pause_briefly();
      }
    } while (std::chrono::steady_clock::now() < until);
    value.wait(old, std::memory_order_acquire);
  }

  std::mutex call_;
  std::vector<std::thread> workers_;
  int num_threads_;
  Task task_ = nullptr;
  void* context_ = nullptr;
  int shared_by_ = 1;
  std::atomic<unsigned> turn_{0};
  std::atomic<int> unfinished_{0};
};

// Never destroyed: its threads may be waiting when the process ends.
Pool* the_pool = new Pool(1);

// A process that was forked has none of its parent's threads.
[[maybe_unused]] const int registered =
    pthread_atfork(nullptr, nullptr, [] { the_pool = new Pool(the_pool->num_threads()); });

}  // namespace

void set_num_threads(int num_threads) { the_pool->resize(num_threads); }

void run_on_threads(Task task, void* context) { the_pool->run(task, context); }

}  // namespace exo
