// All kernels for one set of instructions. Compiled once for each: EXO_PATH is its name.
#include "kernels.h"

#include "attention.h"
#include "linear.h"
#include "pointwise.h"
#include "sample.h"
#include "stack.h"

#define EXO_JOIN(a, b) a##b
#define EXO_NAME(path) EXO_JOIN(exo_kernels_, path)

extern "C" const exo_kernels EXO_NAME(EXO_PATH);

const exo_kernels EXO_NAME(EXO_PATH) = {
    [](const void* call) { multiply(*static_cast<const LinearCall*>(call)); },
    [](const void* call) { multiply_groups(*static_cast<const GroupsCall*>(call)); },
    pack,
    [](const void* call, const int64_t* ids, long count, uint16_t* rows) {
      unpack_rows(*static_cast<const LinearCall*>(call), ids, count, rows);
    },
    [](const void* call) { attend(*static_cast<const AttentionCall*>(call)); },
    add_and_normalise,
    silu_and_multiply,
    [](const void* call) { rotate_and_store(*static_cast<const RotateCall*>(call)); },
    [](const void* call) { run_stack(*static_cast<const StackCall*>(call)); },
    [](const void* call) { choose_tokens(*static_cast<const SampleCall*>(call)); },
    [](const void* call) { forbid_tokens(*static_cast<const MaskCall*>(call)); },
};
