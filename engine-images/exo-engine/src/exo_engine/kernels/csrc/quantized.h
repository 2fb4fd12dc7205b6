// Products with matrices of 8-bit and 4-bit codes, inputs in 8 bits or 16: each row of inputs is quantized when it
// comes, by its largest magnitude, and integer sums over a group of inputs are multiplied by the scales of both.
//
// A weight is (code - zero) * scale of its group. Codes are without sign; zero is 2^(bits - 1), or stored for each
// group and output. Packed form: blocks of 64 outputs, in which for each group come
//
//     float16 scales[64]      uint8 zeros[64], where they are stored      codes
//
//     8 bits: codes[input / 4][output % 64][input % 4]
//     4 bits: codes[input / 8][output % 64][input % 4], inputs 0 to 3 of 8 in the lower halves, 4 to 7 in the upper
//
// So blocks of GGUF's Q8_0 and Q4_0 and groups of AWQ and GPTQ fit in as they are. Integer sums are exact and groups
// are added in order: a row's bits do not depend on the batch.
#pragma once

#include "next_block.h"
#include "store.h"
#include "tiles.h"

namespace {

typedef uint32_t Quads __attribute__((vector_size(kLanes * 4)));  // four numbers of 8 bits each

// sums + a[0] * b[0] + ... + a[3] * b[3], lane by lane; those of a are without sign, those of b with.
inline Ints add_quads(Ints sums, Quads a, Quads b) {
#if defined(__AVX512VNNI__)
  return (Ints)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)a, (__m512i)b);
#elif defined(__AVXVNNI__)
  return (Ints)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)a, (__m256i)b);
#elif defined(__AVX512BW__)
  __m512i even = _mm512_madd_epi16((__m512i)(a & 0x00ff00ffu), _mm512_srai_epi16(_mm512_slli_epi16((__m512i)b, 8), 8));
  __m512i odd = _mm512_madd_epi16(_mm512_srli_epi16((__m512i)a, 8), _mm512_srai_epi16((__m512i)b, 8));
  return sums + (Ints)even + (Ints)odd;
#elif defined(__AVX2__)
  __m256i even = _mm256_madd_epi16((__m256i)(a & 0x00ff00ffu), _mm256_srai_epi16(_mm256_slli_epi16((__m256i)b, 8), 8));
  __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16((__m256i)a, 8), _mm256_srai_epi16((__m256i)b, 8));
  return sums + (Ints)even + (Ints)odd;
#else
  for (int shift = 24; shift >= 0; shift -= 8)
    sums += (Ints)((a >> (24 - shift)) & 0xff) * ((Ints)(b << shift) >> 24);
  return sums;
#endif
}

// Without an instruction that adds four products of bytes, those with codes of 4 bits are added up in 16 bits first: a
// pair of them is 2 * 15 * 128 at most, and kShortQuads of these are within 16 bits. Codes of 8 bits have no room there.
#if defined(__AVX2__) && !defined(__AVX512VNNI__) && !defined(__AVXVNNI__)
constexpr bool kAddsInShorts = true;
#else
constexpr bool kAddsInShorts = false;
#endif
constexpr long kShortQuads = 8;

typedef int16_t Shorts __attribute__((vector_size(kLanes * 4)));

inline Shorts add_pairs(Shorts sums, Quads codes, Quads inputs) {
#if defined(__AVX512BW__)
  return sums + (Shorts)_mm512_maddubs_epi16((__m512i)codes, (__m512i)inputs);
#elif defined(__AVX2__)
  return sums + (Shorts)_mm256_maddubs_epi16((__m256i)codes, (__m256i)inputs);
#else
  return sums;
#endif
}

inline Ints add_shorts(Ints totals, Shorts sums) {
#if defined(__AVX512BW__)
  return totals + (Ints)_mm512_madd_epi16((__m512i)sums, _mm512_set1_epi16(1));
#elif defined(__AVX2__)
  return totals + (Ints)_mm256_madd_epi16((__m256i)sums, _mm256_set1_epi16(1));
#else
  return totals;
#endif
}

