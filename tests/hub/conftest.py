"""Fixtures of the hub tests: a local Hub, and an environment in which nothing else is reachable."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import huggingface_hub
import pytest

from exo_inference.hub.huggingface import HuggingFaceSource

from .hub_server import HubServer, Repo, safetensors


@pytest.fixture
async def hub(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[HubServer]:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    huggingface_hub.close_session()
    server = HubServer()
    await server.start()
    server.repos["acme/small"] = Repo(
        {
            "config.json": b'{"model_type": "llama"}',
            "tokenizer.json": b'{"version": "1.0"}' + b" " * 6000,
            "README.md": b"# small",
            "model.safetensors": safetensors(1_500_000, "a", "b"),
            "pytorch_model.bin": b"x" * 10_000,
            "original/consolidated.00.pth": b"x" * 10_000,
        }
    )
    yield server
    huggingface_hub.close_session()
    await server.stop()


@pytest.fixture
def source(hub: HubServer) -> HuggingFaceSource:
    return HuggingFaceSource(endpoint=hub.url, retry_seconds=0.01, timeout_seconds=5)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "models" / "uid"
