"""How states of a Gated DeltaNet are moved on in one order of sums.

Legend: T tokens in step, S sequences, H value heads, K key dim, V value dim.
"""

from __future__ import annotations

import torch
from torch import Tensor

from exo_engine.kernels.triton.launch import Launch, tile_of
from exo_engine.kernels.triton.state_kernels import move_states

_COLUMNS = 32


def move(
    mixed: Tensor, log_decays: Tensor, rates: Tensor, matrices: Tensor, query_starts: Tensor
) -> tuple[Tensor, Tensor]:
    """Return results (T, H, V) of a step's tokens, and the matrices behind its last ones.

    Args:
        mixed: (T, C) float32: queries and keys of all key heads, and values, as the convolution gives them.
        log_decays: (T, H) float32.
        rates: likewise.
        matrices: (S, H, K, V) float32, before the step.
        query_starts: (S + 1,) int32, of the sequences' tokens.
    """
    results = mixed.new_empty(len(mixed), matrices.shape[1], matrices.shape[3])
    mixed, log_decays, rates, matrices = (
        each.contiguous() for each in (mixed, log_decays, rates, matrices)
    )
    moved = torch.empty_like(matrices)
    plan_move(mixed, log_decays, rates, matrices, moved, results, query_starts).run()
    return results, moved


def plan_move(
    mixed: Tensor,
    log_decays: Tensor,
    rates: Tensor,
    matrices: Tensor,
    moved: Tensor,
    results: Tensor,
    query_starts: Tensor,
) -> Launch:
    """Return what moves states; see `move`."""
    num_sequences, heads, key_dim, value_dim = matrices.shape
    columns = min(_COLUMNS, tile_of(value_dim, 16))
    arguments = {
        "mixed": mixed,
        "log_decays": log_decays,
        "rates": rates,
        "matrices": matrices,
        "moved": moved,
        "results": results,
        "query_starts": query_starts,
        "KEY_HEADS": (mixed.shape[1] - heads * value_dim) // (2 * key_dim),
        "HEADS": heads,
        "K": key_dim,
        "V": value_dim,
        "KEYS": tile_of(key_dim, 16),
        "COLUMNS": columns,
    }
    grid = (num_sequences, heads, -(-value_dim // columns))
    return Launch(move_states, grid, arguments, fuses=False)
