"""Every store that there is; the contract tests run over all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from exo_inference.controller.stores.base import Store
from exo_inference.controller.stores.sqlite import SqliteStore

OpenStore = Callable[[], Awaitable[Store]]


@pytest.fixture(params=["sqlite"])
async def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[OpenStore]:
    """Return what opens the same storage again and again; all are closed at the end."""
    opened: list[Store] = []

    async def open_one() -> Store:
        store = {"sqlite": lambda: SqliteStore.open(tmp_path / "controller.db")}[request.param]
        opened.append(await store())
        return opened[-1]

    yield open_one
    for store in opened:
        await store.close()


@pytest.fixture
async def store(open_store: OpenStore) -> Store:
    return await open_store()
