"""When the controller itself cannot: full disk, a platform or a library that fails, all in JSON."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from exo_inference.controller.context import Context
from exo_inference.controller.http.app import create_app
from exo_inference.controller.local.server import open_context
from exo_inference.controller.settings import ControllerSettings
from exo_inference.controller.stores.sqlite import SqliteStore
from exo_inference.errors import PlatformError
from exo_inference.resources import InferenceModel
from exo_inference.state_dir import StateDir
from exo_inference.wire.signature import compute_signature, string_to_sign
from tests.controller.fakes import FakePlatform, FakeSource
from tests.controller.openapi import check_answer

SECRET = "secret"


@pytest.fixture
async def context(tmp_path: Path) -> AsyncIterator[Context]:
    state = StateDir(tmp_path)
    state.create()
    settings = ControllerSettings(state=state)
    source = FakeSource()
    async with open_context(settings, platform=FakePlatform(), find_source=source.find) as opened:
        yield opened


async def call(context: Context, method: str, path: str, body: Any = None) -> httpx.Response:
    """Send one signed request to the application, without a server or a reconciler."""
    transport = httpx.ASGITransport(create_app(context, {"EXOkey": SECRET}.get))
    data = b"" if body is None else json.dumps(body).encode()
    expires = int(time.time()) + 600
    signature = compute_signature(SECRET, string_to_sign(method, path, data, (), expires))
    header = f"EXO2-HMAC-SHA256 credential=EXOkey,expires={expires},signature={signature}"
    async with httpx.AsyncClient(transport=transport, base_url="http://controller") as client:
        answer = await client.request(method, path, content=data, headers={"Authorization": header})
    check_answer(method, path.removeprefix("/v2"), answer.status_code, answer.json())
    return answer


async def test_a_full_disk_refuses_writes_in_words_that_reach_the_user(context: Context) -> None:
    assert isinstance(context.store, SqliteStore)
    await context.store._database.write(lambda db: db.execute("PRAGMA max_page_count = 1"))
    for number in range(200):
        answer = await call(context, "POST", "/v2/ai/model", {"name": f"org/m{number}"})
        if answer.status_code != 200:
            break
    # 4xx, because some clients repeat every 5xx for 15 s and then hide its text.
    assert answer.status_code == 412
    assert "the disk is full; nothing was changed" in answer.json()["message"]
    assert len(await context.store.list(InferenceModel)) == number
    listed = await call(context, "GET", "/v2/ai/model")
    assert len(listed.json()["models"]) == number


async def test_a_bug_is_answered_with_an_id_and_logged(
    context: Context, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*args: object, **kwargs: object) -> None:
        raise RuntimeError("a bug with hf_secret in it")

    monkeypatch.setattr(FakeSource, "resolve", broken)
    with caplog.at_level(logging.INFO):
        answer = await call(context, "POST", "/v2/ai/model", {"name": "org/m"})
    assert answer.status_code == 500
    request_id = answer.headers["x-request-id"]
    assert request_id in answer.json()["detail"]
    assert "a bug" not in answer.text
    assert any(record.exc_info and request_id in record.message for record in caplog.records)
    assert await context.store.list(InferenceModel) == []


async def test_a_platform_that_fails_says_why(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(self: FakePlatform) -> None:
        raise PlatformError("nvidia-smi does not answer", hint="Check the driver.")

    monkeypatch.setattr(FakePlatform, "instance_types", broken)
    answer = await call(context, "GET", "/v2/ai/instance-type")
    assert answer.status_code == 412
    assert answer.json()["detail"] == "nvidia-smi does not answer. Check the driver."


async def test_a_stalled_source_is_not_waited_for(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("exo_inference.controller.admission.model.RESOLVE_TIMEOUT_SECONDS", 0.05)
    answer = await call(context, "POST", "/v2/ai/model", {"name": "stalled/model"})
    assert answer.status_code == 200
    shown = await call(context, "GET", f"/v2/ai/model/{answer.json()['reference']['id']}")
    assert shown.json()["state"] == "creating"
    assert "did not answer" in shown.json()["state-details"]


async def test_each_request_is_one_log_line_without_secrets(
    context: Context, caplog: pytest.LogCaptureFixture
) -> None:
    body = {"name": "org/m", "huggingface-token": "hf_secret"}
    with caplog.at_level(logging.INFO):
        await call(context, "POST", "/v2/ai/model", body)
    lines = [r for r in caplog.records if r.name == "exo_inference.controller.access"]
    assert [(r.method, r.path, r.status) for r in lines] == [("POST", "/v2/ai/model", 200)]
    assert not any("hf_secret" in str(vars(record)) for record in caplog.records)
