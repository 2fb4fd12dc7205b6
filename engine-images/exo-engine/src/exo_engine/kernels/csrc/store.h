// What a product with a matrix is told, and how it stores its results.
#pragma once

#include "parallel.h"
#include "vectors.h"

namespace {

constexpr long kBlock = 64;  // outputs that are packed together
constexpr long kUnit = 16;   // outputs; threads share a matrix by units
constexpr int kUnitVectors = kUnit / kLanes;
constexpr int kMaxUnits = kLanes == 16 ? 4 : kLanes == 8 ? 2 : 1;  // of a tile, and
constexpr int kMaxRows = kLanes == 16 ? 6 : 2;                     // its rows: what registers hold

inline long rounded_up(long value, long step) { return (value + step - 1) / step * step; }

struct LinearCall {
  const Bf16* inputs;  // (rows, num_inputs)
  const void* packed;
  const Bf16* bias;  // (num_outputs) or null
  Bf16* outputs;     // (rows, num_outputs), or null
  float* floats;     // the same as float32, where `outputs` is null
  long rows, num_inputs, num_outputs;
  int bits;       // 16: packed as in linear.h; 8 or 4: as in quantized.h
  int group;      // of inputs with one scale
  int has_zeros;  // for each group and output
  int input_bits;  // that codes are multiplied by: 8, or, where codes have 8 and there are no groups of rows, 16
  float scale;    // of all weights, beside those of the groups
};

inline void store_outputs(const LinearCall& call, long row, long output, int count, const Floats* sums) {
  float numbers[kBlock];
  for (int v = 0; v * kLanes < count; v++) store(numbers + v * kLanes, sums[v]);
  long at = row * call.num_outputs + output;
  for (int i = 0; i < count; i++) {
    float number = numbers[i] + (call.bias ? widen_one(call.bias[output + i]) : 0.0f);
    if (call.outputs)
      call.outputs[at + i] = narrow_one(number);
    else
      call.floats[at + i] = number;
  }
}

// Stores a row's results from `output` on, plus the bias; what lies past the last output is left out.
template <int Units>
void store_row(const LinearCall& call, long row, long output, const Floats* sums) {
  const long at = row * call.num_outputs + output, count = call.num_outputs - output;
  if (count < Units * kUnit) return store_outputs(call, row, output, (int)count, sums);
  for (int v = 0; v < Units * kUnitVectors; v++) {
    const Floats numbers = call.bias ? sums[v] + widen(load<Bf16s>(call.bias + output + v * kLanes)) : sums[v];
    if (call.outputs)
      store(call.outputs + at + v * kLanes, narrow(numbers));
    else
      store(call.floats + at + v * kLanes, numbers);
  }
}

}  // namespace
