"""A double of FlashAttention as PyTorch 2.13 has it for CUDA: its checks of what it is given, and sums in float64.

It stands where PyTorch's own function for CUDA would, so that all of PyTorch above it is real.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


def _flash_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cum_seq_q: Tensor,
    cum_seq_k: Tensor,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    scale: float,
    window_size_left: int,
    window_size_right: int,
    seqused_k: Tensor,
    block_table: Tensor,
    num_splits: int | None = None,
    alibi_slopes: None = None,
) -> tuple[Tensor, ...]:
    def check(is_right: bool, problem: str) -> None:
        if not is_right:
            raise RuntimeError(problem)

    num_pages, page_size, num_kv_heads, head_dim = key.shape
    num_sequences = len(cum_seq_q) - 1
    check(page_size % 256 == 0, "Paged KV cache block size must be divisible by 256")
    check(query.dtype in (torch.float16, torch.bfloat16), "only support fp16 and bf16 data type")
    check(key.dtype == value.dtype == query.dtype, "must have the same dtype")
    check(head_dim % 8 == 0, "head_size must be a multiple of 8")
    check(head_dim <= 256, "only supports head dimension at most 256")
    check(query.shape[1] % num_kv_heads == 0, "must divide number of heads in query")
    check(value.shape == (num_pages, page_size, num_kv_heads, head_dim), "v must have shape")
    check(block_table.shape[0] == num_sequences, "block_table must have shape")
    check(cum_seq_k.shape == cum_seq_q.shape, "cu_seqlens_k must have shape")
    check(seqused_k.shape == (num_sequences,), "seqused_k must have shape")
    for each in (cum_seq_q, cum_seq_k, seqused_k, block_table):
        check(each.dtype == torch.int32, "must have dtype int32")
        check(each is block_table or each.is_contiguous(), "must be contiguous")
    for each in (query, key, value, block_table):
        check(each.stride(-1) == 1, "must have contiguous last dimension")
    lengths = cum_seq_q.diff()
    assert max_q == int(lengths.max()), "FlashAttention launches programs for so many"
    assert max_k == int(seqused_k.max()), "FlashAttention launches programs for so many"
    assert torch.equal(cum_seq_k.diff(), seqused_k)
    assert is_causal == (window_size_left < 0), "causal, or a window"
    assert window_size_right == 0
    assert dropout_p == 0

    output = torch.full_like(query, torch.nan)
    for index in range(1 if num_splits != 1 else num_sequences):  # split, only the first is written
        rows = slice(int(cum_seq_q[index]), int(cum_seq_q[index + 1]))
        pages, used = block_table[index].long(), int(seqused_k[index])
        positions = torch.arange(used - int(lengths[index]), used)[:, None]
        distance = positions - torch.arange(used)
        first = (positions.min() - window_size_left).clamp(min=0) if window_size_left >= 0 else 0
        is_read = torch.arange(used) >= first // 64 * 64  # whole tiles of keys
        heads = []
        for states in (key, value):
            held = states[pages[: -(-used // page_size)]].flatten(0, 1)[:used]
            held = held.masked_fill(~is_read[:, None, None], 0).double()
            heads.append(held.repeat_interleave(query.shape[1] // num_kv_heads, dim=1))
        scores = torch.einsum("qhd,khd->hqk", query[rows].double(), heads[0]) * scale
        is_seen = (distance >= 0) & ((window_size_left < 0) | (distance <= window_size_left))
        weights = scores.masked_fill(~is_seen, -torch.inf).softmax(dim=-1)
        output[rows] = torch.einsum("hqk,khd->qhd", weights, heads[1]).to(query.dtype)
    nothing = query.new_empty(0)
    return output, nothing.float(), nothing, nothing, nothing


@contextmanager
def flash_attention_on_the_cpu() -> Iterator[None]:
    """Have PyTorch's FlashAttention exist for tensors of the CPU."""
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("_flash_attention_forward", _flash_attention_forward, "CPU")
        yield
