"""A database whose content is gone is told as such, and does not become a new one."""

from __future__ import annotations

from pathlib import Path

import pytest

from exo_inference.controller.local.server import open_context
from exo_inference.controller.settings import ControllerSettings
from exo_inference.controller.stores.base import StoreDamaged
from exo_inference.state_dir import StateDir
from tests.controller.fakes import FakePlatform, FakeSource


@pytest.fixture
def settings(tmp_path: Path) -> ControllerSettings:
    state = StateDir(tmp_path)
    state.create()
    return ControllerSettings(state=state)


async def start(settings: ControllerSettings) -> None:
    async with open_context(settings, platform=FakePlatform(), find_source=FakeSource().find):
        pass


async def test_a_database_that_was_emptied_is_refused_and_left_alone(
    settings: ControllerSettings,
) -> None:
    await start(settings)
    database = settings.state.database_file
    database.write_bytes(b"")
    wal = Path(f"{database}-wal")
    wal.write_bytes(b"what is left of the last writes")
    with pytest.raises(StoreDamaged, match=f"{database} is damaged: it is empty") as refused:
        await start(settings)
    assert refused.value.hint is not None
    assert "Restore a copy" in refused.value.hint
    assert database.read_bytes() == b""
    assert wal.read_bytes() == b"what is left of the last writes"


async def test_a_first_start_that_was_killed_early_begins_again(
    settings: ControllerSettings,
) -> None:
    settings.state.database_file.touch()  # made, and nothing written to it yet
    await start(settings)


async def test_a_database_that_was_moved_away_is_begun_anew(
    settings: ControllerSettings,
) -> None:
    await start(settings)
    settings.state.database_file.unlink()
    await start(settings)
