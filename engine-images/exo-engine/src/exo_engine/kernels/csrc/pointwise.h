// What lies between the products of a layer, each pass over a step's tokens done once. Numbers are bf16, sums
// float32.
#pragma once

#include "pages.h"
#include "parallel.h"
#include "vectors.h"

namespace {

// 1 / root mean square of a row.
inline float inverse_rms(const Bf16* row, long size, float eps) {
  Floats squares = {};
  long i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    Floats numbers = widen(load<Bf16s>(row + i));
    squares = multiply_add(numbers, numbers, squares);
  }
  float total = sum(squares);
  for (; i < size; i++) total += widen_one(row[i]) * widen_one(row[i]);
  return 1.0f / __builtin_sqrtf(total / size + eps);
}

inline void scale_row(const Bf16* row, const Bf16* weight, float scale, long size, Bf16* outputs) {
  long i = 0;
  for (; i + kLanes <= size; i += kLanes)
    store(outputs + i, narrow(widen(load<Bf16s>(row + i)) * scale * widen(load<Bf16s>(weight + i))));
  for (; i < size; i++) outputs[i] = narrow_one(widen_one(row[i]) * scale * widen_one(weight[i]));
}

// states (rows, size) += update, in place, where there is an update; outputs = states, normalised, times
// weight.
inline void add_and_normalise(Bf16* states, const Bf16* update, const Bf16* weight, Bf16* outputs, long rows,
                              long size, float eps) {
  for_each_part(rows, least_rows(size), [&](long row, long past) {
    for (; row < past; row++) {
      Bf16* state = states + row * size;
      long i = 0;
      if (update) {
        for (; i + kLanes <= size; i += kLanes)
          store(state + i,
                narrow(widen(load<Bf16s>(state + i)) + widen(load<Bf16s>(update + row * size + i))));
        for (; i < size; i++) state[i] = narrow_one(widen_one(state[i]) + widen_one(update[row * size + i]));
      }
      scale_row(state, weight, inverse_rms(state, size, eps), size, outputs + row * size);
    }
  });
}

// outputs (rows, size) = silu(first half) * second half of inputs (rows, 2 * size).
inline void silu_and_multiply(const Bf16* inputs, Bf16* outputs, long rows, long size) {
  for_each_part(rows, least_rows(size), [&](long row, long past) {
    for (; row < past; row++) {
      const Bf16 *gate = inputs + row * 2 * size, *up = gate + size;
      long i = 0;
      for (; i + kLanes <= size; i += kLanes) {
        Floats x = widen(load<Bf16s>(gate + i));
        Floats silu = widen(narrow(x / (1.0f + exponential(-x))));  // rounded as it would be on its own
        store(outputs + row * size + i, narrow(silu * widen(load<Bf16s>(up + i))));
      }
      for (; i < size; i++) {
        float x = widen_one(gate[i]);
        float silu = widen_one(narrow_one(x / (1.0f + exponential(splat(-x))[0])));
        outputs[row * size + i] = narrow_one(silu * widen_one(up[i]));
      }
    }
  });
}

struct RotateCall {
  PageShape pages;
  const Bf16* merged;        // (tokens, heads + 2 kv_heads, D): queries, keys, values
  const Bf16* query_weight;  // (D) or null: of the norm of each head before it is turned
  const Bf16* key_weight;
  const float* cosines;  // (positions, D / 2)
  const float* sines;
  const int32_t* positions;  // (tokens)
  const int64_t* slots;      // (tokens): page * page_size + place in it
  Bf16* queries;             // (tokens, heads, D)
  long tokens;
  int heads;
  float eps;
};

// Turns one head by the angles of its position (pairs are i and i + D / 2) and returns it in `turned`.
inline void turn(const RotateCall& call, const Bf16* head, const Bf16* weight, long position, Bf16* turned) {
  Bf16 normalised[512];
  if (weight) {
    scale_row(head, weight, inverse_rms(head, call.pages.head_dim, call.eps), call.pages.head_dim, normalised);
    head = normalised;
  }
  const int half = call.pages.head_dim / 2;
  const float *cosine = call.cosines + position * half, *sine = call.sines + position * half;
  int i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    Floats first = widen(load<Bf16s>(head + i)), second = widen(load<Bf16s>(head + half + i));
    Floats c = load<Floats>(cosine + i), s = load<Floats>(sine + i);
    store(turned + i, narrow(first * c - second * s));
    store(turned + half + i, narrow(second * c + first * s));
  }
  for (; i < half; i++) {
    float first = widen_one(head[i]), second = widen_one(head[half + i]);
    turned[i] = narrow_one(first * cosine[i] - second * sine[i]);
    turned[half + i] = narrow_one(second * cosine[i] + first * sine[i]);
  }
}

template <class Number>
void store_key(const PageShape& shape, const Number* key, long place, Number* head) {
  for (int pair = 0; pair < shape.head_dim / 2; pair++)
    memcpy(head + (pair * shape.page_size + place) * 2, key + pair * 2, 2 * sizeof(Number));
}

template <class Number>
void store_value(const PageShape& shape, const Number* value, long place, Number* head) {
  Number* to = head + place / 2 * shape.head_dim * 2 + place % 2;
  for (int dim = 0; dim < shape.head_dim; dim++) to[dim * 2] = value[dim];
}

// Stores a token's key and value of one head.
inline void store_head(const PageShape& shape, const Bf16* key, const Bf16* value, long slot, int head) {
  const long page = slot / shape.page_size, place = slot % shape.page_size;
  if (!shape.is_quantized) {
    const long at = page_at<Bf16>(shape, page, head);
    store_key(shape, key, place, (Bf16*)shape.keys + at);
    return store_value(shape, value, place, (Bf16*)shape.values + at);
  }
  const long at = page_at<Code>(shape, page, head);
  Code codes[512], *keys = (Code*)shape.keys + at, *values = (Code*)shape.values + at;
  const float key_scale = quantize_head(key, shape.head_dim, codes);
  store_key(shape, codes, place, keys);
  memcpy(scale_of(shape, keys, place), &key_scale, sizeof key_scale);
  const float value_scale = quantize_head(value, shape.head_dim, codes);
  store_value(shape, codes, place, values);
  memcpy(scale_of(shape, values, place), &value_scale, sizeof value_scale);
}

// Normalises heads where the model does, turns queries and keys, and stores keys and values.
inline void rotate_and_store(const RotateCall& call) {
  const int all = call.heads + 2 * call.pages.kv_heads;
  for_each_part(call.tokens, least_rows(all * call.pages.head_dim), [&](long token, long past) {
    for (; token < past; token++) {
      const Bf16* merged = call.merged + token * all * call.pages.head_dim;
      for (int head = 0; head < call.heads; head++)
        turn(call, merged + head * call.pages.head_dim, call.query_weight, call.positions[token],
             call.queries + (token * call.heads + head) * call.pages.head_dim);
      for (int head = 0; head < call.pages.kv_heads; head++) {
        Bf16 turned[512];
        turn(call, merged + (call.heads + head) * call.pages.head_dim, call.key_weight, call.positions[token],
             turned);
        store_head(call.pages, turned, merged + (call.heads + call.pages.kv_heads + head) * call.pages.head_dim,
                   call.slots[token], head);
      }
    }
  });
}

}  // namespace
