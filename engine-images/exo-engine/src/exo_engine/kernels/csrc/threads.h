// Threads that share one kernel call: each takes a fixed part of the work, so results do not depend on
// timing.
#pragma once

namespace exo {

using Task = void (*)(void* context, int thread, int num_threads);

constexpr int kMaxThreads = 256;

// How many threads a call is shared by, the caller among them. From 1 to kMaxThreads.
void set_num_threads(int num_threads);

// For how long a thread waits for the next call before it sleeps; while it waits it takes processor time.
void wait_awake(int microseconds);

// Notes for other processes that something was computed; any thread may, as often as every microsecond.
void beat();

// The same, once for each layer.
void count_layer();

// Where it is noted: the moment of the last beat (ns, CLOCK_MONOTONIC), and the number of layers.
void set_pulse(long long* pulse);

// Runs `task` once on each thread and returns when all have ended. Calls from several threads take turns.
void run_on_threads(Task task, void* context);

}  // namespace exo
