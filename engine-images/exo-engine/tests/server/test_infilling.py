"""`suffix`: filled in by models whose tokenizer has the tokens for it, refused by name elsewhere."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from aiohttp import test_utils
from exo_engine.tokenizer import Tokenizer

from .scripted_core import FakeCore, serving

pytestmark = pytest.mark.filterwarnings("ignore:It is recommended to use web.RequestKey")
MARKS = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]


@pytest.fixture
def filling(model_dir: Path, tmp_path: Path) -> Path:
    """The tiny model, with three tokens more than it has."""
    directory = tmp_path / "filling"
    shutil.copytree(model_dir, directory)
    path = directory / "tokenizer.json"
    state = json.loads(path.read_text())
    first = max(state["model"]["vocab"].values()) + 1
    form = {
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    state["added_tokens"] += [
        {"id": first + i, "content": mark, **form} for i, mark in enumerate(MARKS)
    ]
    path.write_text(json.dumps(state))
    return directory


async def ask(server: test_utils.TestServer, **fields: object) -> tuple[int, dict]:
    async with (
        test_utils.TestClient(server) as client,
        client.post("/v1/completions", json={"max_tokens": 2, **fields}) as response,
    ):
        return response.status, await response.json()


async def test_prompt_and_suffix_stand_around_the_gap(filling: Path) -> None:
    core = FakeCore([5, 6], most_prompt_tokens=99)
    async with serving(core, filling) as server:
        status, _ = await ask(server, prompt=["def f(", "x = "], suffix="return 1\n")
    assert status == 200
    tokenizer = Tokenizer(filling)
    pre, suf, mid = (tokenizer.token_id(mark) for mark in MARKS)
    behind = tokenizer.encode("return 1\n", add_special_tokens=False)
    bos = tokenizer.encode("", add_special_tokens=True)
    for request, text in zip(core.requests, ["def f(", "x = "], strict=True):
        front = tokenizer.encode(text, add_special_tokens=False)
        assert list(request.prompt_token_ids) == [*bos, pre, *front, suf, *behind, mid]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": [5, 6]}, "prompt"),
        ({"prompt": "x", "echo": True}, "echo"),
        ({"prompt": "x", "truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
        ({"prompt": "x", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"prompt": "x", "suffix": 7}, "suffix"),
    ],
)
async def test_what_does_not_go_with_a_suffix_is_refused(
    filling: Path, fields: dict[str, object], param: str
) -> None:
    async with serving(FakeCore([5]), filling) as server:
        status, body = await ask(server, **{"suffix": "y", **fields})
    assert (status, body["error"]["param"]) == (400, param)


async def test_an_empty_suffix_asks_for_nothing(model_dir: Path) -> None:
    core = FakeCore([5])
    async with serving(core, model_dir) as server:
        assert (await ask(server, prompt=[5, 6], suffix=""))[0] == 200
    assert core.requests[0].prompt_token_ids == (5, 6)
