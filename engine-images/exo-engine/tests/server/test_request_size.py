"""What one request may ask for at once: sequences, and tokens of all of them together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
import pytest
from exo_engine.server import request_size

from .scripted_core import FakeCore, serving

pytestmark = pytest.mark.filterwarnings("ignore:It is recommended to use web.RequestKey")
REFUSED = {
    "ids": ("/v1/completions", {"prompt": [[5] * 6] * 2, "n": 4}, "prompt", 48),
    "a text": ("/v1/completions", {"prompt": "a b c d e f g h", "n": 50}, "prompt", 0),
    "a conversation": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "a b c d"}], "n": 50},
        "messages",
        0,
    ),
}


async def post(model_dir: Path, core: FakeCore, path: str, body: Any) -> tuple[int, Any]:
    async with (
        serving(core, model_dir) as server,
        aiohttp.ClientSession(server.make_url("/")) as client,
        client.post(path, json={"max_tokens": 1, **body}) as answer,
    ):
        return answer.status, await answer.json()


@pytest.mark.parametrize(("path", "body", "param", "number"), REFUSED.values(), ids=REFUSED)
async def test_prompts_count_once_for_each_answer(
    model_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    body: Any,
    param: str,
    number: int,
) -> None:
    """A body of 3 MB made the API pack 120 million tokens, and answer nobody for a minute."""
    monkeypatch.setattr(request_size, "MAX_TOKENS", 47)
    core = FakeCore([5], most_prompt_tokens=99)
    status, answer = await post(model_dir, core, path, body)
    assert (status, answer["error"]["param"]) == (400, param)
    assert "at most 47 tokens together, got " + (str(number) if number else "") in str(answer)
    assert core.requests == []


async def test_one_prompt_for_one_answer_is_bounded_by_the_model_alone(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_size, "MAX_TOKENS", 47)
    core = FakeCore([5], most_prompt_tokens=99)
    status, _ = await post(model_dir, core, "/v1/completions", {"prompt": [5] * 48})
    assert (status, len(core.requests)) == (200, 1)


async def test_sequences_of_a_request_are_bounded(model_dir: Path) -> None:
    core = FakeCore([5])
    body = {"prompt": [[5]] * 41, "n": 100}
    status, answer = await post(model_dir, core, "/v1/completions", body)
    assert (status, answer["error"]["param"]) == (400, "n")
    assert "at most 4096, got 4100" in answer["error"]["message"]
