"""Models whose files a stranger made, created over HTTP: refused in words, while others are answered."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.foreign_files.mutations import KINDS, mutated, write_seed
from exo_inference.hub import source_for
from tests.controller.conftest import Controller
from tests.foreign_files.test_bounds import ATTACKS

HANG_SECONDS = 10.0
"""Far above what a busy machine needs, far below what these files took from the controller once."""


@pytest.fixture
def controller(stopped_controller: Controller) -> Iterator[Controller]:
    stopped_controller.source.find = source_for  # type: ignore[method-assign]
    with stopped_controller.running():
        yield stopped_controller


@pytest.fixture
def asked_meanwhile(controller: Controller) -> Iterator[list[float]]:
    """Ask the API every 10 ms; the seconds that each answer took."""
    seconds: list[float] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.wait(0.01):
            before = time.monotonic()
            assert controller.call("GET", "/v2/ai/model").status_code == 200
            seconds.append(time.monotonic() - before)

    thread = threading.Thread(target=ask)
    thread.start()
    yield seconds
    stop.set()
    thread.join(30)


def create(controller: Controller, model: Path) -> dict[str, Any] | None:
    """Create a model; return it once it is settled, None if it was refused."""
    answer = controller.call("POST", "/v2/ai/model", json={"name": model.as_uri()})
    assert answer.status_code in (200, 412), answer.text
    if answer.status_code == 412:
        assert len(answer.text) < 3000
        assert "\x1b" not in answer.text
        return None
    uid = answer.json()["reference"]["id"]

    def settled() -> Any:
        found = controller.call("GET", f"/v2/ai/model/{uid}").json()
        return found if found["state"] in ("ready", "error") else None

    found: dict[str, Any] = controller.wait_for(settled)
    controller.call("DELETE", f"/v2/ai/model/{uid}")
    return found


def test_no_attack_is_ready_and_nobody_waits(
    controller: Controller, asked_meanwhile: list[float], tmp_path: Path
) -> None:
    for number, (attack, words) in enumerate(ATTACKS.values()):
        model = tmp_path / f"model-{number}"
        write_seed(model)
        (model / "model.safetensors.index.json").unlink()
        attack(model)
        found = create(controller, model)
        assert found is None or found["state"] == "error", (words, found)
    assert max(asked_meanwhile) < HANG_SECONDS


@pytest.mark.parametrize("name", KINDS)
def test_mutated_files_are_refused_or_taken_and_nothing_breaks(
    controller: Controller, tmp_path: Path, name: str
) -> None:
    write_seed(tmp_path)
    seed = (tmp_path / name).read_bytes()
    outcomes = set()
    for number, content in enumerate(mutated(seed, KINDS[name], 24, seed=3)):
        model = tmp_path / f"model-{number}"
        write_seed(model)
        (model / name).write_bytes(content)
        found = create(controller, model)
        outcomes.add("refused" if found is None else found["state"])
    assert "refused" in outcomes
    assert outcomes <= {"refused", "ready", "error"}


def test_a_folder_that_is_none_is_not_found(controller: Controller, tmp_path: Path) -> None:
    answer = controller.call("POST", "/v2/ai/model", json={"name": f"file://{tmp_path}/nothing"})
    assert answer.status_code == 404
    assert "there is no directory" in answer.text
