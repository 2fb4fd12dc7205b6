"""Models of the Hub where GPUs are simulated: of the catalogue, marked, not downloaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from exo_inference.hub import source_for
from exo_inference.hub.base import (
    FetchCancelled,
    InvalidModelName,
    ModelNotFound,
    ModelUnusable,
    ResolvedModel,
)
from exo_inference.hub.builtin import BuiltinSource, builtin_directory
from exo_inference.hub.file import FileSource
from exo_inference.hub.simulated import SimulatedSource
from exo_inference.planner import find_model, load_models, read_architecture
from exo_inference.simulated_gpus import MODEL_MARKER, MODEL_REVISION

MINISTRAL = "mistralai/Ministral-3-8B-Instruct-2512"


async def resolve(name: str, revision: str | None = None) -> ResolvedModel:
    return await SimulatedSource().resolve(name, revision=revision, token=None)


async def test_a_model_of_the_catalogue_is_marked_and_nothing_is_downloaded(
    tmp_path: Path,
) -> None:
    model = await resolve(MINISTRAL)
    seen: list[int] = []
    path = await SimulatedSource().fetch(model, tmp_path, token=None, progress=seen.append)
    assert path == tmp_path
    assert sorted(each.name for each in tmp_path.iterdir()) == ["config.json", MODEL_MARKER]
    assert json.loads((tmp_path / "config.json").read_text()) == load_models()[MINISTRAL]["config"]
    assert seen[0] == 0
    assert seen == sorted(seen)
    assert seen[-1] == model.size_bytes


async def test_its_size_is_that_of_the_published_checkpoint() -> None:
    model = await resolve(MINISTRAL)
    assert model.size_bytes == load_models()[MINISTRAL]["published_bytes"]
    assert model.revision == MODEL_REVISION


async def test_it_can_be_resolved_again_with_the_revision_it_was_given() -> None:
    assert await resolve(MINISTRAL, MODEL_REVISION) == await resolve(MINISTRAL)


async def test_every_model_that_can_be_sized_has_a_size() -> None:
    for name in load_models():
        if find_model(name).cannot_size is None:
            assert (await resolve(name)).size_bytes > 10**8, name


async def test_a_model_that_cannot_be_sized_cannot_be_simulated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unknown = read_architecture({"model_type": "frobnicator"}, name=MINISTRAL)
    monkeypatch.setattr("exo_inference.hub.simulated.find_model", lambda name: unknown)
    with pytest.raises(ModelUnusable, match="cannot be sized, because"):
        await resolve(MINISTRAL)


async def test_a_model_outside_the_catalogue_is_refused_with_the_reason() -> None:
    with pytest.raises(ModelNotFound, match="nothing is downloaded") as refused:
        await resolve("mistralai/Ministral-3-8B-Instruct-9999")
    assert MINISTRAL in (refused.value.hint or "")
    assert "--simulate-gpus" in (refused.value.hint or "")


async def test_a_revision_is_refused() -> None:
    with pytest.raises(InvalidModelName, match="revision"):
        await resolve(MINISTRAL, "main")


async def test_a_deleted_model_stops_its_fetch(tmp_path: Path) -> None:
    def progress(present: int) -> None:
        raise FetchCancelled("the model is being deleted")

    model = await resolve(MINISTRAL)
    with pytest.raises(FetchCancelled):
        await SimulatedSource().fetch(model, tmp_path, token=None, progress=progress)
    assert list(tmp_path.iterdir()) == []


def test_real_sources_stay_real() -> None:
    assert isinstance(source_for("exo/tiny-chat", simulated=True), BuiltinSource)
    assert isinstance(source_for("file:///srv/x", simulated=True), FileSource)
    assert isinstance(source_for(MINISTRAL, simulated=True), SimulatedSource)
    with pytest.raises(InvalidModelName):
        source_for("no name", simulated=True)


def test_the_model_that_answers_is_there() -> None:
    assert (builtin_directory("exo/tiny-chat") / "config.json").is_file()
