// Products on the tiles of AMX: 16 rows of 64 bytes each, in eight registers of a thread's own.
//
// A block's weights, as linear.h and quantized.h pack them, are what the instructions read: a row of a tile has for
// 16 outputs the weights of two inputs of bf16, or four of 8 bits. An instruction multiplies 16 such rows at once. To
// each sum it adds them in an order that does not depend on how many rows of inputs there are, so that a row has the
// same bits alone and in any batch. Numbers of bf16 that are smaller than normal ones count as zero.
#pragma once

#include "store.h"

#if defined(__AMX_TILE__)

namespace {

constexpr long kTileStep = 16;                  // columns of 4 bytes (2 or 4 inputs) that a tile has
constexpr long kTileRowBytes = kTileStep * 4;   // and
constexpr long kMaxTileRows = 16;               // its rows
constexpr long kBlockStride = kBlock * 4;       // bytes from one column of a block's weights to the next
constexpr long kColumnsAhead = 2 * kTileStep;   // that are fetched from memory before they are needed
constexpr int kFirstInputs = 4, kFirstWeights = 6;  // registers; sums have those below

enum class TileNumbers { kBf16, kBytes };

// What `ldtilecfg` reads.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

inline void use_shapes(const TileShapes& shapes) { asm volatile("ldtilecfg %0" ::"m"(shapes) : "memory"); }

// Shapes the registers for up to 32 rows of inputs. Whoever does it ends with `release_tiles`: else each switch
// between threads would store and load 8 kB.
inline void shape_tiles(long rows) {
  TileShapes shapes;
  const long first = rows < kMaxTileRows ? rows : kMaxTileRows, second = rows - first;
  const long of_tiles[8] = {first, first, second ? second : first, second ? second : first, first,
                            second ? second : kMaxTileRows, kMaxTileRows, kMaxTileRows};
  for (int tile = 0; tile < 8; tile++) {
    shapes.row_bytes[tile] = kTileRowBytes;
    shapes.rows[tile] = (uint8_t)of_tiles[tile];
  }
  use_shapes(shapes);
}

inline void release_tiles() { asm volatile("tilerelease" ::: "memory"); }

// The compiler must not move a load of a tile before the stores of what it reads; loads of weights and inputs do
// without, as `shape_tiles` is behind all stores of them.
inline void finish_stores() { asm volatile("" ::: "memory"); }

template <int Tile>
inline void clear_tile() {
  asm volatile("tilezero %%tmm%c0" ::"i"(Tile));
}

template <int Tile>
inline void load_tile(const void* from, long stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(Tile));
}

template <int Tile>
inline void store_tile(void* to, long stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(Tile) : "memory");
}

template <TileNumbers Numbers, int Sums, int Inputs, int Weights>
inline void add_tile_products() {
  if constexpr (Numbers == TileNumbers::kBf16)
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sums), "i"(Inputs), "i"(Weights));
  else  // inputs with sign, codes without
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sums), "i"(Inputs), "i"(Weights));
}

// Rows of inputs, and the weights of up to 64 outputs of one block.
struct TileOperands {
  const char* inputs;
  long input_stride;    // bytes from row to row
  const char* weights;  // with kBlockStride bytes from column to column
  long columns;         // of 4 bytes
  bool is_from_memory;  // whether weights are to be fetched ahead
};

// One step of all sums: what is at `inputs` times what is at `weights`.
template <TileNumbers Numbers, int RowTiles, int Units, int Unit = 0>
inline void add_step(const char* inputs, long input_stride, const char* weights, long weight_stride = kBlockStride) {
  if constexpr (Unit == 0) {
    load_tile<kFirstInputs>(inputs, input_stride);
    if constexpr (RowTiles == 2) load_tile<kFirstInputs + 1>(inputs + kMaxTileRows * input_stride, input_stride);
  }
  constexpr int kWeights = kFirstWeights + Unit % 2;
  load_tile<kWeights>(weights + Unit * kTileRowBytes, weight_stride);
  add_tile_products<Numbers, Unit, kFirstInputs, kWeights>();
  if constexpr (RowTiles == 2) add_tile_products<Numbers, 2 + Unit, kFirstInputs + 1, kWeights>();
  if constexpr (Unit + 1 < Units)
    add_step<Numbers, RowTiles, Units, Unit + 1>(inputs, input_stride, weights, weight_stride);
}

