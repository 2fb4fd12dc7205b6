// The library's surface: which sets of instructions it has, which of them this processor has, and the
// threads.
#include <cstring>

#include "kernels.h"
#include "threads.h"

#define EXO_DECLARE(path) extern "C" const exo_kernels exo_kernels_##path
EXO_DECLARE(plain);
#ifdef EXO_HAS_AVX2
EXO_DECLARE(avx2);
#endif
#ifdef EXO_HAS_AVX512
EXO_DECLARE(avx512);
#endif
#ifdef EXO_HAS_AVX512_BF16
EXO_DECLARE(avx512_bf16);
#endif

namespace {

struct Path {
  const char* name;
  const exo_kernels* kernels;
  bool (*can_run)();
};

bool always() { return true; }
#if defined(__x86_64__)
// Every processor with AVX2 has F16C.
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && has_avx2();
}
bool has_avx512_bf16() {
  return has_avx512() && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
}
#endif

// Best first.
const Path kPaths[] = {
#ifdef EXO_HAS_AVX512_BF16
    {"avx512_bf16", &exo_kernels_avx512_bf16, has_avx512_bf16},
#endif
#ifdef EXO_HAS_AVX512
    {"avx512", &exo_kernels_avx512, has_avx512},
#endif
#ifdef EXO_HAS_AVX2
    {"avx2", &exo_kernels_avx2, has_avx2},
#endif
    {"plain", &exo_kernels_plain, always},
};

}  // namespace

#define EXO_EXPORT extern "C" __attribute__((visibility("default")))

// The name of the i-th set of instructions that this processor has, best first; null past the last.
EXO_EXPORT const char* exo_path(int i) {
  for (const Path& path : kPaths)
    if (path.can_run() && i-- == 0) return path.name;
  return nullptr;
}

// The kernels for a set of instructions; null where this processor or library does not have it.
EXO_EXPORT const exo_kernels* exo_load(const char* name) {
  for (const Path& path : kPaths)
    if (std::strcmp(path.name, name) == 0 && path.can_run()) return path.kernels;
  return nullptr;
}

EXO_EXPORT int exo_interface() { return EXO_INTERFACE; }

EXO_EXPORT void exo_set_pulse(long long* pulse) { exo::set_pulse(pulse); }

EXO_EXPORT void exo_set_num_threads(int num_threads) { exo::set_num_threads(num_threads); }