inline Floats widen_halves(const uint16_t* halves) {
#if defined(__AVX512F__)
  return (Floats)_mm512_cvtph_ps(load<__m256i>(halves));
#elif defined(__AVX2__)
  return (Floats)_mm256_cvtph_ps(load<__m128i>(halves));
#else
  Pairs bits = __builtin_convertvector(load<Bf16s>(halves), Pairs);
  Floats size = (Floats)((bits & 0x7fff) << 13) * 0x1p112f;
  return (Floats)((Pairs)size | ((bits & 0x8000) << 16));
#endif
}

inline Ints widen_bytes(const uint8_t* bytes) {
  typedef uint8_t Bytes __attribute__((vector_size(kLanes)));
  return __builtin_convertvector(load<Bytes>(bytes), Ints);
}

// Quantized inputs. Of a row in 16 bits there are two, so that one instruction serves both widths: an input is
// (256 * high + low) * scale, with high from -127 to 127 and low from -128 to 127.
struct QuantizedRows {
  int8_t* numbers;  // (rows, padded inputs)
  float* scales;    // (rows)
  int32_t* sums;    // (rows, groups)
};

inline long num_groups(const LinearCall& call) { return (call.num_inputs + call.group - 1) / call.group; }

inline long rows_per_input(const LinearCall& call) { return call.bits == 8 && call.input_bits == 16 ? 2 : 1; }

inline Floats join_high_and_low(Floats high, Floats low) { return multiply_add(high, Floats{} + 256.0f, low); }

inline void quantize_row(const LinearCall& call, long row, const QuantizedRows& rows) {
  typedef int8_t Bytes __attribute__((vector_size(kLanes)));
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: added, a number is rounded to the nearest, ties to even
  const long size = call.num_inputs, groups = num_groups(call), padded = groups * call.group;
  const Bf16* inputs = call.inputs + row * size;
  const long own_rows = rows_per_input(call), first_row = own_rows * row;
  const float limit = own_rows == 2 ? 127.0f * 256 : 127.0f;  // high rounds to 127 at most
  int8_t* numbers = rows.numbers + first_row * padded;
  Floats most = {}, poison = {};  // NaN and infinity make it NaN, and so all results of the row
  long i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    Floats values = widen(load<Bf16s>(inputs + i));
    most = larger(most, (Floats)((Ints)values & 0x7fffffff));
    poison += values * 0.0f;
  }
  float largest_one = largest(most), poison_one = sum(poison);
  for (long j = i; j < size; j++) {
    float magnitude = __builtin_fabsf(widen_one(inputs[j]));
    if (magnitude > largest_one) largest_one = magnitude;
    poison_one += magnitude * 0.0f;
  }
  const bool is_zero = !(largest_one > 1e-30f);
  const float inverse = is_zero ? 0.0f : limit / largest_one;
  const auto quantize = [&](long at, long count) __attribute__((always_inline)) {
    Bf16s some = {};
    memcpy(&some, inputs + at, count * sizeof(Bf16));
    const Ints rounded = (Ints)(widen(some) * inverse + kRound) - 0x4b400000;
    const Ints high = own_rows == 2 ? (rounded + 128) >> 8 : rounded;  // to the nearest, so that low fits a byte
    const Bytes high_bytes = __builtin_convertvector(high, Bytes);
    memcpy(numbers + at, &high_bytes, count);
    if (own_rows == 1) return;
    const Bytes low_bytes = __builtin_convertvector(rounded - (high << 8), Bytes);
    memcpy(numbers + padded + at, &low_bytes, count);
  };
  for (i = 0; i + kLanes <= size; i += kLanes) quantize(i, kLanes);
  if (i < size) quantize(i, size - i);
  for (long r = first_row; r < first_row + own_rows; r++, numbers += padded) {
    rows.scales[r] = (is_zero ? 0.0f : largest_one / limit) + poison_one;
    for (i = size; i < padded; i++) numbers[i] = 0;
    for (long group = 0; group < groups; group++) {
      int32_t total = 0;
      for (long j = group * call.group; j < (group + 1) * call.group; j++) total += numbers[j];
      rows.sums[r * groups + group] = total;
    }
  }
}

