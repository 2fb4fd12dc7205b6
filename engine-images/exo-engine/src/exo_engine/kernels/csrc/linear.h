// Products with matrices of bf16 that are stored as the dot-product instruction reads them.
//
// Packed form of a matrix (outputs, inputs): blocks of 64 outputs; in a block, for each pair of inputs, the
// pair's two weights for each of the 64 outputs. Outputs and inputs are filled up with zeros.
//
//     packed[output / 64][input / 2][output % 64][input % 2]
//
// A sum runs over the inputs in order, whatever the number of rows, threads or blocks: one path, so a row's
// result has the same bits alone and in any batch.
#pragma once

#include "next_block.h"
#include "quantized.h"
#include "store.h"
#include "tiles.h"
#include "widened.h"

namespace {

template <int Rows, int Units>
void multiply_tile(const LinearCall& call, long row, long output, long past) {
  constexpr int kVectors = Units * kUnitVectors;
  const long num_pairs = call.num_inputs / 2;
  const Bf16* weights =
      (const Bf16*)call.packed + output / kBlock * kBlock * call.num_inputs + output % kBlock * 2;
  const Bf16* inputs = call.inputs + row * call.num_inputs;
  NextBlock next(call, kBlock * call.num_inputs * sizeof(Bf16), row, output + Units * kUnit, past, num_pairs);
  Floats sums[Rows][kVectors] = {};
  for (long pair = 0; pair < num_pairs; pair++, weights += kBlock * 2) {
    Pairs columns[kVectors];
    for (int v = 0; v < kVectors; v++) columns[v] = load<Pairs>(weights + v * kLanes * 2);
    if (next.is_wanted())
      next.read_ahead();
    else
      for (int v = 0; v < kVectors; v++) __builtin_prefetch(weights + v * kLanes * 2 + 16 * kBlock * 2);
    for (int r = 0; r < Rows; r++) {
      Pairs input = splat_pair(inputs + r * call.num_inputs + pair * 2);
      for (int v = 0; v < kVectors; v++) sums[r][v] = add_products(sums[r][v], input, columns[v]);
    }
  }
  for (int r = 0; r < Rows; r++) store_row<Units>(call, row + r, output, sums[r]);
}

template <int Rows>
void multiply_rows(const LinearCall& call, long row, long output, int units, long past) {
  if constexpr (kMaxUnits >= 4) {
    if (units == 4) return multiply_tile<Rows, 4>(call, row, output, past);
    if (units == 3) return multiply_tile<Rows, 3>(call, row, output, past);
  }
  if constexpr (kMaxUnits >= 2) {
    if (units == 2) return multiply_tile<Rows, 2>(call, row, output, past);
  }
  multiply_tile<Rows, 1>(call, row, output, past);
}

// All rows for up to kMaxUnits units of outputs of one block; `past`: behind the last output of this thread.
inline void multiply_units(const LinearCall& call, long output, int units, long past) {
  long row = 0;
  for (; row + kMaxRows <= call.rows; row += kMaxRows) multiply_rows<kMaxRows>(call, row, output, units, past);
  switch (call.rows - row) {
    case 1:
      return multiply_rows<1>(call, row, output, units, past);
    case 2:
      return multiply_rows < kMaxRows<2 ? 1 : 2>(call, row, output, units, past);
    case 3:
      return multiply_rows < kMaxRows<3 ? 1 : 3>(call, row, output, units, past);
    case 4:
      return multiply_rows < kMaxRows<4 ? 1 : 4>(call, row, output, units, past);
    case 5:
      return multiply_rows < kMaxRows<5 ? 1 : 5>(call, row, output, units, past);
  }
}

// Parts that a product may be cut into, whatever its rows: units of plain numbers, pairs of units of codes.
inline long num_parts(const LinearCall& call) {
  const long step = call.bits == 16 ? kUnit : 2 * kUnit;
  return rounded_up(call.num_outputs, step) / step;
}

// The inputs of a product in the form in which it multiplies them, where that is another one.
struct Inputs {
  QuantizedRows codes;
  const float* floats;
};

inline Inputs convert_inputs(const LinearCall& call) {
  if (call.bits != 16) return {quantize_rows(call), nullptr};
  return {{}, widen_rows(call)};
}

inline void multiply_parts(const LinearCall& call, const Inputs& inputs, long part, long past) {
  if (call.bits != 16) return multiply_pairs(call, inputs.codes, part, past);
#if defined(__AMX_TILE__)
  return multiply_on_tiles(call, part, past);
#endif
  if (inputs.floats) return multiply_widened(call, inputs.floats, part, past);
  const long per_block = kBlock / kUnit;
  while (part < past) {
    long count = per_block - part % per_block;
    if (count > past - part) count = past - part;
    if (count > kMaxUnits) count = kMaxUnits;
    multiply_units(call, part * kUnit, (int)count, past * kUnit);
    exo::beat();
    part += count;
  }
}

inline void multiply_at_once(const LinearCall& call) {
  const Inputs inputs = convert_inputs(call);
  LinearCall by_rows = call;  // whose rows are those of `inputs`
  by_rows.rows *= rows_per_input(call);
  for_each_part(num_parts(call), call.bits == 16 ? 4 : 2,
                [&](long part, long past) { multiply_parts(by_rows, inputs, part, past); });
}

inline void multiply(const LinearCall& call) {
  const long most = rows_at_once(call);
  LinearCall some = call;
  for (long row = 0; row < call.rows; row += most) {
    some.rows = call.rows - row < most ? call.rows - row : most;
    some.inputs = call.inputs + row * call.num_inputs;
    if (call.outputs) some.outputs = call.outputs + row * call.num_outputs;
    if (call.floats) some.floats = call.floats + row * call.num_outputs;
    multiply_at_once(some);
  }
}

struct GroupsCall {
  const LinearCall* matrices;  // (count), of one shape and format; inputs, outputs and rows are not filled in
  const int32_t* starts;       // (count + 1): where the rows of each one begin
  const Bf16* inputs;          // (rows, num_inputs), matrix after matrix
  Bf16* outputs;               // (rows, num_outputs)
  long count;
};

// A part of a matrix costs the reading of its weights, which is worth some rows, and its rows.
constexpr long kReadingCost = 8;

// Multiplies each group of rows by its own matrix, as `multiply` does. Threads share all parts of all matrices by what
// they cost; which thread computes one changes no result.
inline void multiply_groups(const GroupsCall& groups) {
  LinearCall all = groups.matrices[0];
  all.inputs = groups.inputs;
  all.rows = groups.starts[groups.count];
  const bool is_large = all.bits == 16 && all.rows * all.num_inputs * (long)sizeof(float) > kMostGroupsBytes;
  const Inputs inputs = is_large ? Inputs{} : convert_inputs(all);
  const long parts = num_parts(all), of_codes = all.bits == 16 ? 0 : num_groups(all);
  const auto cost_of = [&](long matrix) {
    const long count = groups.starts[matrix + 1] - groups.starts[matrix];
    return count ? count + kReadingCost : 0;
  };
  long total = 0;
  for (long matrix = 0; matrix < groups.count; matrix++) total += cost_of(matrix) * parts;
  for_each_part(total, 2, [&](long from, long until) {
    for (long matrix = 0, at = 0; matrix < groups.count && at < until; matrix++) {
      const long cost = cost_of(matrix), first = groups.starts[matrix];
      if (cost && at + cost * parts > from) {
        LinearCall call = groups.matrices[matrix];
        call.inputs = groups.inputs + first * call.num_inputs;
        call.outputs = groups.outputs + first * call.num_outputs;
        call.rows = groups.starts[matrix + 1] - first;
        const QuantizedRows& codes = inputs.codes;
        const bool has_floats = inputs.floats && call.rows >= kLeastWidenedRows;
        const Inputs own{{codes.numbers + first * of_codes * call.group, codes.scales + first,
                          codes.sums + first * of_codes},
                         has_floats ? inputs.floats + first * call.num_inputs : nullptr};
        // A part belongs to whoever has its first unit of cost.
        long part = from > at ? (from - at + cost - 1) / cost : 0, past = (until - at + cost - 1) / cost;
        multiply_parts(call, own, part, past < parts ? past : parts);
      }
      at += cost * parts;
    }
  });
}

// Packs rows [0, rows) of a plain matrix (with `stride` numbers from row to row) as outputs from `output` on.
inline void pack(const Bf16* matrix, long stride, long rows, long num_inputs, Bf16* packed, long output) {
  const long first_block = output / kBlock, past_block = rounded_up(output + rows, kBlock) / kBlock;
  for_each_part(past_block - first_block, 2, [&](long part, long past) {
    for (; part < past; part++) {
      Bf16* block = packed + (first_block + part) * kBlock * num_inputs;
      long from =
          (first_block + part) * kBlock - output;  // the row of the block's first output; may be before 0
      long low = from < 0 ? -from : 0, high = rows - from < kBlock ? rows - from : kBlock;
      for (long pair = 0; pair < num_inputs / 2; pair++)
        for (long lane = low; lane < high; lane++)
          memcpy(block + (pair * kBlock + lane) * 2, matrix + (from + lane) * stride + pair * 2,
                 2 * sizeof(Bf16));
    }
  });
}

// An output's weights, of bf16 or of codes of 8 bits.
inline void unpack_row(const LinearCall& call, long output, Bf16* row) {
  if (call.bits == 8) return dequantize_row(call, output, row);
  const Bf16* lane = (const Bf16*)call.packed + output / kBlock * kBlock * call.num_inputs + output % kBlock * 2;
  for (long pair = 0; pair < call.num_inputs / 2; pair++)
    memcpy(row + pair * 2, lane + pair * kBlock * 2, 2 * sizeof(Bf16));
}

// The same of several outputs, by their ids: (count, num_inputs).
inline void unpack_rows(const LinearCall& call, const int64_t* ids, long count, Bf16* rows) {
  for_each_part(count, 64, [&](long row, long past) {
    for (; row < past; row++) unpack_row(call, ids[row], rows + row * call.num_inputs);
  });
}

}  // namespace
