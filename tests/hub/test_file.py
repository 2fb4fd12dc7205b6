"""Models in directories: served in place, and checked so that an engine can load them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from exo_inference.foreign_files import ForeignFileError
from exo_inference.foreign_files.model_directory import check_model_directory
from exo_inference.hub import source_for
from exo_inference.hub.base import InvalidModelName, ModelNotFound, ModelUnusable
from exo_inference.hub.file import FileSource

from .hub_server import safetensors


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "my model"
    directory.mkdir()
    (directory / "config.json").write_text('{"model_type": "llama"}')
    (directory / "tokenizer.json").write_text("{}")
    (directory / "model.safetensors").write_bytes(safetensors(1000, "a", "b"))
    return directory


async def resolve(directory: Path) -> str:
    resolved = await FileSource().resolve(directory.as_uri(), revision=None, token=None)
    return resolved.revision


async def test_directory_is_served_where_it_lies(model: Path, tmp_path: Path) -> None:
    source = source_for(model.as_uri())
    resolved = await source.resolve(model.as_uri(), revision=None, token=None)
    seen: list[int] = []
    path = await source.fetch(resolved, tmp_path / "unused", token=None, progress=seen.append)
    assert path == model
    assert seen == [resolved.size_bytes]
    assert resolved.size_bytes == sum(file.stat().st_size for file in model.iterdir())
    assert not (tmp_path / "unused").exists()


async def test_revision_changes_with_the_content_and_only_then(model: Path) -> None:
    before = await resolve(model)
    assert await resolve(model) == before
    (model / "config.json").write_text('{"model_type": "qwen3"}')
    assert await resolve(model) != before


async def test_files_changed_between_resolve_and_fetch_are_noticed(
    model: Path, tmp_path: Path
) -> None:
    resolved = await FileSource().resolve(model.as_uri(), revision=None, token=None)
    (model / "model.safetensors").write_bytes(safetensors(500))
    with pytest.raises(ModelUnusable, match="changed while"):
        await FileSource().fetch(resolved, tmp_path, token=None, progress=lambda _: None)


@pytest.mark.parametrize(
    "name",
    [
        "file:relative/path",
        "file://relative/path",
        "file://../up",
        "file:///srv/../etc",
        "file:///srv/%2e%2e/etc",
        "file:///srv?x=1",
        "file:///a%00b",
    ],
)
async def test_path_that_is_not_plainly_absolute_is_refused(name: str) -> None:
    with pytest.raises(InvalidModelName, match="does not name a directory") as caught:
        await source_for(name).resolve(name, revision=None, token=None)
    assert "file:///srv" in (caught.value.hint or "")


@pytest.mark.parametrize("name", ["file:///srv/m/", "file:///srv//m", "file:///srv/./m/."])
async def test_second_name_of_a_directory_is_refused_with_the_plain_one(name: str) -> None:
    with pytest.raises(InvalidModelName, match="a slash or a dot too many") as caught:
        await source_for(name).resolve(name, revision=None, token=None)
    assert caught.value.hint == "Write file:///srv/m."


async def test_missing_directory_and_plain_file_are_told_apart(model: Path) -> None:
    with pytest.raises(ModelNotFound, match="there is no directory"):
        await resolve(model / "nope")
    with pytest.raises(ModelUnusable, match="is not a directory"):
        await resolve(model / "config.json")


async def test_revision_of_a_directory_is_refused(model: Path) -> None:
    with pytest.raises(InvalidModelName, match="a directory has none"):
        await FileSource().resolve(model.as_uri(), revision="main", token=None)


@pytest.mark.skipif(os.geteuid() != 0, reason="changes to another user, which only root may")
def test_unreadable_directory_says_what_is_missing(model: Path) -> None:
    model.chmod(0o700)
    os.seteuid(65534)
    try:
        with pytest.raises(ForeignFileError, match="Permission denied"):
            check_model_directory(model)
    finally:
        os.seteuid(0)


def _truncate(model: Path) -> None:
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def _append(model: Path) -> None:
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes() + b"x")


def _huge_header(model: Path) -> None:
    (model / "model.safetensors").write_bytes((2**40).to_bytes(8, "little") + b"{}")


def _garbage_header(model: Path) -> None:
    (model / "model.safetensors").write_bytes((4).to_bytes(8, "little") + b"\xff\xff\xff\xff")


def _empty(model: Path) -> None:
    (model / "model.safetensors").write_bytes(b"")


def _wrong_shape(model: Path) -> None:
    entry = {"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}
    raw = json.dumps(entry).encode()
    data = len(raw).to_bytes(8, "little") + raw + b"12345678"
    (model / "model.safetensors").write_bytes(data)


def _malformed_entry(model: Path) -> None:
    raw = json.dumps({"a": {"dtype": "F32", "shape": None, "data_offsets": "no"}}).encode()
    (model / "model.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw)


def _no_weights(model: Path) -> None:
    (model / "model.safetensors").unlink()


def _no_config(model: Path) -> None:
    (model / "config.json").unlink()


def _bad_config(model: Path) -> None:
    (model / "config.json").write_text("{")


def _list_config(model: Path) -> None:
    (model / "config.json").write_text("[]")


def _missing_shard(model: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "z": "model-2.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))


def _wrong_index(model: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "z": "model.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_truncate, r"model\.safetensors is damaged: its tensors need \d+ bytes, .* has \d+"),
        (_append, r"model\.safetensors is damaged: its tensors need \d+ bytes, .* has \d+"),
        (_huge_header, "header should have 1099511627776 bytes, and the file has 10"),
        (_garbage_header, "header is not JSON"),
        (_empty, "the file has 0"),
        (_wrong_shape, r"tensor 'a' of type F32 and shape \[3\] does not fit its 8 bytes"),
        (_malformed_entry, "tensor 'a' is malformed"),
        (_no_weights, r"holds no \.safetensors file"),
        (_no_config, r"holds no config\.json"),
        (_bad_config, r"config\.json is not JSON"),
        (_list_config, r"config\.json holds a list of 0 entries, expected a JSON object"),
        (_missing_shard, r"names model-2\.safetensors, which is missing"),
        (_wrong_index, "tensor 'z' is in model.safetensors, and it is not"),
    ],
)
async def test_broken_model_is_refused_naming_file_and_numbers(
    model: Path, damage: Callable[[Path], None], words: str
) -> None:
    damage(model)
    with pytest.raises(ModelUnusable, match=words):
        await resolve(model)
