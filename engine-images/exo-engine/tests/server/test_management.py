"""/load, /server_info, /tokenizer_info, /reset_prefix_cache and /openapi.json."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from .conftest import MODEL, TEMPLATE, Engine
from .scripted_core import FakeCore, serving

pytestmark = pytest.mark.filterwarnings("ignore:It is recommended to use web.RequestKey")
ALL: dict[str, Any] = {"has_tokenizer_info": True, "is_dev_mode_on": True}


class Resetting(FakeCore):
    num_resets = 0

    def reset_prefix_cache(self) -> None:
        self.num_resets += 1


async def fetch(
    core: FakeCore, model_dir: Path, method: str, path: str, key: str = "", **options: Any
) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with (
        serving(core, model_dir, **options) as server,
        ClientSession(server.make_url("/"), headers=headers) as client,
        client.request(method, path) as response,
    ):
        is_json = response.content_type == "application/json"
        return response.status, await response.json() if is_json else await response.text()


async def test_routes_are_there_only_where_switched_on_and_for_who_has_a_key(
    model_dir: Path,
) -> None:
    routes = (("GET", "/tokenizer_info"), ("GET", "/server_info"), ("POST", "/reset_prefix_cache"))
    key = {"Authorization": "Bearer secret"}
    for options, headers, status in (
        ({}, {}, 404),
        ({**ALL, "api_keys": ("secret",)}, {}, 401),
        ({**ALL, "api_keys": ("secret",)}, key, 200),
        (
            {**ALL, "api_keys": ("\udcff", "secret")},
            key,
            200,
        ),  # a variable of bytes that are no UTF-8
    ):
        async with (
            serving(Resetting([5]), model_dir, **options) as server,
            ClientSession(server.make_url("/"), headers=headers) as client,
        ):
            for method, path in routes:
                async with client.request(method, path) as response:
                    assert response.status == status, (path, options)


async def test_reset_reaches_the_core_and_other_forms_are_refused(model_dir: Path) -> None:
    core = Resetting([5])
    async with (
        serving(core, model_dir, **ALL) as server,
        ClientSession(server.make_url("/")) as client,
    ):
        for query in ("reset_running_requests=true", "reset_external=1"):
            async with client.post(f"/reset_prefix_cache?{query}") as response:
                assert response.status == 400
                assert (await response.json())["error"]["param"] == query.split("=")[0]
        async with client.post("/reset_prefix_cache?reset_external=false") as response:
            assert (response.status, await response.read()) == (200, b"")
        body = {"prompt": [5], "max_tokens": 1}
        async with client.post("/v1/completions", json=body) as response:
            assert response.status == 200  # comes behind the reset on the same socket
    assert core.num_resets == 1


async def test_a_reset_cache_has_nothing_for_the_next_prompt(
    start_engine: Any, monkeypatch: Any
) -> None:
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    engine: Engine = start_engine().wait_ready()
    body = {"model": MODEL, "prompt": list(range(4, 100)), "max_tokens": 1}

    def cached() -> int:
        usage = engine.http.post("/v1/completions", json=body).json()["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    assert [cached(), cached() > 0] == [0, True]
    assert engine.http.post("/reset_prefix_cache").status_code == 200
    assert [cached(), cached() > 0] == [0, True]
    info = engine.http.get("/server_info?config_format=json").json()["vllm_config"]
    assert info["dtype"] == "float32"
    assert info["served_model_names"][0] == MODEL


async def test_server_info_shows_settings_in_both_forms_and_no_key(model_dir: Path) -> None:
    closed = {**ALL, "api_keys": ("secret",)}
    for form in ("text", "json"):
        path = f"/server_info?config_format={form}"
        status, body = await fetch(FakeCore([5]), model_dir, "GET", path, "secret", **closed)
        assert status == 200
        assert "secret" not in str(body)
        assert "max_logprobs" in body["vllm_config"]
    status, body = await fetch(
        FakeCore([5]), model_dir, "GET", "/server_info?config_format=x", **ALL
    )
    assert (status, body["error"]["param"]) == (400, "config_format")


async def test_tokenizer_info_has_the_configuration_and_the_template(model_dir: Path) -> None:
    _, body = await fetch(FakeCore([5]), model_dir, "GET", "/tokenizer_info", **ALL)
    assert (body["bos_token"], body["chat_template"]) == ("<s>", TEMPLATE)


async def test_load_counts_what_is_being_answered(model_dir: Path) -> None:
    gate = asyncio.Event()

    class Waiting(FakeCore):
        def step(self) -> list[Any]:
            return super().step() if gate.is_set() else []

    async with (
        serving(Waiting([5]), model_dir) as server,
        ClientSession(server.make_url("/")) as client,
    ):

        async def count() -> int:
            async with client.get("/load") as response:
                return int((await response.json())["server_load"])

        assert await count() == 0
        body = {"prompt": [5], "max_tokens": 1}
        asking = asyncio.ensure_future(client.post("/v1/completions", json=body))
        async with asyncio.timeout(30):
            while await count() != 1:
                pass
        gate.set()
        (await asking).close()
        async with asyncio.timeout(30):
            while await count() != 0:
                pass


def test_tokenizing_a_text_ignores_no_field_of_conversations(engine: Engine) -> None:
    body = {"model": MODEL, "prompt": "hi"}
    assert engine.http.post("/tokenize", json=body).status_code == 200
    for change in ({"tools": [{}]}, {"reasoning_effort": "low"}, {"add_generation_prompt": True}):
        response = engine.http.post("/tokenize", json={**body, **change})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == next(iter(change))
