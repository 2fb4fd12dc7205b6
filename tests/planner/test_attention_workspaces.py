"""What DeepSeek-V4's attention takes beside the cache."""

from __future__ import annotations

import pytest

from exo_inference.planner.catalog_models import find_model
from exo_inference.planner.compressed_cache import attention_workspaces
from exo_inference.planner.gpu_catalog import GIB, MIB, find_gpu
from exo_inference.planner.model.architecture import Architecture
from exo_inference.planner.model.shapes import KvSpec
from exo_inference.planner.parameters import EngineParameters
from exo_inference.planner.planning import plan

FLASH = "deepseek-ai/DeepSeek-V4-Flash"


def specs(model: Architecture) -> list[KvSpec]:
    return [layer.kv for layer, _ in model.layer_counts if layer.kv is not None]


@pytest.mark.parametrize(
    ("length", "kept"),
    [
        # 4 prompts x (entries of ratio 4 + window + step) x 512 numbers of 16 bit
        (8_192, 4 * (2_048 + 128 + 8_192) * 1_024),
        # 40 rows of 132 bytes for each token of the context, a quarter of them kept
        (262_144, 262_144 * 40 // 4 * 132),
        (1_048_576, 1_048_576 * 40 // 4 * 132),
    ],
)
def test_the_shared_buffer_is_the_larger_of_attention_and_indexer(length: int, kept: int) -> None:
    model = find_model(FLASH)
    found = attention_workspaces(specs(model), model.hidden_size, 32, length, 8_192)
    assert found.kept == kept


def test_queries_and_output_are_padded_to_64_or_128_heads() -> None:
    model = find_model(FLASH)
    steps = [
        attention_workspaces(specs(model), 4_096, heads, 8_192, 8_192).step
        for heads in (8, 64, 128)
    ]
    assert steps[0] == steps[1] == 8_192 * 2 * (5 * 4_096 + 2 * 64 * 512) + 512 * MIB
    assert steps[2] - steps[1] == 8_192 * 2 * 2 * 64 * 512


def test_a_model_without_compressed_attention_has_none() -> None:
    parts = [
        plan(
            find_model("Qwen/Qwen3-32B"),
            find_gpu("H200"),
            1,
            EngineParameters(max_model_len=length),
        ).component("activations")
        for length in (1_024, 40_960)
    ]
    assert parts[0] is not None
    assert parts[1] is not None
    assert parts[0].num_bytes == parts[1].num_bytes
    assert "workspaces" not in parts[0].source


def test_they_come_out_of_the_cache_and_grow_with_the_context() -> None:
    short, long = (
        plan(find_model(FLASH), find_gpu("H200"), 2, EngineParameters(max_model_len=length))
        for length in (262_144, 1_048_576)
    )
    grown = long.component("activations"), short.component("activations")
    assert grown[0] is not None
    assert grown[1] is not None
    more = 786_432 * 40 // 4 * 132
    assert grown[0].num_bytes - grown[1].num_bytes == more
    assert short.available_kv_bytes_per_gpu - long.available_kv_bytes_per_gpu == more
    assert "workspaces of compressed attention (330 MiB kept)" in grown[1].source


def test_one_start_that_had_more_widens_the_band_and_moves_no_middle() -> None:
    compressed, other = (
        plan(find_model(name), find_gpu("H200"), 2, EngineParameters()).component("non_torch")
        for name in (FLASH, "Qwen/Qwen3-32B")
    )
    assert compressed is not None
    assert other is not None
    assert (compressed.num_bytes, compressed.low) == (other.num_bytes, other.low)
    assert compressed.high > other.high + 5 * GIB
