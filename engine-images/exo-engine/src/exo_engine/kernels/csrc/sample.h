// Chooses a token for each row of logits: the likeliest, or one drawn by temperature, min-p, top-k and top-p; and forbids
// what a grammar's mask does not allow.
//
// Nothing is sorted but what lies near a cut or near the draw: tokens are put into buckets by how far their
// logits are below the largest one, a bucket's number of tokens and weight are known, and a bucket is sorted only
// where a cut or the draw falls into it. Weights are float64, so that a draw does not hang on the last bit of a sum
// over the vocabulary. A row's arithmetic depends on itself alone.
#pragma once

#include "parallel.h"
#include "vectors.h"

namespace {

struct SampleCall {
  const float* logits;        // (rows, size)
  const float* temperatures;  // (rows), 0: the likeliest token; null: of all rows. With null the rest is not read
  const float* log_min_ps;    // (rows): tokens whose logits are farther than that below the largest are out
  const double* top_ps;       // (rows), 1: all
  const int64_t* top_ks;      // (rows), 0: all
  const double* numbers;      // (rows): where in [0, 1) the draw falls
  int64_t* tokens;            // (rows)
  uint8_t* is_finite;         // (rows): whether the largest logit is
  long rows, size;
};

struct MaskCall {
  float* logits;          // (rows, size), overwritten
  const uint32_t* masks;  // (masks, num_words), a bit per token that is allowed, the lowest first
  const int64_t* places;  // (rows), which mask each has; -1: none
  uint8_t* is_finite;     // (rows): whether the largest logit was, before
  long rows, size, num_words;
};

typedef double Doubles __attribute__((vector_size(kLanes * 4)));
typedef float HalfFloats __attribute__((vector_size(kLanes * 2)));
typedef uint64_t Longs __attribute__((vector_size(kLanes * 4)));  // without sign: lanes that nobody uses may overflow
constexpr int kDoubles = kLanes / 2;

constexpr int kBuckets = 2048;
constexpr float kNear = 8, kFar = 64;  // nats below the largest

inline Doubles multiply_add(Doubles a, Doubles b, Doubles c) {
#if defined(__AVX512F__)
  return (Doubles)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(__AVX2__)
  return (Doubles)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#else
  return a * b + c;
#endif
}

// e to the power of values of at most 0, within some units of the last place; 0 below -700. As `exponential`.
inline Doubles exponential(Doubles values) {
  const double round = 6755399441055744.0;  // 1.5 * 2^52
  Doubles turns = values * 1.4426950408889634 + round;
  Doubles count = turns - round;
  Doubles rest = multiply_add(count, Doubles{} - 0.6931471803691238, values);
  rest = multiply_add(count, Doubles{} - 1.9082149292705877e-10, rest);
  const double divisors[] = {479001600, 39916800, 3628800, 362880, 40320, 5040, 720, 120, 24, 6, 2, 1, 1};
  Doubles result = Doubles{};
  for (double divisor : divisors) result = multiply_add(result, rest, Doubles{} + 1.0 / divisor);
  Doubles power = (Doubles)(((Longs)turns << 52) + (1023ULL << 52));
  return values > -700.0 ? result * power : Doubles{};
}

// Those of kLanes tokens; past the end as if they were forbidden.
inline Floats load_logits(const float* logits, long token, long size) {
  if (token + kLanes <= size) return load<Floats>(logits + token);
  Floats values = splat(-__builtin_inff());
  memcpy(&values, logits + token, sizeof(float) * (size - token));
  return values;
}

// The largest of the logits seen so far. NaN makes it NaN.
struct Largest {
  Floats most = splat(-__builtin_inff()), poison = {};

  void see(Floats values) {
    Ints is_nan = values != values;
    poison = is_nan ? values : poison;
    most = larger(values, most);
  }

  bool is_finite() const {
    const float any_nan = sum(poison);
    return any_nan == any_nan && __builtin_isfinite(largest(most));
  }
};

// One row while it is drawn from, and its tokens within `reach` nats of the largest in buckets.
struct Vocabulary {
  const float* logits;
  long size;
  float temperature, largest, lowest;  // `largest` and `lowest` are of logits over temperature
  float reach;
  double total;       // the weights of all tokens; of those in buckets where no more is wanted
  long num_ids;       // tokens in buckets,
  uint32_t* ids;      // which they are,
  uint16_t* buckets;  // and in which
  uint64_t* sorted;   // room to sort a bucket in
  double weights[kBuckets];  // of all tokens of a bucket
  long counts[kBuckets];

  Floats scaled(long token) const {
    const Floats values = load_logits(logits, token, size) / temperature;
    return values >= lowest ? values : splat(-__builtin_inff());
  }
};

// The weights of kLanes tokens.
struct Weights {
  Doubles halves[2];

  Weights(const Vocabulary& row, Floats scaled) {
    float lanes[kLanes];
    store(lanes, scaled);
    for (int half = 0; half < 2; half++) {
      Doubles values = __builtin_convertvector(load<HalfFloats>(lanes + half * kDoubles), Doubles);
      halves[half] = exponential(values - (double)row.largest);
    }
  }

