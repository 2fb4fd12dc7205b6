"""A GGUF file beside a config.json: its type by name, else by size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from exo_inference.foreign_files import describe_model
from exo_inference.planner import (
    EngineParameters,
    find_gpu,
    find_model,
    load_models,
    plan,
    read_architecture,
    with_gguf,
)
from exo_inference.planner.model.quantization import gguf_type_of

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


@pytest.mark.parametrize(
    ("file", "mix"),
    [
        ("Llama-3.1-8B-Instruct-Q4_K_M.gguf", "Q4_K_M"), ("model.q8_0.gguf", "Q8_0"), ("m-IQ4_XS.gguf", "IQ4_XS"),
        ("big-Q6_K-00001-of-00003.gguf", "Q6_K"), ("x-bf16.gguf", "BF16"), ("gpt-oss-20b-MXFP4.gguf", "MXFP4_MOE"), ("a-mxfp4_moe.gguf", "MXFP4_MOE"), ("m.gguf", None), ("Q4.gguf", None),
    ],
)  # fmt: skip
def test_the_name_says_the_type(file: str, mix: str | None) -> None:
    assert gguf_type_of(file) == mix


def test_a_file_that_does_not_say_its_type_is_taken_by_its_size() -> None:
    model = find_model(LLAMA)
    size = 4_920_739_232  # the published Q4_K_M of this model
    found = with_gguf(model, "m.gguf", size)
    assert found.quantization is not None
    assert found.quantization.default.name == "gguf-Q4_K_M"
    assert found.checkpoint_bytes == size
    assert any("by its size" in note for note in found.notes)
    result = plan(found, find_gpu("L4"), 1, EngineParameters(max_model_len=8192))
    assert result.weights_bytes_per_gpu == pytest.approx(size, rel=0.02)


@pytest.mark.parametrize("size", [0, 10**6, 10**12])
def test_a_size_that_fits_no_type_is_noted_and_counted_as_stored(size: int) -> None:
    found = with_gguf(find_model(LLAMA), "m.gguf", size)
    assert found.quantization is None
    assert any("not known" in note for note in found.notes)


def test_a_directory_with_parts_of_a_gguf_file_is_planned_by_them(tmp_path: Path) -> None:
    config = load_models()["Qwen/Qwen3-0.6B"]["config"]
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for part in (1, 2):
        (tmp_path / f"qwen-Q8_0-0000{part}-of-00002.gguf").write_bytes(b"GGUF" * 6)
    model = describe_model(tmp_path, "qwen")
    assert model.quantization is not None
    assert model.quantization.default.name == "gguf-Q8_0"
    assert model.checkpoint_bytes is None  # 48 bytes are not the whole file
    assert any("Q8_0 by its name" in note for note in model.notes)


@pytest.mark.parametrize("name", ["m-Q4_K_M.gguf", "m-IQ1_S.gguf", "m-F32.gguf", "weird.gguf"])
def test_no_less_is_counted_than_the_file_has(name: str) -> None:
    model = read_architecture(load_models()["Qwen/Qwen3-8B"]["config"], name="m")
    found = with_gguf(model, name, 500 * 10**9)
    assert found.checkpoint_bytes == 500 * 10**9
    assert any("more than its type explains" in note for note in found.notes)
