"""Weights lie one after the other in large pieces, each aligned as the kernels read it."""

from __future__ import annotations

import gc
import mmap
import weakref
from itertools import pairwise

import pytest
import torch
from exo_engine.kernels import weight_memory
from exo_engine.kernels.weight_memory import WeightMemory

SHAPES = ((3, 5), (64, 7), (1, 1), (100,))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.uint8, torch.float32], ids=str)
def test_tensors_do_not_overlap_and_begin_at_cache_lines(dtype: torch.dtype) -> None:
    memory = WeightMemory(4096)
    tensors = [memory.empty(shape, dtype) for shape in SHAPES for _ in range(10)]
    for number, tensor in enumerate(tensors):
        tensor.fill_(number % 100)
    assert [tuple(each.shape) for each in tensors] == [shape for shape in SHAPES for _ in range(10)]
    for number, tensor in enumerate(tensors):
        assert tensor.is_contiguous()
        assert tensor.dtype == dtype
        assert tensor.data_ptr() % 64 == 0
        assert bool((tensor == number % 100).all())
    ranges = sorted((each.data_ptr(), each.data_ptr() + each.nbytes) for each in tensors)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(ranges))


def test_small_tensors_share_a_piece_and_a_large_one_has_its_own() -> None:
    memory = WeightMemory(2**20)
    first, second = memory.empty((1000,), torch.uint8), memory.empty((10,), torch.uint8)
    assert second.data_ptr() == first.data_ptr() + 1024
    large = memory.empty((2**22,), torch.uint8)
    assert abs(large.data_ptr() - first.data_ptr()) >= 2**20
    assert memory.empty((0, 4), torch.bfloat16).shape == (0, 4)


def test_where_there_is_no_room_it_says_so_and_small_tensors_go_on() -> None:
    memory = WeightMemory(2**20)
    with pytest.raises(MemoryError, match="no room for 4611686018427387904 bytes of weights"):
        memory.empty((2**62,), torch.uint8)
    memory.empty((1000,), torch.uint8).fill_(1)


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="this system has no huge pages")
def test_a_piece_begins_at_a_huge_page_and_is_given_back_with_its_last_tensor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pieces: list[weakref.ref[mmap.mmap]] = []
    new_piece = weight_memory._new_piece

    def watched(num_bytes: int) -> mmap.mmap:
        piece = new_piece(num_bytes)
        pieces.append(weakref.ref(piece))
        return piece

    monkeypatch.setattr(weight_memory, "_new_piece", watched)
    memory = WeightMemory(2**20)
    first, second = memory.empty((1000,), torch.uint8), memory.empty((1000,), torch.uint8)
    assert first.data_ptr() % 2**21 == 0
    del first
    gc.collect()
    assert [each() is None for each in pieces] == [False]
    second.fill_(1)
    del second
    gc.collect()
    assert [each() is None for each in pieces] == [True]
    memory.empty((1000,), torch.uint8).fill_(1)
    assert len(pieces) == 2
