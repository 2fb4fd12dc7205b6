// The functions that each set of instructions has; see linear.h, attention.h, pointwise.h, stack.h, sample.h for what they
// do.
#pragma once

#include <stdint.h>

// Of the functions and their structures: goes up with any change of them, together with library.py's.
#define EXO_INTERFACE 11

extern "C" {

struct exo_kernels {
  void (*linear)(const void* call);
  void (*linear_groups)(const void* call);
  void (*pack)(const uint16_t* matrix, long stride, long rows, long num_inputs, uint16_t* packed,
               long output);
  void (*unpack_rows)(const void* call, const int64_t* ids, long count, uint16_t* rows);
  void (*attend)(const void* call);
  void (*add_and_normalise)(uint16_t* states, const uint16_t* update, const uint16_t* weight,
                            uint16_t* outputs, long rows, long size, float eps);
  void (*silu_and_multiply)(const uint16_t* inputs, uint16_t* outputs, long rows, long size);
  void (*rotate_and_store)(const void* call);
  void (*run_stack)(const void* call);
  void (*choose_tokens)(const void* call);
  void (*forbid_tokens)(const void* call);
};
}
