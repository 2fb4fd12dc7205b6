"""Built-in models, and the choice of a source by the form of a name."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from exo_engine.tokenizer.tokenizer import is_own

from exo_inference.hub import source_for
from exo_inference.hub.base import InvalidModelName, ModelNotFound, ModelUnusable
from exo_inference.hub.builtin import BuiltinSource, builtin_directory, builtin_names
from exo_inference.hub.file import FileSource
from exo_inference.hub.huggingface import HuggingFaceSource

from .hub_server import safetensors


@pytest.fixture
def models(tmp_path: Path) -> Path:
    directory = tmp_path / "builtin" / "tiny-chat"
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    (directory / "model.safetensors").write_bytes(safetensors(100))
    return directory.parent


async def test_builtin_model_is_served_from_the_package(models: Path, tmp_path: Path) -> None:
    source = BuiltinSource(models)
    model = await source.resolve("exo/tiny-chat", revision=None, token=None)
    seen: list[int] = []
    path = await source.fetch(model, tmp_path / "unused", token=None, progress=seen.append)
    assert path == models / "tiny-chat"
    assert seen == [model.size_bytes]
    assert all(file.sha256 for file in model.files)


async def test_revision_of_a_builtin_model_is_its_content_alone(
    models: Path, tmp_path: Path
) -> None:
    model = await BuiltinSource(models).resolve("exo/tiny-chat", revision=None, token=None)
    shutil.copytree(models, tmp_path / "copy")
    copy = await BuiltinSource(tmp_path / "copy").resolve(
        "exo/tiny-chat", revision=None, token=None
    )
    assert copy.revision == model.revision
    (tmp_path / "copy" / "tiny-chat" / "model.safetensors").write_bytes(safetensors(100, seed=1))
    with pytest.raises(ModelUnusable, match="changed since"):
        await BuiltinSource(tmp_path / "copy").fetch(
            model, tmp_path, token=None, progress=lambda _: None
        )


async def test_unknown_builtin_model_lists_the_known(models: Path) -> None:
    with pytest.raises(ModelNotFound, match="no built-in model 'exo/nope'") as caught:
        await BuiltinSource(models).resolve("exo/nope", revision=None, token=None)
    assert "exo/tiny-chat" in (caught.value.hint or "")


async def test_models_of_this_package_can_be_resolved() -> None:
    names = builtin_names()
    assert "exo/tiny-chat" in names
    for name in names:
        model = await source_for(name).resolve(name, revision=None, token=None)
        assert model.size_bytes > 0


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Qwen/Qwen3-0.6B", HuggingFaceSource),
        ("meta-llama/Llama-3.1-8B-Instruct", HuggingFaceSource),
        ("a/b", HuggingFaceSource),
        ("file:///srv/model", FileSource),
        ("exo/tiny-chat", BuiltinSource),
    ],
)
def test_source_is_chosen_by_the_form_of_the_name(name: str, kind: type) -> None:
    assert isinstance(source_for(name), kind)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "gpt2",
        "a/b/c",
        "../etc/passwd",
        "a/..",
        "a b/c",
        "a/b'c",
        'a/"b"',
        "ä/b",
        "a/b--c",
        "/a",
    ],
)
def test_name_of_no_known_form_is_refused(name: str) -> None:
    with pytest.raises(InvalidModelName, match="expected ORG/NAME") as caught:
        source_for(name)
    assert caught.value.hint


def test_endpoint_is_used_without_its_last_slash() -> None:
    source = source_for("a/b", endpoint="http://hub.example/")
    assert isinstance(source, HuggingFaceSource)
    assert source._endpoint == "http://hub.example"


def test_the_engine_knows_the_tokenizers_of_built_in_models_by_their_content(
    tmp_path: Path,
) -> None:
    """It reads any other, a changed one of the same name among them, as a stranger's."""
    for name in builtin_names():
        directory = builtin_directory(name)
        assert is_own(directory)
        copied = tmp_path / directory.name
        copied.mkdir()
        (copied / "tokenizer.json").write_bytes((directory / "tokenizer.json").read_bytes() + b"\n")
        assert not is_own(copied)
