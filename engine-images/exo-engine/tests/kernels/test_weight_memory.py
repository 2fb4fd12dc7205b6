"""Weights lie one after the other in large pieces, each aligned as the kernels read it."""

from __future__ import annotations

import gc
import weakref
from itertools import pairwise
from pathlib import Path

import pytest
import torch
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
    large = memory.empty((2**21 + 1,), torch.uint8)
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    assert large.untyped_storage().data_ptr() != first.untyped_storage().data_ptr()
    assert memory.empty((0, 4), torch.bfloat16).shape == (0, 4)


def test_a_piece_is_given_back_with_its_last_tensor() -> None:
    memory = WeightMemory(2**20)
    first = memory.empty((2**20,), torch.uint8)
    piece = weakref.ref(first.untyped_storage())
    address = first.data_ptr()
    assert is_mapped(address)
    del first, memory
    gc.collect()
    assert piece() is None
    assert not is_mapped(address)


def is_mapped(address: int) -> bool:
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, past = (int(each, 16) for each in line.split()[0].split("-"))
        if first <= address < past:
            return True
    return False
