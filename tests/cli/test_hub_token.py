"""Where `model create` takes its Hub token from."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Exo
from .fake_api import FakeApi


def sent_token(api: FakeApi) -> str | None:
    return api.requests[-1].body.get("huggingface-token")


def test_token_from_a_file(exo: Exo, api: FakeApi, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hf_file\n")
    result = exo("ai", "model", "create", "a/b", "--huggingface-token-file", f"{tmp_path}/token")
    assert result.code == 0
    assert sent_token(api) == "hf_file"
    assert "warning" not in result.err


def test_token_from_stdin(exo: Exo, api: FakeApi) -> None:
    exo("ai", "model", "create", "a/b", "--huggingface-token-file", "-", stdin=" hf_stdin\n")
    assert sent_token(api) == "hf_stdin"


def test_token_from_the_environment(
    exo: Exo, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_env")
    exo("ai", "model", "create", "a/b")
    assert sent_token(api) == "hf_env"


def test_token_on_the_command_line_works_and_warns(exo: Exo, api: FakeApi) -> None:
    result = exo("ai", "model", "create", "a/b", "--huggingface-token", "hf_x y")
    assert sent_token(api) == "hf_x y"
    assert result.err.startswith("warning: --huggingface-token shows the token")
    assert "hf_x" not in result.err


def test_a_file_beats_the_environment(
    exo: Exo, api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_env")
    (tmp_path / "token").write_text("hf_file")
    exo("ai", "model", "create", "a/b", "--huggingface-token-file", f"{tmp_path}/token")
    assert sent_token(api) == "hf_file"


@pytest.mark.parametrize(
    ("content", "found"),
    [
        pytest.param(b"", "found 0 words", id="empty"),
        pytest.param(b"two words", "found 2 words", id="two words"),
        pytest.param(b"\xff\xfe", "it is not text", id="binary"),
    ],
)
def test_a_file_without_one_token_is_refused_before_anything_is_sent(
    exo: Exo, api: FakeApi, tmp_path: Path, content: bytes, found: str
) -> None:
    (tmp_path / "token").write_bytes(content)
    result = exo("ai", "model", "create", "a/b", "--huggingface-token-file", f"{tmp_path}/token")
    assert result.code == 2
    assert found in result.err
    assert "two" not in result.err
    assert api.requests == []


def test_a_missing_file_is_named(exo: Exo, api: FakeApi, tmp_path: Path) -> None:
    result = exo("ai", "model", "create", "a/b", "--huggingface-token-file", f"{tmp_path}/none")
    assert result.code == 2
    assert f"{tmp_path}/none" in result.err


def test_two_sources_on_the_command_line_are_refused(exo: Exo, api: FakeApi) -> None:
    flags = ["--huggingface-token", "x", "--huggingface-token-file", "-"]
    result = exo("ai", "model", "create", "a/b", *flags)
    assert result.code == 2
    assert "were both given" in result.err
