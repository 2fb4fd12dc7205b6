"""Files that `deployment plan` is given and cannot use: each is named, none ends in a traceback."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from exo_inference.model_description import MAX_CONFIG_BYTES
from tests.cli.conftest import Exo

from .conftest import CONFIG

PLAN = ("ai", "deployment", "plan", "--gpu-type", "l4")


def test_path_that_does_not_exist(exo: Exo, tmp_path: Path) -> None:
    result = exo(*PLAN, "--model", str(tmp_path / "nothing"))
    assert result.code == 2
    assert f"{tmp_path / 'nothing'} does not exist" in result.err
    assert "--model-name" in result.err


def test_directory_without_a_config(exo: Exo, tmp_path: Path) -> None:
    result = exo(*PLAN, "--model", str(tmp_path))
    assert result.code == 2
    assert f"there is no config.json in {tmp_path}" in result.err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", "is not JSON", id="empty"),
        pytest.param(b"model: llama", "is not JSON", id="yaml"),
        pytest.param(b"\xff\xfe\x00", "is not JSON", id="not text"),
        pytest.param(b"[" * 100_000, "is nested deeper than 64 levels", id="deep"),
        pytest.param(b"[1]", "holds a list of 1 entries, expected a JSON object", id="list"),
        pytest.param(b" " * (MAX_CONFIG_BYTES + 1), "is larger than 16 MiB", id="huge"),
    ],
)
def test_config_that_is_none(exo: Exo, tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    for path in (file, tmp_path):
        result = exo(*PLAN, "--model", str(path))
        assert (result.code, result.out) == (2, "")
        assert f"{file} {message}" in result.err


@pytest.mark.parametrize("content", ["{}", '{"model_type": "mystery-9000"}'])
def test_config_that_cannot_be_sized_is_unknown(exo: Exo, tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content, "utf-8")
    result = exo(*PLAN, "--model", str(tmp_path))
    assert result.code == 1
    assert result.out.startswith("Unknown: ")
    assert "because" in result.out


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\x08", id="short"),
        pytest.param(struct.pack("<Q", 2**60), id="endless header"),
        pytest.param(struct.pack("<Q", 40) + b"{}", id="cut off"),
        pytest.param(struct.pack("<Q", 2) + b"[]", id="no object"),
        pytest.param(struct.pack("<Q", 7) + b'{"a":1}', id="no tensor"),
        pytest.param(struct.pack("<Q", 3) + b"\xff{}", id="not text"),
    ],
)
def test_damaged_weights_are_refused_by_name(exo: Exo, model_dir: Path, content: bytes) -> None:
    file = model_dir / "model.safetensors"
    file.write_bytes(content)
    result = exo(*PLAN, "--model", str(model_dir))
    assert (result.code, result.out) == (2, "")
    assert f"{file.name} is damaged: " in result.err


def test_index_is_taken_where_there_are_no_weights(exo: Exo, model_dir: Path) -> None:
    (model_dir / "model.safetensors").unlink()
    template = ("--output-template", "{{.Weights}}")
    before = int(exo(*PLAN, "--model", str(model_dir), *template).out)
    index = model_dir / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": before * 10}}), "utf-8")
    result = exo(*PLAN, "--model", str(model_dir))
    assert "the checkpoint's index says" in result.out
    index.write_text("{", "utf-8")
    assert f"{index} is not JSON" in exo(*PLAN, "--model", str(model_dir)).err


def test_originals_beside_the_weights_are_left_out(exo: Exo, model_dir: Path) -> None:
    template = ("--output-template", "{{.Weights}}")
    before = exo(*PLAN, "--model", str(model_dir), *template).out
    original = (model_dir / "model.safetensors").read_bytes()
    (model_dir / "consolidated.safetensors").write_bytes(original)
    assert exo(*PLAN, "--model", str(model_dir), *template).out == before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"[lab", "not valid TOML", id="not toml"),
        pytest.param(b"\xff", "is not text", id="not text"),
        pytest.param(b"[lab]\nspeed = 1\n", "'lab'", id="field"),
        pytest.param(b"#" * (2**20 + 1), "larger than 1 MiB", id="huge"),
    ],
)
def test_bad_gpu_files(exo: Exo, tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "gpus.toml"
    file.write_bytes(content)
    result = exo(*PLAN, "--model-name", "Qwen/Qwen3-8B", "--gpu-file", str(file))
    assert (result.code, result.out) == (2, "")
    assert message in result.err


def test_missing_gpu_file(exo: Exo, tmp_path: Path) -> None:
    file = tmp_path / "nothing.toml"
    result = exo(*PLAN, "--model-name", "Qwen/Qwen3-8B", "--gpu-file", str(file))
    assert result.code == 2
    assert f"cannot read {file}: No such file" in result.err


def test_names_cannot_move_the_cursor(exo: Exo, tmp_path: Path) -> None:
    config = {**CONFIG, "_name_or_path": "evil\x1b[2J\u202e"}
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    out = exo(*PLAN, "--model", str(tmp_path), tty=True).out
    assert "evil\\x1b[2J\\u202e" in out
    assert "\x1b[2J" not in out


LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
    "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 100, "intermediate_size": 128,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model_type": ""}, "config.json has no model_type"),
        ({"quantization_config": 3}, "quantization_config in config.json is 3, expected an object"),
        (
            {"quantization_config": {"quant_method": "awq", "bits": "x"}},
            "quantization_config.bits in config.json is 'x', expected a whole number of 1 or more",
        ),
        (
            {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {"g": 3}}},
            "config.json is not of the usual form; look at quantization_config",
        ),
    ],
    ids=["no type", "no object", "no number", "nested"],
)  # fmt: skip
def test_a_config_that_is_not_understood_says_which_field(
    exo: Exo, tmp_path: Path, changes: dict[str, Any], expected: str
) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**LLAMA, **changes}), "utf-8")
    result = exo("ai", "deployment", "plan", "--model", str(file), "--gpu-type", "gpua5000")
    assert result.code == 1
    assert expected in " ".join(result.out.split())
    assert "Error" not in result.out
