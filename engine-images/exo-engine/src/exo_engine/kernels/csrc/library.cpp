// The library's surface: which sets of instructions it has, which of them this processor has, and the
// threads.
#include <cstring>

#include "kernels.h"
#include "threads.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

#define EXO_DECLARE(path) extern "C" const exo_kernels exo_kernels_##path
EXO_DECLARE(plain);
#ifdef EXO_HAS_AVX2
EXO_DECLARE(avx2);
#endif
#ifdef EXO_HAS_AVX2_VNNI
EXO_DECLARE(avx2_vnni);
#endif
#ifdef EXO_HAS_AVX512
EXO_DECLARE(avx512);
#endif
#ifdef EXO_HAS_AVX512_VNNI
EXO_DECLARE(avx512_vnni);
#endif
#ifdef EXO_HAS_AVX512_BF16
EXO_DECLARE(avx512_bf16);
#endif
#ifdef EXO_HAS_AMX
EXO_DECLARE(amx);
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
bool has_avx512_vnni() { return has_avx512() && __builtin_cpu_supports("avx512vnni"); }
bool has_avx512_bf16() { return has_avx512_vnni() && __builtin_cpu_supports("avx512bf16"); }
bool has_avx2_vnni() {
  constexpr unsigned kVnni = 1u << 4;  // not all compilers that know the instructions know the name
  unsigned a, b, c, d;
  return has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & kVnni);
}
#endif
#ifdef EXO_HAS_AMX
bool processor_has_amx() {
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25, kAll = kBf16 | kTile | kInt8;
  unsigned a, b, c, d;
  return has_avx512_bf16() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & kAll) == kAll;
}
// Tiles make a thread's state larger, so Linux wants to be asked for them (since 5.16), once for all threads of a
// process: arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA). It refuses where a stack for signals is too small.
bool may_use_tiles() {
#ifdef __linux__
  static const bool may = processor_has_amx() && syscall(SYS_arch_prctl, 0x1023, 18) == 0;
  return may;
#else
  return false;
#endif
}
#endif

// Best first.
const Path kPaths[] = {
#ifdef EXO_HAS_AMX
    {"amx", &exo_kernels_amx, may_use_tiles},
#endif
#ifdef EXO_HAS_AVX512_BF16
    {"avx512_bf16", &exo_kernels_avx512_bf16, has_avx512_bf16},
#endif
#ifdef EXO_HAS_AVX512_VNNI
    {"avx512_vnni", &exo_kernels_avx512_vnni, has_avx512_vnni},
#endif
#ifdef EXO_HAS_AVX512
    {"avx512", &exo_kernels_avx512, has_avx512},
#endif
#ifdef EXO_HAS_AVX2_VNNI
    {"avx2_vnni", &exo_kernels_avx2_vnni, has_avx2_vnni},
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

// The set of instructions that this processor has and the operating system does not let this process use; or null.
EXO_EXPORT const char* exo_refused() {
#ifdef EXO_HAS_AMX
  if (processor_has_amx() && !may_use_tiles()) return "amx";
#endif
  return nullptr;
}

EXO_EXPORT int exo_interface() { return EXO_INTERFACE; }

EXO_EXPORT void exo_set_pulse(long long* pulse) { exo::set_pulse(pulse); }

EXO_EXPORT void exo_set_num_threads(int num_threads) { exo::set_num_threads(num_threads); }
EXO_EXPORT void exo_wait_awake(int microseconds) { exo::wait_awake(microseconds); }
