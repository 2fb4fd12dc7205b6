"""A checkpoint that is not whole, or not of this model, is refused before anything is served."""

from __future__ import annotations

import json
import shutil

import pytest
from exo_engine.errors import ModelUnusable
from exo_engine.llm import LLM
from exo_engine.models.config_file import read_spec
from exo_engine.models.weights import check_checkpoint

OPTIONS = {"dtype": "float32", "device": "cpu", "max_model_len": 32}


@pytest.fixture
def model_dir(tiny_model, tmp_path):
    """A private copy of a small model."""
    return shutil.copytree(tiny_model("llama").path, tmp_path / "model")


@pytest.fixture
def rewrite(model_dir):
    """Return a function that changes the tensors of the copy."""
    from safetensors.torch import load_file, save_file

    def apply(change) -> None:
        path = model_dir / "model.safetensors"
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path)

    return apply


def refusal(model_dir) -> ModelUnusable:
    with pytest.raises(ModelUnusable) as caught:
        check_checkpoint(model_dir, read_spec(model_dir))
    return caught.value


@pytest.mark.parametrize("keep", [0, 4, 8, 100, 20000, -1], ids=lambda keep: f"keep{keep}")
def test_a_truncated_file_is_named_with_its_size(model_dir, keep):
    path = model_dir / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    error = refusal(model_dir)
    assert str(path) in error.message
    assert f"{path.stat().st_size} bytes" in error.message
    assert "Download the model again" in error.hint


def test_an_empty_file_is_refused(model_dir):
    (model_dir / "model.safetensors").write_bytes(b"")
    assert "it has 0 bytes, expected a header and data" in refusal(model_dir).message


def test_a_file_with_bytes_too_many_is_refused(model_dir):
    path = model_dir / "model.safetensors"
    path.write_bytes(path.read_bytes() + b"x")
    assert "expected" in refusal(model_dir).message


def test_a_damaged_header_is_refused(model_dir):
    path = model_dir / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[8:12] = b"\x00\x01\x02\x03"
    path.write_bytes(bytes(data))
    assert "damaged safetensors header" in refusal(model_dir).message


def test_random_bytes_are_refused(model_dir):
    (model_dir / "model.safetensors").write_bytes(bytes(range(256)) * 100)
    assert "not a whole safetensors file" in refusal(model_dir).message


def test_an_lfs_pointer_is_recognised(model_dir):
    (model_dir / "model.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"
    )
    error = refusal(model_dir)
    assert "Git LFS pointer" in error.message
    assert "git lfs pull" in error.hint


def test_a_missing_tensor_is_named(model_dir, rewrite):
    rewrite(lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    assert "lacks model.layers.1.mlp.up_proj.weight" in refusal(model_dir).message


def test_a_tensor_without_a_place_is_named(model_dir, rewrite):
    rewrite(
        lambda tensors: tensors.update(
            {"model.layers.0.self_attn.q_proj.bias": tensors["model.norm.weight"].clone()}
        )
    )
    assert "has model.layers.0.self_attn.q_proj.bias" in refusal(model_dir).message


@pytest.mark.parametrize(
    ("name", "dtype", "told"),
    [
        ("x\ud800", "F32", "has x\\ud800, for which"),
        (
            "\x1b[2J\nexo-engine: error: forged",
            "F32",
            r"has \x1b[2J\nexo-engine: error: forged, for",
        ),
        ("model.norm.weight", "F4\ud800\x1b", r"has dtype F4\ud800\x1b, expected"),
    ],
)
def test_foreign_names_are_shown_as_one_line_that_prints(model_dir, name, dtype, told):
    path = model_dir / "model.safetensors"
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header[name] = {**header.get(name, {"shape": [0], "data_offsets": [0, 0]}), "dtype": dtype}
    changed = json.dumps(header).encode()
    path.write_bytes(len(changed).to_bytes(8, "little") + changed + content[8 + length :])
    message = refusal(model_dir).message
    assert told in message
    assert message.isprintable()


def test_a_wrong_shape_is_named_with_both_shapes(model_dir, rewrite):
    rewrite(lambda tensors: tensors.update({"model.norm.weight": tensors["model.norm.weight"][1:]}))
    message = refusal(model_dir).message
    assert "model.norm.weight has shape [47], expected [48]" in message


def test_a_quantized_dtype_is_named(model_dir, rewrite):
    rewrite(
        lambda tensors: tensors.update(
            {"lm_head.weight": tensors["lm_head.weight"].char()}  # int8
        )
    )
    assert "lm_head.weight has dtype I8" in refusal(model_dir).message


def test_buffers_of_old_checkpoints_are_ignored(model_dir, rewrite):
    rewrite(
        lambda tensors: tensors.update(
            {"model.layers.0.self_attn.rotary_emb.inv_freq": tensors["model.norm.weight"].clone()}
        )
    )
    assert LLM(model_dir, **OPTIONS).generate([1, 2, 3])


def test_no_weights_at_all_names_what_is_there_instead(model_dir):
    (model_dir / "model.safetensors").rename(model_dir / "pytorch_model.bin")
    error = refusal(model_dir)
    assert "has no *.safetensors file, only pytorch_model.bin" in error.message


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "expected a JSON object"),
        ('{"weight_map": {"a": 1}}', "expected a JSON object with weight_map"),
        (json.dumps({"weight_map": {"a": "gone.safetensors"}}), "gone.safetensors, which does not"),
        (json.dumps({"weight_map": {"a": "../x.safetensors"}}), "outside its directory"),
    ],
)
def test_a_broken_index_is_refused(model_dir, index, message):
    (model_dir / "model.safetensors").unlink()
    (model_dir / "model.safetensors.index.json").write_text(index)
    assert message in refusal(model_dir).message


def test_progress_is_told_in_percent_of_bytes(model_dir):
    told: list[str] = []
    LLM(model_dir, progress=told.append, **OPTIONS)
    percents = [int(line.split()[2]) for line in told if line.startswith("loading weights")]
    assert percents == sorted(set(percents))
    assert percents[-1] == 100
    assert len(percents) > 5
    assert told[0] == "reading configuration"
    assert told[-1] == "warming up"


def test_an_index_nested_too_deeply_is_refused(model_dir):
    (model_dir / "model.safetensors").rename(model_dir / "part.safetensors")
    deep = '{"weight_map": ' + "[" * 100_000
    (model_dir / "model.safetensors.index.json").write_text(deep)
    assert "nested deeper than 64 levels" in refusal(model_dir).message


def test_a_shape_without_end_is_refused(model_dir):
    header = b'{"a": {"dtype": "F32", "shape": [Infinity], "data_offsets": [0, 0]}}'
    path = model_dir / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    assert "damaged safetensors header" in refusal(model_dir).message


def test_sizes_that_overflow_are_refused(model_dir):
    config = json.loads((model_dir / "config.json").read_text())
    config |= {"vocab_size": 2**31 - 1, "hidden_size": 2**31 - 2, "intermediate_size": 2**31 - 1}
    config |= {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 2**31 - 2}
    (model_dir / "config.json").write_text(json.dumps(config))
    assert refusal(model_dir).exit_code == 78
