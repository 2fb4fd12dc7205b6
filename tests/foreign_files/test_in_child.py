"""No foreign file is opened or parsed in the process that asks, by any of the ways that lead to one."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from benchmarks.foreign_files.mutations import SEED_CONFIG, write_seed
from exo_inference import foreign_files
from exo_inference.cli.plan.planners import read_model_files
from exo_inference.controller.admission.architectures import Architectures
from exo_inference.foreign_files import bounded_reads, client, safetensors
from exo_inference.foreign_files.architecture_json import decode
from exo_inference.hub import source_for
from exo_inference.hub.architecture import fetch_architecture, read_directory
from exo_inference.hub.base import ModelUnusable
from exo_inference.hub.huggingface import HuggingFaceSource
from exo_inference.planner import Architecture
from exo_inference.resources import InferenceModel
from tests.hub.hub_server import HubServer, Repo


@pytest.fixture(autouse=True)
def _nothing_is_read_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **named: object) -> object:
        raise AssertionError("a foreign file is read in this process")

    for module, name in (
        (bounded_reads, "open_regular"),
        (bounded_reads, "parse_object"),
        (safetensors, "open_regular"),
        (safetensors, "parse_object"),
        (safetensors, "parse_header"),
    ):
        monkeypatch.setattr(module, name, refuse)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_seed(tmp_path / "model")
    return tmp_path / "model"


async def test_a_folder_that_becomes_a_model(model: Path, tmp_path: Path) -> None:
    source = source_for(model.as_uri())
    resolved = await source.resolve(model.as_uri(), revision=None, token=None)
    found = await source.fetch(resolved, tmp_path, token=None, progress=lambda _: None)
    assert found == model


async def test_the_description_of_a_model_that_is_judged(model: Path) -> None:
    found = InferenceModel.model_validate(
        {
            "metadata": {"name": "m"},
            "spec": {"source": model.as_uri()},
            "status": {"path": str(model)},
        }
    )
    known = await Architectures().of_model(found)
    assert known.architecture is not None
    assert known.architecture.hidden_size == SEED_CONFIG["hidden_size"]
    assert read_directory(model, "m").hidden_size == SEED_CONFIG["hidden_size"]


async def test_no_event_loop_stops_for_what_the_child_says(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer of 2 MiB takes 0.4 s to check."""
    threads: list[threading.Thread] = []

    def noted(document: object) -> Architecture:
        threads.append(threading.current_thread())
        return decode(document)

    monkeypatch.setattr(client, "decode", noted)
    files = {"config.json": json.dumps(SEED_CONFIG).encode()}
    await foreign_files.describe_model_async(model)
    await foreign_files.describe_remote_async(files, (), name="m", source="config.json")
    assert len(threads) == 2
    assert threading.current_thread() not in threads


def test_a_plan_of_a_folder(model: Path) -> None:
    assert read_model_files(model).checkpoint_bytes == 32


async def test_a_download_and_what_the_hub_shows_of_it(model: Path, tmp_path: Path) -> None:
    hub = HubServer()
    await hub.start()
    try:
        files = {each.name: each.read_bytes() for each in model.iterdir()}
        hub.repos["acme/small"] = Repo(files)
        source = HuggingFaceSource(endpoint=hub.url)
        resolved = await source.resolve("acme/small", revision=None, token=None)
        await source.fetch(resolved, tmp_path / "new", token=None, progress=lambda _: None)
        found = await fetch_architecture("acme/small", endpoint=hub.url, timeout_seconds=60)
        assert found.checkpoint_bytes == 32
        files["config.json"] = json.dumps({**SEED_CONFIG, "num_hidden_layers": 10**9}).encode()
        with pytest.raises(ModelUnusable, match="num_hidden_layers"):
            await fetch_architecture("acme/small", endpoint=hub.url, timeout_seconds=60)
    finally:
        await hub.stop()