// Adds to totals up to kShortQuads quads of inputs, times codes of 4 bits.
template <int Rows, int Vectors>
inline void add_in_shorts(const uint8_t* codes, const int8_t* inputs, long padded, long quads, NextBlock& next,
                          Ints (&totals)[Rows][Vectors]) {
  Shorts sums[Rows][Vectors] = {};
  for (long quad = 0; quad < quads; quad += 2, codes += kBlock * 4) {
    if (next.is_wanted()) next.read_ahead();
    for (int v = 0; v < Vectors; v++) {
      const Quads column = load<Quads>(codes + v * kLanes * 4);
      if (!next.is_wanted()) __builtin_prefetch(codes + v * kLanes * 4 + 16 * kBlock * 4);
      for (int part = 0; part < 2; part++)
        for (int r = 0; r < Rows; r++) {
          const Quads input = splat_pair((const Bf16*)(inputs + r * padded + (quad + part) * 4));
          sums[r][v] = add_pairs(sums[r][v], (column >> (4 * part)) & 0x0f0f0f0f, input);
        }
    }
  }
  for (int r = 0; r < Rows; r++)
    for (int v = 0; v < Vectors; v++) totals[r][v] = add_shorts(totals[r][v], sums[r][v]);
}

template <int Rows, int Units, int Bits, bool HasZeros>
void multiply_codes(const LinearCall& call, const QuantizedRows& rows, long row, long output, long past) {
  constexpr int kVectors = Units * kUnitVectors, kQuads = Bits == 8 ? 1 : 2;  // quads of inputs in 32 bits of codes
  const long groups = num_groups(call), padded = groups * call.group, inside = output % kBlock;
  const long codes_bytes = kBlock * call.group * Bits / 8, head_bytes = kBlock * (HasZeros ? 3 : 2);
  const uint8_t* at = (const uint8_t*)call.packed + output / kBlock * groups * (head_bytes + codes_bytes);
  const int8_t* inputs = rows.numbers + row * padded;
  NextBlock next(call, groups * (head_bytes + codes_bytes), row, output + Units * kUnit, past, padded / 4 / kQuads);
  Floats sums[Rows][kVectors] = {};
  for (long group = 0; group < groups; group++, at += head_bytes + codes_bytes) {
    Ints totals[Rows][kVectors];
    for (int r = 0; r < Rows; r++) {
      const int32_t sum_of_inputs = rows.sums[(row + r) * groups + group];
      for (int v = 0; v < kVectors; v++) {
        if constexpr (HasZeros)
          totals[r][v] = widen_bytes(at + 2 * kBlock + inside + v * kLanes) * -sum_of_inputs;
        else
          totals[r][v] = Ints{} - (sum_of_inputs << (Bits - 1));
      }
    }
    const uint8_t* codes = at + head_bytes + inside * 4;
    const long quads = call.group / 4;
    if constexpr (Bits == 4 && kAddsInShorts) {
      for (long quad = 0; quad < quads; quad += kShortQuads) {
        const long count = quads - quad < kShortQuads ? quads - quad : kShortQuads;
        add_in_shorts<Rows, kVectors>(codes, inputs + group * call.group + quad * 4, padded, count, next, totals);
        codes += count / kQuads * kBlock * 4;
      }
    } else {
      for (long quad = 0; quad < quads; quad += kQuads, codes += kBlock * 4) {
        const int8_t* numbers = inputs + group * call.group + quad * 4;
        if (next.is_wanted()) next.read_ahead();
        for (int v = 0; v < kVectors; v++) {
          Quads column = load<Quads>(codes + v * kLanes * 4);
          if (!next.is_wanted()) __builtin_prefetch(codes + v * kLanes * 4 + 16 * kBlock * 4);
          for (int part = 0; part < kQuads; part++) {
            Quads some = Bits == 8 ? column : (column >> (4 * part)) & 0x0f0f0f0f;
            for (int r = 0; r < Rows; r++) {
              Quads input = splat_pair((const Bf16*)(numbers + r * padded + part * 4));
              totals[r][v] = add_quads(totals[r][v], some, input);
            }
          }
        }
      }
    }
    for (int v = 0; v < kVectors; v++) {
      Floats scale = widen_halves((const uint16_t*)at + inside + v * kLanes);
      for (int r = 0; r < Rows; r++)
        sums[r][v] = multiply_add(__builtin_convertvector(totals[r][v], Floats), scale, sums[r][v]);
    }
  }
  if constexpr (Bits == 8 && Rows % 2 == 0) {
    if (rows_per_input(call) == 2) {
      for (int r = 0; r < Rows; r += 2) {
        for (int v = 0; v < kVectors; v++)
          sums[r][v] = join_high_and_low(sums[r][v], sums[r + 1][v]) * (rows.scales[row + r] * call.scale);
        store_row<Units>(call, (row + r) / 2, output, sums[r]);
      }
      return;
    }
  }
  for (int r = 0; r < Rows; r++) {
    for (int v = 0; v < kVectors; v++) sums[r][v] *= rows.scales[row + r] * call.scale;
    store_row<Units>(call, row + r, output, sums[r]);
  }
}