// The last columns, where they do not fill a tile: filled up with zeros.
template <TileNumbers Numbers, int RowTiles, int Units>
inline void add_last_step(const TileOperands& operands, long rows, long column) {
  alignas(64) char inputs[RowTiles * kMaxTileRows * kTileRowBytes] = {};
  alignas(64) char weights[kTileStep * kBlockStride] = {};
  const long columns = operands.columns - column;
  for (long row = 0; row < rows; row++)
    memcpy(inputs + row * kTileRowBytes, operands.inputs + row * operands.input_stride + column * 4, columns * 4);
  for (long i = 0; i < columns; i++)
    memcpy(weights + i * kBlockStride, operands.weights + (column + i) * kBlockStride, Units * kTileRowBytes);
  finish_stores();
  add_step<Numbers, RowTiles, Units>(inputs, kTileRowBytes, weights);
}

template <int RowTiles, int Units, int Tile = 0>
inline void clear_sums() {
  clear_tile<Tile / Units * 2 + Tile % Units>();
  if constexpr (Tile + 1 < RowTiles * Units) clear_sums<RowTiles, Units, Tile + 1>();
}

template <int RowTiles, int Units, int Tile = 0>
inline void store_sums(char* sums) {
  constexpr long kStride = Units * kTileRowBytes;
  store_tile<Tile / Units * 2 + Tile % Units>(
      sums + Tile / Units * kMaxTileRows * kStride + Tile % Units * kTileRowBytes, kStride);
  if constexpr (Tile + 1 < RowTiles * Units) store_sums<RowTiles, Units, Tile + 1>(sums);
}

// sums (rows, 16 Units), float32 of bf16 and int32 of bytes. Registers are shaped for `rows`, which are more than 16
// with two RowTiles; then there are up to two Units.
template <TileNumbers Numbers, int RowTiles, int Units>
inline void sum_products(const TileOperands& operands, long rows, void* sums) {
  clear_sums<RowTiles, Units>();
  const long stride = operands.input_stride, columns = operands.columns;
  const char *inputs = operands.inputs, *weights = operands.weights;
  const bool is_from_memory = operands.is_from_memory;
  long column = 0;
  for (; column + kTileStep <= columns; column += kTileStep) {
    if (is_from_memory)
      for (long i = 0; i < kTileStep; i++)
        for (int unit = 0; unit < Units; unit++)
          __builtin_prefetch(weights + (column + kColumnsAhead + i) * kBlockStride + unit * kTileRowBytes);
    add_step<Numbers, RowTiles, Units>(inputs + column * 4, stride, weights + column * kBlockStride);
  }
  if (column < columns) add_last_step<Numbers, RowTiles, Units>(operands, rows, column);
  store_sums<RowTiles, Units>((char*)sums);
}

// Calls body(row, rows, output, tag of how many units) for tiles of all rows, for the units [unit, past): what a tile
// is made of is the same for all rows of inputs, so weights come from memory once.
template <class Body>
inline void for_each_tile(long rows, long unit, long past, const Body& body) {
  const long per_block = kBlock / kUnit, most = rows <= kMaxTileRows ? per_block : 2;
  long shaped = 0;
  while (unit < past) {
    long units = per_block - unit % per_block;
    if (units > past - unit) units = past - unit;
    if (units > most) units = most;
    for (long row = 0; row < rows; row += 2 * kMaxTileRows) {
      const long count = rows - row < 2 * kMaxTileRows ? rows - row : 2 * kMaxTileRows;
      if (count != shaped) shape_tiles(count);
      shaped = count;
      body(row, count, unit * kUnit, (int)units);
    }
    exo::beat();
    unit += units;
  }
  release_tiles();
}

// Calls body.operator()<RowTiles, Units>() for so many rows and units.
template <class Body>
inline void with_tiles(long rows, int units, const Body& body) {
  if (rows > kMaxTileRows) return units == 2 ? body.template operator()<2, 2>() : body.template operator()<2, 1>();
  switch (units) {
    case 1:
      return body.template operator()<1, 1>();
    case 2:
      return body.template operator()<1, 2>();
    case 3:
      return body.template operator()<1, 3>();
    default:
      return body.template operator()<1, 4>();
  }
}

// Units [unit, past) of a product of bf16.
inline void multiply_on_tiles(const LinearCall& call, long unit, long past) {
  for_each_tile(call.rows, unit, past, [&](long row, long rows, long output, int units) {
    const Bf16* weights = (const Bf16*)call.packed + output / kBlock * kBlock * call.num_inputs + output % kBlock * 2;
    const TileOperands operands{(const char*)(call.inputs + row * call.num_inputs), call.num_inputs * 2,
                                (const char*)weights, call.num_inputs / 2, row == 0};
    with_tiles(rows, units, [&]<int RowTiles, int Units>() {
      Floats sums[RowTiles * kMaxTileRows][Units];
      sum_products<TileNumbers::kBf16, RowTiles, Units>(operands, rows, sums);
      for (long r = 0; r < rows; r++) store_row<Units>(call, row + r, output, sums[r]);
    });
  });
}

}  // namespace

#endif
