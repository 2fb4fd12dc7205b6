from __future__ import annotations

from dataclasses import replace

import pytest

from exo_inference.sdk import Client
from exo_inference.settings import Settings

from .fake_api import FakeApi

OPERATION = {"id": "o-1", "state": "success"}


def test_trace_shows_traffic_without_any_secret(api: FakeApi, capsys: pytest.CaptureFixture[str]):
    api.on("POST", "/ai/model", OPERATION)
    api.on("GET", "/ai/deployment/d-1/api-key", {"api-key": "sk-revealed"})
    settings = Settings(
        endpoint=api.endpoint,
        zone=None,
        key="EXOrigkey",
        secret="rigsecret",
        custom_headers={"X-Proxy-Auth": "hush"},
        trace=True,
    )
    api.on("GET", "/zone", {"zones": [{"name": "z", "api-endpoint": api.endpoint}]})
    with Client(settings=settings) as client:
        client.models.create("org/x", huggingface_token='hf_"quoted"')
        client.deployments.reveal_api_key("d-1")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"> POST {api.endpoint}/ai/model" in captured.err
    assert '"huggingface-token":"***"' in captured.err
    assert '"api-key": "***"' in captured.err
    assert "credential=EXOrigkey" in captured.err
    assert "signature=***" in captured.err
    assert "X-Proxy-Auth: ***" in captured.err
    for secret in ("rigsecret", "hf_", "quoted", "sk-revealed", "hush"):
        assert secret not in captured.err
    assert api.seen[-1].headers["x-proxy-auth"] == "hush"


def test_nothing_is_traced_by_default(api: FakeApi, capsys: pytest.CaptureFixture[str]):
    api.on("GET", "/ai/model", {"models": []})
    settings = Settings(endpoint=api.endpoint, zone=None, key="EXOk", secret="s")
    api.on("GET", "/zone", {"zones": [{"name": "z", "api-endpoint": api.endpoint}]})
    with Client(settings=replace(settings, trace=False)) as client:
        client.models.list()
    assert capsys.readouterr().err == ""