template <int Rows, int Bits, bool HasZeros>
void multiply_row_tile(const LinearCall& call, const QuantizedRows& rows, long row, long output, int units,
                       long past) {
  // Sums of 4-bit groups are wanted in registers beside the integers.
  constexpr bool kIsWide = kLanes == 16 && (Bits == 8 || Rows <= 3);
  if constexpr (kIsWide) {
    if (units == 4) return multiply_codes<Rows, 4, Bits, HasZeros>(call, rows, row, output, past);
  }
  for (int unit = 0; unit < units; unit += 2)
    multiply_codes<Rows, 2, Bits, HasZeros>(call, rows, row, output + unit * kUnit, past);
}

template <int Bits, bool HasZeros>
void multiply_tiles(const LinearCall& call, const QuantizedRows& rows, long output, int units, long past) {
  long row = 0;
  for (; row + kMaxRows <= call.rows; row += kMaxRows)
    multiply_row_tile<kMaxRows, Bits, HasZeros>(call, rows, row, output, units, past);
  const long left = call.rows - row;
  if (left == 1) return multiply_row_tile<1, Bits, HasZeros>(call, rows, row, output, units, past);
  if constexpr (kMaxRows > 2) {
    if (left == 2) return multiply_row_tile<2, Bits, HasZeros>(call, rows, row, output, units, past);
    if (left == 3) return multiply_row_tile<3, Bits, HasZeros>(call, rows, row, output, units, past);
    if (left == 4) return multiply_row_tile<4, Bits, HasZeros>(call, rows, row, output, units, past);
    if (left == 5) return multiply_row_tile<5, Bits, HasZeros>(call, rows, row, output, units, past);
  }
}

// An output's weights, of codes of 8 bits.
inline void dequantize_row(const LinearCall& call, long output, Bf16* row) {
  const long group_bytes = kBlock * (2 + call.group), lane = output % kBlock;
  const uint8_t* at = (const uint8_t*)call.packed + output / kBlock * num_groups(call) * group_bytes;
  for (long first = 0; first < call.num_inputs; first += call.group, at += group_bytes) {
    const float scale = widen_halves((const uint16_t*)at + lane / kLanes * kLanes)[lane % kLanes] * call.scale;
    const long count = call.num_inputs - first < call.group ? call.num_inputs - first : call.group;
    const uint8_t* codes = at + 2 * kBlock + 4 * lane;
    for (long i = 0; i < count; i++)
      row[first + i] = narrow_one((float)(codes[i / 4 * 4 * kBlock + i % 4] - 128) * scale);
  }
}

// Quantizes all rows of inputs; valid until this thread's next call.
inline QuantizedRows quantize_rows(const LinearCall& call) {
  const long groups = num_groups(call), padded = rounded_up(groups * call.group, 64);
  const long count = call.rows * rows_per_input(call);
  char* room = room_for(count * (padded + 4 + 4 * groups) + 64);
  QuantizedRows rows{(int8_t*)room, (float*)(room + rounded_up(count * groups * call.group, 64)), nullptr};
  rows.sums = (int32_t*)(rows.scales + count);
  for_each_part(call.rows, least_rows(call.num_inputs), [&](long row, long past) {
    for (; row < past; row++) quantize_row(call, row, rows);
  });
  return rows;
}

