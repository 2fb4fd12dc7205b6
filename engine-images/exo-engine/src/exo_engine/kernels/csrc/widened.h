// Products with matrices of bf16 where no instruction multiplies bf16: with several rows, inputs are turned into float32
// once instead of in each tile. Sums run as in linear.h, so bits are the same.
#pragma once

#include "next_block.h"
#include "parallel.h"
#include "store.h"

namespace {

// With AVX2 a product of bf16 is 1.7 times as fast so. With AVX-512 a tile has more sums for each input that is widened,
// and it was as fast without; plain loops were, too.
constexpr bool kWidens = kLanes == 8;
constexpr long kLeastWidenedRows = 4;
constexpr int kWideRows = 4;             // of a tile, which has one unit: what registers hold
constexpr long kWidenedBytes = 1 << 18;  // of inputs: a second cache, as all blocks read them; 256 KiB in older processors
constexpr long kMostGroupsBytes = 1 << 26;  // of the inputs of groups, which are widened all at once, or not

// How many of so many rows are multiplied before the next ones; all of them where they are not widened.
inline long rows_at_once(const LinearCall& call) {
  if (!kWidens || call.bits != 16 || call.rows < kLeastWidenedRows) return call.rows;
  const long most = kWidenedBytes / (long)sizeof(float) / (call.num_inputs + 1);
  const long parts = (call.rows - 1) / (most < 4 * kWideRows ? 4 * kWideRows : most) + 1;
  return rounded_up((call.rows + parts - 1) / parts, kWideRows);  // of one size: each reads the whole matrix
}

// All rows of inputs (rows, num_inputs) as float32; valid until this thread's next call. Null where that does not pay.
inline const float* widen_rows(const LinearCall& call) {
  if (!kWidens || call.rows < kLeastWidenedRows) return nullptr;
  const long size = call.num_inputs;
  float* room = (float*)room_for(call.rows * size * sizeof(float));
  for_each_part(call.rows, least_rows(size), [&](long row, long past) {
    long i = row * size;
    for (; i + kLanes <= past * size; i += kLanes) store(room + i, widen(load<Bf16s>(call.inputs + i)));
    for (; i < past * size; i++) room[i] = widen_one(call.inputs[i]);
  });
  return room;
}

template <int Rows>
void multiply_wide_tile(const LinearCall& call, const float* floats, long row, long output, long past) {
  constexpr int kVectors = kUnitVectors;
  const long size = call.num_inputs;
  const Bf16* weights = (const Bf16*)call.packed + output / kBlock * kBlock * size + output % kBlock * 2;
  const float* inputs = floats + row * size;
  NextBlock next(call, kBlock * size * sizeof(Bf16), row, output + kUnit, past, size / 2, kWideRows);
  Floats sums[Rows][kVectors] = {};
  for (long i = 0; i < size; i += 2, weights += kBlock * 2) {
    if (next.is_wanted())
      next.read_ahead();
    else
      __builtin_prefetch(weights + 16 * kBlock * 2);
    Floats columns[kVectors];
    for (int v = 0; v < kVectors; v++) columns[v] = (Floats)(load<Pairs>(weights + v * kLanes * 2) << 16);
    for (int r = 0; r < Rows; r++) {
      const Floats input = splat(inputs[r * size + i]);
      for (int v = 0; v < kVectors; v++) sums[r][v] = multiply_add(input, columns[v], sums[r][v]);
    }
    for (int v = 0; v < kVectors; v++) columns[v] = (Floats)(load<Pairs>(weights + v * kLanes * 2) & 0xffff0000u);
    for (int r = 0; r < Rows; r++) {
      const Floats input = splat(inputs[r * size + i + 1]);
      for (int v = 0; v < kVectors; v++) sums[r][v] = multiply_add(input, columns[v], sums[r][v]);
    }
  }
  for (int r = 0; r < Rows; r++) store_row<1>(call, row + r, output, sums[r]);
}

// Units [unit, past) of a product of all rows.
inline void multiply_widened(const LinearCall& call, const float* floats, long unit, long past) {
  for (; unit < past; unit++) {
    const long output = unit * kUnit;
    long row = 0;
    for (; row + kWideRows <= call.rows; row += kWideRows)
      multiply_wide_tile<kWideRows>(call, floats, row, output, past * kUnit);
    if (call.rows - row == 1) multiply_wide_tile<1>(call, floats, row, output, past * kUnit);
    if (call.rows - row == 2) multiply_wide_tile<2>(call, floats, row, output, past * kUnit);
    if (call.rows - row == 3) multiply_wide_tile<3>(call, floats, row, output, past * kUnit);
    exo::beat();
  }
}

}  // namespace
