"""Mutated files: each is taken or refused in words, and what is taken the format's own library takes."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
import safetensors

from benchmarks.foreign_files.mutations import (
    KINDS,
    mutated,
    passes_first_parser,
    write_seed,
)
from exo_inference.foreign_files import ForeignFileError, check_model, describe_model
from exo_inference.foreign_files.bounded_reads import parse_object

COUNT = 200


@pytest.mark.parametrize("name", KINDS)
def test_enough_files_get_past_the_first_parser(tmp_path: Path, name: str) -> None:
    write_seed(tmp_path)
    files = list(mutated((tmp_path / name).read_bytes(), KINDS[name], 1000, seed=1))
    assert len(set(files)) > 900
    assert sum(passes_first_parser(name, each) for each in files) >= 300


@pytest.mark.parametrize("name", KINDS)
def test_mutated_file_is_taken_or_refused_in_words(tmp_path: Path, name: str) -> None:
    write_seed(tmp_path)
    check_model(tmp_path)
    num_taken = 0
    for content in mutated((tmp_path / name).read_bytes(), KINDS[name], COUNT, seed=2):
        (tmp_path / name).write_bytes(content)
        with contextlib.suppress(ForeignFileError):
            describe_model(tmp_path, "m")
        try:
            check_model(tmp_path)
        except ForeignFileError as error:
            text = error.text
            assert text.isprintable() and len(text) < 1000, content  # noqa: PT018
            assert "reader broke on it" not in text, (text, content)
            continue
        num_taken += 1
        _is_right(tmp_path)
    assert 0 < num_taken < COUNT


def _is_right(directory: Path) -> None:
    """Hold what was taken against readers that are not ours."""
    with safetensors.safe_open(directory / "model.safetensors", "np") as opened:  # type: ignore[no-untyped-call]
        tensors = set(opened.keys())
    config = json.loads((directory / "config.json").read_bytes())
    assert isinstance(config, dict)
    for key in ("num_hidden_layers", "vocab_size", "hidden_size"):
        count = config.get(key, 0)
        if isinstance(count, int | float):
            assert 0 <= count <= 10**7
            assert count == int(count)
    index = json.loads((directory / "model.safetensors.index.json").read_bytes())
    assert set(index["weight_map"]) <= tensors


@pytest.mark.parametrize("data", [b'{"a": NaN}', b'{"a": Infinity}', b'{"a": -Infinity}'])
def test_constants_are_no_numbers_of_a_header(data: bytes) -> None:
    assert parse_object(data, "x")
    with pytest.raises(ForeignFileError, match="stands where a number belongs"):
        parse_object(data, "x", allows_constants=False)
