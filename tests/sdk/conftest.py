from __future__ import annotations

from collections.abc import Iterator

import pytest

from exo_inference.sdk import AsyncClient, Client

from .fake_api import FakeApi, VirtualTime


@pytest.fixture
def api() -> Iterator[FakeApi]:
    fake = FakeApi()
    fake.start()
    yield fake
    fake.stop()


@pytest.fixture
def clock() -> VirtualTime:
    return VirtualTime()


@pytest.fixture
def client(api: FakeApi, clock: VirtualTime) -> Iterator[Client]:
    """A client that talks to the fake directly and sleeps in virtual time."""
    with Client("EXOrigkey", "rigsecret", endpoint=api.endpoint) as made:
        made._http.sleep, made._http.monotonic = clock.sleep, clock.monotonic
        yield made


@pytest.fixture
def async_client(api: FakeApi, clock: VirtualTime) -> AsyncClient:
    made = AsyncClient("EXOrigkey", "rigsecret", endpoint=api.endpoint)
    made._http.sleep, made._http.monotonic = clock.asleep, clock.monotonic  # type: ignore[assignment]
    return made