#if defined(__AMX_TILE__)
constexpr long kLeastTileRows = 5;  // below, tiles are mostly empty and slower

// The same for codes of 8 bits whose inputs are one group: sums are whole numbers, so bits are those of
// `multiply_codes`.
inline void multiply_codes_on_tiles(const LinearCall& call, const QuantizedRows& rows, long unit, long past) {
  const long head_bytes = kBlock * 2, own_rows = rows_per_input(call);
  for_each_tile(call.rows, unit, past, [&](long row, long count, long output, int units) {
    const uint8_t* block = (const uint8_t*)call.packed + output / kBlock * (head_bytes + kBlock * call.group);
    const long inside = output % kBlock;
    const TileOperands operands{(const char*)rows.numbers + row * call.group, call.group,
                                (const char*)block + head_bytes + inside * 4, call.group / 4, row == 0};
    with_tiles(count, units, [&]<int RowTiles, int Units>() {
      Ints totals[RowTiles * kMaxTileRows][Units];
      sum_products<TileNumbers::kBytes, RowTiles, Units>(operands, count, totals);
      const auto sum_of = [&](long r, int v) {
        const Ints total = totals[r][v] - (rows.sums[row + r] << 7);
        return __builtin_convertvector(total, Floats) * widen_halves((const uint16_t*)block + inside + v * kLanes);
      };
      for (long r = 0; r < count; r += own_rows) {
        Floats sums[Units];
        for (int v = 0; v < Units; v++) {
          sums[v] = own_rows == 2 ? join_high_and_low(sum_of(r, v), sum_of(r + 1, v)) : sum_of(r, v);
          sums[v] *= rows.scales[row + r] * call.scale;
        }
        store_row<Units>(call, (row + r) / own_rows, output, sums);
      }
    });
  });
}

constexpr long kPairStride = 2 * kTileRowBytes;  // bytes from column to column of a pair of units with a byte per code
constexpr long kLeastUnpackedRows = 17;          // for which making bytes of 4-bit codes pays,
constexpr long kLeastUnpackedGroup = 64;         // inputs: a tile; sums of fewer are stored and scaled too often

// Makes bytes of a pair of units' 4-bit codes: of every column (4 inputs) kPairStride bytes.
template <int Units>
void unpack_codes(const LinearCall& call, const uint8_t* block, long group_bytes, long head_bytes, long inside,
                  char* codes) {
  for (long group = 0; group < num_groups(call); group++, block += group_bytes) {
    const uint8_t* from = block + head_bytes + inside * 4;
    for (long column = 0; column < call.group / 4; column += 2, from += kBlock * 4, codes += 2 * kPairStride)
      for (int unit = 0; unit < Units; unit++) {
        const Quads both = load<Quads>(from + unit * kTileRowBytes);
        store(codes + unit * kTileRowBytes, both & 0x0f0f0f0f);
        store(codes + kPairStride + unit * kTileRowBytes, (both >> 4) & 0x0f0f0f0f);
      }
  }
  finish_stores();
}