  double operator[](int i) const { return halves[i / kDoubles][i % kDoubles]; }
};

inline double sum(Doubles values) {
  double total = 0;
  for (int i = 0; i < kDoubles; i++) total += values[i];
  return total;
}

inline double weight_of(const Vocabulary& row, float scaled) {
  return exponential(((double)scaled - (double)row.largest) + Doubles{})[0];
}

inline long find_largest(const float* logits, long size, bool& is_finite) {
  Largest seen;
  for (long token = 0; token < size; token += kLanes) seen.see(load_logits(logits, token, size));
  is_finite = seen.is_finite();
  const float most = largest(seen.most);
  long token = 0;
  while (token + kLanes <= size && !is_any(load<Floats>(logits + token) == most)) token += kLanes;
  while (token < size && logits[token] != most) token++;
  return token < size ? token : 0;
}

// Draws in the order of ids.
inline long draw_plainly(const Vocabulary& row, double number) {
  constexpr long kMostParts = 1024;
  const long part_size = (row.size / kMostParts / kLanes + 64) * kLanes;
  double sums[kMostParts], total = 0;
  long num_parts = 0;
  for (long token = 0; token < row.size; num_parts++) {
    Doubles lanes = {};
    for (const long past = token + part_size; token < past && token < row.size; token += kLanes) {
      const Weights weights(row, row.scaled(token));
      lanes += weights.halves[0];
      lanes += weights.halves[1];
    }
    sums[num_parts] = sum(lanes);
    total += sums[num_parts];
  }
  const double target = number * total;
  double before = 0;
  long part = 0, last = 0;
  while (part + 1 < num_parts && before + sums[part] <= target) before += sums[part++];
  for (long token = part * part_size; token < row.size; token += kLanes) {
    const Weights weights(row, row.scaled(token));
    for (int i = 0; i < kLanes; i++) {
      if (weights[i] <= 0) continue;
      last = token + i;
      before += weights[i];
      if (before > target) return last;
    }
  }
  return last;
}

inline void put(Vocabulary& row, long token, float scaled, double weight) {
  const int bucket = (int)((row.largest - scaled) * (kBuckets / row.reach));
  row.ids[row.num_ids] = (uint32_t)token;
  row.buckets[row.num_ids++] = (uint16_t)(bucket < kBuckets ? bucket : kBuckets - 1);
  row.weights[row.buckets[row.num_ids - 1]] += weight;
  row.counts[row.buckets[row.num_ids - 1]]++;
}

// Puts tokens within `reach` nats of the largest into buckets; returns their weight.
inline double fill_buckets(Vocabulary& row, float reach, bool wants_total) {
  memset(row.weights, 0, sizeof row.weights);
  memset(row.counts, 0, sizeof row.counts);
  row.reach = reach;
  row.num_ids = 0;
  double inside = 0;
  Doubles outside = {};
  for (long token = 0; token < row.size; token += kLanes) {
    const Floats scaled = row.scaled(token);
    const Ints is_near = scaled >= row.largest - reach;
    const bool has_near = is_any(is_near);
    if (!has_near && !wants_total) continue;
    const Weights weights(row, scaled);
    if (!has_near) {
      outside += weights.halves[0];
      outside += weights.halves[1];
      continue;
    }
    for (int i = 0; i < kLanes; i++) {
      if (is_near[i]) put(row, token + i, scaled[i], weights[i]);
      (is_near[i] ? inside : outside[0]) += weights[i];
    }
  }
  row.total = inside + sum(outside);
  return inside;
}

// A number that is larger where the logit is, or where it is equal and the id smaller.
inline uint64_t rank_of(float scaled, long token) {
  uint32_t bits;
  memcpy(&bits, &scaled, sizeof bits);
  bits = bits >> 31 ? ~bits : bits | 0x80000000u;
  return (uint64_t)bits << 32 | (0xffffffffu - (uint32_t)token);
}

inline long token_of(uint64_t rank) { return (long)(0xffffffffu - (uint32_t)rank); }

inline void sink(uint64_t* heap, long at, long count) {
  for (long child; (child = 2 * at + 1) < count; at = child) {
    if (child + 1 < count && heap[child + 1] < heap[child]) child++;
    if (heap[at] <= heap[child]) return;
    uint64_t kept = heap[at];
    heap[at] = heap[child];
    heap[child] = kept;
  }
}

// Sorts a bucket into `row.sorted`, likeliest first.
inline void sort_bucket(const Vocabulary& row, int bucket) {
  long count = 0;
  for (long i = 0; i < row.num_ids; i++)
    if (row.buckets[i] == bucket)
      row.sorted[count++] = rank_of(row.logits[row.ids[i]] / row.temperature, row.ids[i]);
  for (long at = count / 2 - 1; at >= 0; at--) sink(row.sorted, at, count);
  for (long left = count - 1; left > 0; left--) {
    uint64_t least = row.sorted[0];
    row.sorted[0] = row.sorted[left];
    row.sorted[left] = least;
    sink(row.sorted, 0, left);
  }
}

// What lies before a place in the order of likelihood.
struct Cut {
  long count;
  double weight;
  long token;  // the last one before it
};

inline int next_bucket(const Vocabulary& row, int bucket) {
  while (bucket < kBuckets && !row.counts[bucket]) bucket++;
  return bucket;
}

// The first place, in the order of likelihood, where `most` tokens lie before it, or a weight of `enough`, or a weight
// of more than `beyond`; the end where there is none.
inline Cut find_cut(const Vocabulary& row, long most, double enough, double beyond) {
  Cut cut = {0, 0, 0};
  int bucket = next_bucket(row, 0);
  while (bucket < kBuckets) {
    const double weight = cut.weight + row.weights[bucket];
    const int next = next_bucket(row, bucket + 1);
    if (next == kBuckets || cut.count + row.counts[bucket] >= most || weight >= enough || weight > beyond) break;
    cut.count += row.counts[bucket];
    cut.weight = weight;
    bucket = next;
  }
  if (bucket == kBuckets) return cut;
  sort_bucket(row, bucket);
  for (long i = 0; i < row.counts[bucket]; i++) {
    cut.token = token_of(row.sorted[i]);
    cut.weight += weight_of(row, row.logits[cut.token] / row.temperature);
    cut.count++;
    if (cut.count >= most || cut.weight >= enough || cut.weight > beyond) break;
  }
  return cut;
}

// Draws in the order of likelihood, from what top-k and then top-p leave; also where they leave all.
inline long draw_filtered(Vocabulary& row, long top_k, double top_p, double number) {
  const double never = 1e300;
  const bool has_top_k = top_k > 0 && top_k < row.size;
  const double near_weight = fill_buckets(row, kNear, !has_top_k);
  if (has_top_k ? row.num_ids < top_k : near_weight < top_p * row.total) fill_buckets(row, kFar, true);
  Cut kept = {row.num_ids, row.total, 0};
  if (has_top_k) kept = find_cut(row, top_k, never, never);
  // A token stays while those before it do not yet reach top-p; so the first always stays.
  if (top_p < 1) kept = find_cut(row, kept.count, top_p * kept.weight, never);
  return find_cut(row, kept.count, never, number * kept.weight).token;
}

inline long choose(const SampleCall& call, long index, Vocabulary& row) {
  row.logits = call.logits + index * call.size;
  row.size = call.size;
  bool is_finite;
  const long likeliest = find_largest(row.logits, call.size, is_finite);
  call.is_finite[index] = is_finite;
  if (!call.temperatures || call.temperatures[index] == 0 || !is_finite) return likeliest;
  row.temperature = call.temperatures[index];
  row.largest = row.logits[likeliest] / row.temperature;
  if (!__builtin_isfinite(row.largest)) return likeliest;  // no other token has a weight beside one beyond float32
  row.lowest = row.largest + call.log_min_ps[index];
  const double number = call.numbers[index], top_p = call.top_ps[index];
  const long top_k = call.top_ks[index];
  if (top_p >= 1 && top_k <= 0) return draw_plainly(row, number);
  return draw_filtered(row, top_k, top_p, number);
}

// Leaves one row what its mask allows, or all without a mask; returns whether its largest logit was finite.
inline bool forbid(float* logits, const uint32_t* mask, long size) {
  Ints own_bit;
  for (int i = 0; i < kLanes; i++) own_bit[i] = 1 << i;
  Largest seen;
  for (long token = 0; token < size; token += kLanes) {
    const Floats values = load_logits(logits, token, size);
    seen.see(values);
    if (!mask) continue;
    const int32_t word = (int32_t)(mask[token / 32] >> token % 32);
    const Ints is_allowed = ((Ints{} + word) & own_bit) != 0;
    const Floats left = is_allowed ? values : splat(-__builtin_inff());
    memcpy(logits + token, &left, sizeof(float) * (token + kLanes <= size ? kLanes : size - token));
  }
  return seen.is_finite();
}

inline void forbid_tokens(const MaskCall& call) {
  for_each_part(call.rows, 2, [&](long index, long past) {
    for (; index < past; index++) {
      const int64_t place = call.places[index];
      const uint32_t* mask = place < 0 ? nullptr : call.masks + place * call.num_words;
      call.is_finite[index] = forbid(call.logits + index * call.size, mask, call.size);
      exo::beat();
    }
  });
}

inline void choose_tokens(const SampleCall& call) {
  for_each_part(call.rows, 2, [&](long index, long past) {
    Vocabulary row;
    char* room = room_for(call.size * (sizeof(uint64_t) + sizeof(uint32_t) + sizeof(uint16_t)));
    row.sorted = (uint64_t*)room;
    row.ids = (uint32_t*)(row.sorted + call.size);
    row.buckets = (uint16_t*)(row.ids + call.size);
    for (; index < past; index++) {
      call.tokens[index] = choose(call, index, row);
      exo::beat();
    }
  });
}

}  // namespace
