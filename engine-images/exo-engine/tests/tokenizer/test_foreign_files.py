"""Files that a stranger made, through every reader of the engine: taken, or refused in words."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from exo_engine.errors import ConfigurationError, ModelUnusable
from exo_engine.models.checkpoint import read_checkpoint
from exo_engine.models.config_file import read_spec
from exo_engine.tokenizer import Tokenizer
from exo_engine.tokenizer.template_sources import find_templates

from benchmarks.foreign_files.mutations import (
    mutate_header,
    mutate_json,
    mutated,
    passes_first_parser,
    write_seed,
)

Read = Callable[[Path], object]


def read_tokenizer(directory: Path) -> object:
    tokenizer = Tokenizer(directory)
    ids = tokenizer.encode("The quick größe 🙂", add_special_tokens=True)
    return tokenizer.decode(ids, skip_special_tokens=True), find_templates(tokenizer, directory)


READERS: dict[str, Read] = {
    "config.json": read_spec,
    "generation_config.json": read_spec,
    "model.safetensors": read_checkpoint,
    "model.safetensors.index.json": read_checkpoint,
    "tokenizer.json": read_tokenizer,
    "tokenizer_config.json": read_tokenizer,
    "special_tokens_map.json": read_tokenizer,
}


@pytest.fixture
def model(tmp_path: Path, byte_level_dir: Path) -> Path:
    """A model with all files that the readers read; config.json without what the engine refuses."""
    directory = tmp_path / "model"
    write_seed(directory)
    config = json.loads((directory / "config.json").read_bytes())
    del config["quantization_config"], config["rope_scaling"]
    (directory / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-5}))
    (directory / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (directory / name).write_bytes((byte_level_dir / name).read_bytes())
    (directory / "special_tokens_map.json").write_text(
        '{"eos_token": {"content": "<|im_end|>"}, "bos_token": "<s>"}'
    )
    return directory


def prepare(model: Path, name: str) -> bytes:
    """Leave out what would be read before the file that is tried; return that file."""
    if name == "model.safetensors.index.json":
        (model / "model.safetensors").rename(model / "part.safetensors")
        text = (model / name).read_text().replace("model.safetensors", "part.safetensors")
        (model / name).write_text(text)
    READERS[name](model)  # right before
    return (model / name).read_bytes()


def run(model: Path, name: str, count: int, *, seed: int) -> tuple[int, int]:
    """Read mutated files; return how many passed the first parser, and how many were refused."""
    right = prepare(model, name)
    by_grammar = mutate_header if name.endswith(".safetensors") else mutate_json
    num_past = num_refused = 0
    for content in mutated(right, by_grammar, count, seed=seed):
        num_past += passes_first_parser(name, content)
        (model / name).write_bytes(content)
        try:
            READERS[name](model)
        except ConfigurationError as error:
            num_refused += 1
            text = f"{error.message} {error.hint}"
            assert text.isprintable() and len(text) < 1500, content  # noqa: PT018
    return num_past, num_refused


@pytest.mark.parametrize("name", READERS)
def test_mutated_file_is_taken_or_refused_in_words(model: Path, name: str) -> None:
    count = 30 if name == "tokenizer.json" else 120
    _, num_refused = run(model, name, count, seed=5)
    assert 0 < num_refused <= count


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_a_thousand_mutated_files_of_a_kind(model: Path, name: str) -> None:
    num_past, num_refused = run(model, name, 1000, seed=6)
    assert num_past >= 300
    assert num_refused > 100


@pytest.mark.parametrize("name", READERS)
def test_named_pipe_is_refused_and_not_waited_for(model: Path, name: str) -> None:
    prepare(model, name)
    (model / name).unlink()
    os.mkfifo(model / name)
    with pytest.raises(ModelUnusable, match="is no regular file"):
        READERS[name](model)


def test_template_files_are_bounded_and_no_pipes(model: Path) -> None:
    tokenizer = Tokenizer(model)
    path = model / "chat_template.jinja"
    path.write_bytes(b"a" * (2**20 + 1))
    with pytest.raises(ConfigurationError, match="is larger than 1 MiB"):
        find_templates(tokenizer, model)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ConfigurationError, match="is no regular file"):
        find_templates(tokenizer, model)


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [2**62] * 60, "data_offsets": [0, 0]},
        {"dtype": "F32", "shape": [1] * 65, "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1.5], "data_offsets": [0, 6]},
        {"dtype": "F32", "shape": [1], "data_offsets": [1.5, 5.5]},
        {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]},
        {"dtype": "\x1b[2J", "shape": "x", "data_offsets": [0, 4]},
    ],
    ids=["large", "rank", "half a size", "half an offset", "backwards", "escape"],
)
def test_sizes_beyond_all_files_are_refused(model: Path, entry: dict[str, object]) -> None:
    raw = json.dumps({"w": entry}).encode()
    (model / "model.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(4))
    with pytest.raises(ModelUnusable) as caught:
        read_checkpoint(model)
    assert caught.value.message.isprintable()