// Up to 32 rows and a pair of units, group after group as in `multiply_codes`, with its bits.
template <int RowTiles, int Units, bool HasZeros>
void multiply_unpacked(const LinearCall& call, const QuantizedRows& rows, long row, long count, long output,
                       const uint8_t* block, long group_bytes, const char* codes) {
  const long groups = num_groups(call), padded = groups * call.group, columns = call.group / 4;
  const long inside = output % kBlock;
  const char* inputs = (const char*)rows.numbers + row * padded;
  Floats sums[RowTiles * kMaxTileRows][Units] = {};
  alignas(64) Ints totals[RowTiles * kMaxTileRows][Units];
  for (long group = 0; group < groups; group++, block += group_bytes) {
    clear_sums<RowTiles, Units>();
    for (long column = 0; column < columns; column += kTileStep) {
      add_step<TileNumbers::kBytes, RowTiles, Units>(inputs, padded, codes, kPairStride);
      inputs += kTileStep * 4;
      codes += kTileStep * kPairStride;
    }
    store_sums<RowTiles, Units>((char*)totals);
    for (int v = 0; v < Units; v++) {
      const Floats scale = widen_halves((const uint16_t*)block + inside + v * kLanes);
      Ints zero = {};
      if constexpr (HasZeros) zero = widen_bytes(block + 2 * kBlock + inside + v * kLanes);
      for (long r = 0; r < count; r++) {
        const int32_t sum_of_inputs = rows.sums[(row + r) * groups + group];
        const Ints total = totals[r][v] - (HasZeros ? zero * sum_of_inputs : Ints{} + (sum_of_inputs << 3));
        sums[r][v] = multiply_add(__builtin_convertvector(total, Floats), scale, sums[r][v]);
      }
    }
  }
  for (long r = 0; r < count; r++) {
    for (int v = 0; v < Units; v++) sums[r][v] *= rows.scales[row + r] * call.scale;
    store_row<Units>(call, row + r, output, sums[r]);
  }
}

template <bool HasZeros>
void multiply_nibbles_on_tiles(const LinearCall& call, const QuantizedRows& rows, long unit, long past) {
  const long groups = num_groups(call), columns = call.group / 4, head_bytes = kBlock * (HasZeros ? 3 : 2);
  const long group_bytes = head_bytes + kBlock * call.group / 2;
  char* codes = room_for<1>(groups * columns * kPairStride);
  for (; unit < past; unit += 2) {
    const long output = unit * kUnit;
    const uint8_t* block = (const uint8_t*)call.packed + output / kBlock * groups * group_bytes;
    const bool is_pair = past - unit > 1;
    const auto unpack = is_pair ? unpack_codes<2> : unpack_codes<1>;
    unpack(call, block, group_bytes, head_bytes, output % kBlock, codes);
    for (long row = 0; row < call.rows; row += 2 * kMaxTileRows) {
      const long count = call.rows - row < 2 * kMaxTileRows ? call.rows - row : 2 * kMaxTileRows;
      shape_tiles(count);
      const auto multiply_some =
          count > kMaxTileRows ? (is_pair ? multiply_unpacked<2, 2, HasZeros> : multiply_unpacked<2, 1, HasZeros>)
                               : (is_pair ? multiply_unpacked<1, 2, HasZeros> : multiply_unpacked<1, 1, HasZeros>);
      multiply_some(call, rows, row, count, output, block, group_bytes, codes);
    }
    exo::beat();
  }
  release_tiles();
}
#endif

// Pairs of units [pair, past) of a product.
inline void multiply_pairs(const LinearCall& call, const QuantizedRows& rows, long pair, long past) {
#if defined(__AMX_TILE__)
  const long units = rounded_up(call.num_outputs, kUnit) / kUnit, past_unit = 2 * past < units ? 2 * past : units;
  if (call.bits == 8 && num_groups(call) == 1 && call.rows >= kLeastTileRows)
    return multiply_codes_on_tiles(call, rows, 2 * pair, past_unit);
  if (call.bits == 4 && call.group % kLeastUnpackedGroup == 0 && call.rows >= kLeastUnpackedRows)
    return (call.has_zeros ? multiply_nibbles_on_tiles<true> : multiply_nibbles_on_tiles<false>)(call, rows, 2 * pair,
                                                                                                 past_unit);
#endif
  while (pair < past) {
    const int units = pair % 2 == 0 && pair + 1 < past ? 4 : 2;
    if (call.bits == 8)
      multiply_tiles<8, false>(call, rows, pair * 2 * kUnit, units, past * 2 * kUnit);
    else if (call.has_zeros)
      multiply_tiles<4, true>(call, rows, pair * 2 * kUnit, units, past * 2 * kUnit);
    else
      multiply_tiles<4, false>(call, rows, pair * 2 * kUnit, units, past * 2 * kUnit);
    pair += units / 2;
    exo::beat();
  }
}

}  // namespace
