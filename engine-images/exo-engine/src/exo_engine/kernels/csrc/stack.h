// All layers of a decoder in one call: norm, attention, norm, gated MLP, each added to what came in. It does what
// the single calls do, in their order.
//
// Legend: E hidden size, I inner size, H heads, Hkv key/value heads, D head dim.
#pragma once

#include "attention.h"
#include "linear.h"
#include "pointwise.h"

namespace {

// One layer. What belongs to a step is not filled in: inputs, outputs, rows, tables.
struct LayerCall {
  const Bf16 *attention_norm, *mlp_norm;  // (E)
  LinearCall merged, output, gates, down;
  RotateCall rotate;
  AttentionCall attention;
  int group;  // of the cache
  float eps;
};

struct GroupCall {
  const int64_t* slots;   // (tokens)
  const int32_t* tables;  // (sequences, table_stride)
  long table_stride;
};

struct StackCall {
  const LayerCall* layers;
  const GroupCall* groups;
  const float *cosines, *sines;
  const int32_t *positions, *starts, *contexts;
  Bf16* states;      // (tokens, E): what came in, and then what the last update is to be added to
  Bf16* update;      // (tokens, E): the last one
  Bf16* normalised;  // (tokens, E), and from here on room for numbers that do not outlive a layer
  Bf16* merged;      // (tokens, (H + 2 Hkv) D)
  Bf16* queries;     // (tokens, H D)
  Bf16* attended;    // (tokens, H D)
  Bf16* gates;       // (tokens, 2 I)
  Bf16* inner;       // (tokens, I)
  long num_layers, tokens, num_sequences;
};

inline void multiply_into(LinearCall call, long rows, const Bf16* inputs, Bf16* outputs) {
  call.inputs = inputs;
  call.outputs = outputs;
  call.rows = rows;
  multiply(call);
}

inline void attend_layer(const StackCall& stack, const LayerCall& layer) {
  const GroupCall& group = stack.groups[layer.group];
  RotateCall rotate = layer.rotate;
  rotate.merged = stack.merged;
  rotate.cosines = stack.cosines;
  rotate.sines = stack.sines;
  rotate.positions = stack.positions;
  rotate.slots = group.slots;
  rotate.queries = stack.queries;
  rotate.tokens = stack.tokens;
  rotate_and_store(rotate);
  AttentionCall attention = layer.attention;
  attention.queries = stack.queries;
  attention.tables = group.tables;
  attention.table_stride = group.table_stride;
  attention.starts = stack.starts;
  attention.contexts = stack.contexts;
  attention.num_sequences = stack.num_sequences;
  attention.outputs = stack.attended;
  attend(attention);
}

inline void run_stack(const StackCall& stack) {
  const long tokens = stack.tokens;
  for (long index = 0; index < stack.num_layers; index++) {
    const LayerCall& layer = stack.layers[index];
    const long hidden = layer.merged.num_inputs;
    add_and_normalise(stack.states, index ? stack.update : nullptr, layer.attention_norm, stack.normalised,
                      tokens, hidden, layer.eps);
    multiply_into(layer.merged, tokens, stack.normalised, stack.merged);
    attend_layer(stack, layer);
    multiply_into(layer.output, tokens, stack.attended, stack.update);
    add_and_normalise(stack.states, stack.update, layer.mlp_norm, stack.normalised, tokens, hidden, layer.eps);
    multiply_into(layer.gates, tokens, stack.normalised, stack.gates);
    silu_and_multiply(stack.gates, stack.inner, tokens, layer.down.num_inputs);
    multiply_into(layer.down, tokens, stack.inner, stack.update);
    exo::count_layer();
  }
}

}  // namespace
