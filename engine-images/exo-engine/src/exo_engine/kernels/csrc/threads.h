// Threads that share one kernel call: each takes a fixed part of the work, so results do not depend on
// timing.
#pragma once

namespace exo {

using Task = void (*)(void* context, int thread, int num_threads);

constexpr int kMaxThreads = 256;

// How many threads a call is shared by, the caller among them. From 1 to kMaxThreads.
void set_num_threads(int num_threads);

// Runs `task` once on each thread and returns when all have ended. Calls from several threads take turns.
void run_on_threads(Task task, void* context);

}  // namespace exo
