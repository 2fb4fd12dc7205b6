"""`deployments.openai_client`: a client of the package `openai` for what a deployment serves."""

from __future__ import annotations

import sys

import pytest

from exo_inference import AsyncClient, Client
from exo_inference.errors import UsageError

from .fake_api import FakeApi

SERVED = {"id": "d-1", "name": "chat", "model": {"name": "org/x"}, "state": "ready"}
URL = "http://127.0.0.1:9/d-1/v1"


@pytest.fixture
def deployed(api: FakeApi) -> None:
    api.on("GET", "/ai/deployment/d-1", {**SERVED, "deployment-url": URL})
    api.on("GET", "/ai/deployment/d-1/api-key", {"api-key": "sk-revealed"})


def test_it_asks_the_deployment_with_its_key(deployed: None, client: Client) -> None:
    with client.deployments.openai_client("d-1") as found:
        assert (str(found.base_url), found.api_key) == (f"{URL}/", "sk-revealed")


async def test_that_of_the_asynchronous_client_is_asynchronous(
    deployed: None, async_client: AsyncClient
) -> None:
    async with async_client, await async_client.deployments.openai_client("d-1") as found:
        assert (str(found.base_url), found.api_key) == (f"{URL}/", "sk-revealed")


def test_a_deployment_without_a_url_is_told(api: FakeApi, client: Client) -> None:
    api.on("GET", "/ai/deployment/d-1", {**SERVED, "deployment-url": ""})
    with pytest.raises(UsageError, match='"chat" has no URL yet'):
        client.deployments.openai_client("d-1")


def test_without_the_package_it_says_what_to_install(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(UsageError) as caught:
        client.deployments.openai_client("d-1")
    assert "pip install openai" in caught.value.hint
