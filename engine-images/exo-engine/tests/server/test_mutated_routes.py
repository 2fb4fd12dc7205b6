"""Whole requests with something wrong in them, over HTTP: answered, or refused with a field, and never a fault of ours.

The tests of single readers (`test_mutated_requests`, `test_mutated_pooling`) go deeper into what is within messages.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession
from exo_engine.config import EngineConfig
from exo_engine.core.engine import EngineCore

from .scripted_core import serving
from .test_mutated_requests import BODIES as READ
from .test_mutated_requests import NUM_BODIES, STRANGE, mutated

pytestmark = pytest.mark.filterwarnings("ignore:It is recommended to use web.RequestKey")
NUM_QUICK = 50
NUM_TOKENS = 800
"""Of a prompt and its answer: one without max_tokens ends soon."""
HELLO = [{"role": "user", "content": "hi"}]
SAMPLING: dict[str, Any] = {
    "n": 1, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 3, "stop": ["x"], "max_tokens": 2,
    "logit_bias": {"5": 1}, "presence_penalty": 0.1, "frequency_penalty": 0.1, "repetition_penalty": 1.1,
    "stop_token_ids": [7], "min_tokens": 0, "ignore_eos": True, "allowed_token_ids": [5, 6], "bad_words": ["no"],
    "prompt_logprobs": 0, "truncate_prompt_tokens": 8, "truncation_side": "left", "return_token_ids": True,
    "return_tokens_as_token_ids": True, "include_stop_str_in_output": True, "skip_special_tokens": False,
    "priority": 0, "cache_salt": "s", "guided_regex": "a*",
}  # fmt: skip
ROUTES: dict[str, tuple[str, dict[str, Any]]] = {
    "completions": (
        "/v1/completions",
        {**SAMPLING, "prompt": [[5], [6, 7]], "logprobs": 0, "echo": False, "suffix": ""},
    ),
    "chat": (
        "/v1/chat/completions",
        {**SAMPLING, "messages": HELLO, "top_logprobs": 0, "logprobs": True,
         "stream_options": None, "stream": False, "add_generation_prompt": True,
         "documents": [{"text": "d"}], "chat_template_kwargs": {"a": 1}, "reasoning_effort": "low",
         "include_reasoning": False, "response_format": {"type": "text"}},
    ),
    "stream": (
        "/v1/chat/completions",
        {**SAMPLING, "messages": HELLO, "prompt_logprobs": None, "stream": True, "top_logprobs": 1, "logprobs": True,
         "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    ),
    "responses": ("/v1/responses", READ["responses"][1]),
    "messages": ("/v1/messages", {**READ["messages"][1], "output_config": {"effort": "low"}}),
    "count_tokens": (
        "/v1/messages/count_tokens",
        {name: value for name, value in READ["messages"][1].items() if name != "max_tokens"},
    ),
    "tokenize": (
        "/tokenize",
        {"messages": HELLO, "return_token_strs": True, "add_special_tokens": False, "tools": []},
    ),
    "tokenize a text": ("/tokenize", {"prompt": "a b", "return_token_strs": True}),
    "detokenize": ("/detokenize", {"tokens": [5, 6, 7]}),
}  # fmt: skip
QUERIES = (
    ("GET", "/server_info", "config_format"),
    ("POST", "/reset_prefix_cache", "reset_running_requests"),
    ("POST", "/reset_prefix_cache", "reset_external"),
    ("GET", "/tokenizer_info", "anything"),
    ("GET", "/load", "anything"),
    ("GET", "/openapi.json", "anything"),
)


@pytest.fixture
def core(model_dir: Path) -> Iterator[EngineCore]:
    settings = {"dtype": "float32", "kv_cache_bytes": 2**22, "max_model_len": NUM_TOKENS}
    core = EngineCore(EngineConfig(model_dir, device="cpu", **settings))
    yield core
    core.close()


def is_refusal(error: Any) -> bool:
    """Whether an answer of 400 says what and where, in OpenAI's form or Anthropic's."""
    return bool(isinstance(error, dict) and error["message"] and error["type"])


@pytest.mark.parametrize("name", ROUTES)
@pytest.mark.parametrize(
    "num", [NUM_QUICK, pytest.param(NUM_BODIES, marks=pytest.mark.slow)], ids=["few", "all"]
)
async def test_mutated_bodies_are_answered_or_refused(
    core: EngineCore, model_dir: Path, name: str, num: int
) -> None:
    path, body = ROUTES[name]
    rng = random.Random(29)
    statuses: Counter[int] = Counter()
    async with (
        serving(core, model_dir, max_model_len=NUM_TOKENS) as server,
        ClientSession(server.make_url("/")) as client,
    ):
        for number in range(num):
            sent = mutated(body, rng) if number else body
            async with client.post(path, data=json.dumps(sent)) as answer:
                text = await answer.text()
            statuses[answer.status] += 1
            assert number or answer.status == 200, text
            assert answer.status in (200, 400, 404), (answer.status, text[:500], sent)
            assert "internal" not in text, (text, sent)
            if answer.status != 200:
                assert is_refusal(json.loads(text)["error"]), (text, sent)
        async with client.get("/health") as answer:
            assert answer.status == 200
    assert statuses[200] > num / 50, statuses
    assert statuses[400] > num / 50, statuses
    assert not core.has_unfinished_requests()


@pytest.mark.parametrize(("method", "path", "field"), QUERIES)
async def test_queries_of_management_are_answered_or_refused(
    core: EngineCore, model_dir: Path, method: str, path: str, field: str
) -> None:
    words = [json.dumps(each) for each in STRANGE] + ["json", "true", "FALSE", "%00", "a" * 5000]
    async with (
        serving(
            core, model_dir, max_model_len=NUM_TOKENS, has_tokenizer_info=True, is_dev_mode_on=True
        ) as server,
        ClientSession(server.make_url("/")) as client,
    ):
        for word in words:
            async with client.request(method, path, params={field: word}) as answer:
                text = await answer.text()
            assert answer.status in (200, 400), (answer.status, word)
            assert answer.status == 200 or is_refusal(json.loads(text)["error"])
