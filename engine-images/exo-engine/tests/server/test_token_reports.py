"""prompt_logprobs, return_token_ids, return_tokens_as_token_ids and truncation, against a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from exo_engine.server.prompts.truncation import Truncation
from exo_engine.tokenizer import Tokenizer

from .conftest import MAX_MODEL_LEN, MODEL, Engine

TEXT = "The quick brown fox jumps over the lazy dog. " * 12
MESSAGES: list[Any] = [{"role": "user", "content": TEXT}]


@pytest.fixture(scope="module")
def chunked(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Engine]:
    """A server that computes prompts in chunks of 16 tokens."""
    running = Engine(
        tmp_path_factory.mktemp("chunked"), model_dir, "--max-num-batched-tokens", "16", "--max-num-seqs", "4"
    )  # fmt: skip
    try:
        yield running.wait_ready()
    finally:
        running.close()


def complete(engine: Engine, **fields: Any) -> dict[str, Any]:
    body = {"model": MODEL, "prompt": TEXT, "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    response = engine.http.post("/v1/completions", json={**body, **fields})
    assert response.status_code == 200, response.text
    return dict(response.json())


def chat(engine: Engine, **fields: Any) -> dict[str, Any]:
    body = {"model": MODEL, "messages": MESSAGES, "max_tokens": 4, "temperature": 0}
    response = engine.http.post("/v1/chat/completions", json={**body, "ignore_eos": True, **fields})
    assert response.status_code == 200, response.text
    return dict(response.json())


def events(engine: Engine, path: str, **fields: Any) -> list[dict[str, Any]]:
    found = []
    body = {"model": MODEL, "max_tokens": 4, "temperature": 0, "stream": True, **fields}
    with engine.http.stream("POST", path, json=body) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                found.append(json.loads(line[6:]))
    return found


def test_prompt_logprobs_are_those_of_echo_in_chunks_and_with_a_warm_cache(
    engine: Engine, chunked: Engine
) -> None:
    """`engine` computes the prompt at once, `chunked` in pieces, and the second time it is in the cache."""
    echo = complete(engine, echo=True, logprobs=2)["choices"][0]
    for server in (engine, chunked, chunked):
        answer = complete(server, prompt_logprobs=2, return_token_ids=True)
        choice = answer["choices"][0]
        entries, ids = choice["prompt_logprobs"], choice["prompt_token_ids"]
        assert len(entries) == len(ids) == answer["usage"]["prompt_tokens"]
        assert entries[0] is None
        own = [entry[str(token)] for token, entry in zip(ids[1:], entries[1:], strict=True)]
        assert [each["logprob"] for each in own] == pytest.approx(
            echo["logprobs"]["token_logprobs"][1 : len(ids)], abs=1e-4
        )
        assert [each["decoded_token"] for each in own] == echo["logprobs"]["tokens"][1 : len(ids)]
        for entry in entries[1:]:
            assert len(entry) in (2, 3)
            likeliest = sorted(entry.values(), key=lambda each: each["logprob"], reverse=True)
            assert [each["rank"] for each in likeliest[:2]] == [1, 2]


def test_chat_reports_on_its_prompt_as_completions_do(engine: Engine) -> None:
    answer = chat(engine, prompt_logprobs=0, return_token_ids=True)
    ids = answer["prompt_token_ids"]
    assert ids == engine.http.post("/tokenize", json={"messages": MESSAGES}).json()["tokens"]
    assert len(answer["choices"][0]["token_ids"]) == 4
    plain = complete(engine, prompt=ids, prompt_logprobs=0)["choices"][0]
    assert answer["prompt_logprobs"] == plain["prompt_logprobs"]
    assert all(len(entry) == 1 for entry in plain["prompt_logprobs"][1:])


def test_reports_are_there_only_where_asked_for(engine: Engine) -> None:
    asked = {"prompt_token_ids", "token_ids", "prompt_logprobs"}
    for answer in (complete(engine), chat(engine)):
        assert not asked & (answer.keys() | answer["choices"][0].keys())


def test_every_prompt_and_choice_has_its_own_token_ids(engine: Engine) -> None:
    prompts = [[5, 6, 7], [8, 9]]
    choices = complete(engine, prompt=prompts, n=2, return_token_ids=True)["choices"]
    assert [each["prompt_token_ids"] for each in choices] == [prompts[0]] * 2 + [prompts[1]] * 2
    assert all(len(each["token_ids"]) == 4 for each in choices)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_streamed_token_ids_join_to_those_of_the_whole_answer(engine: Engine, path: str) -> None:
    is_chat = "chat" in path
    prompt: dict[str, Any] = {"messages": MESSAGES} if is_chat else {"prompt": TEXT}
    whole = (chat if is_chat else complete)(engine, return_token_ids=True)
    chunks = events(engine, path, return_token_ids=True, ignore_eos=True, **prompt)
    first = chunks[0] if is_chat else chunks[0]["choices"][0]
    expected = whole if is_chat else whole["choices"][0]
    assert first["prompt_token_ids"] == expected["prompt_token_ids"]
    found = [token for each in chunks for token in each["choices"][0].get("token_ids") or ()]
    assert found == whole["choices"][0]["token_ids"]


def test_a_request_can_have_tokens_named_by_their_ids(engine: Engine) -> None:
    choice = complete(engine, logprobs=1, return_tokens_as_token_ids=True, return_token_ids=True)[
        "choices"
    ][0]
    assert choice["logprobs"]["tokens"] == [f"token_id:{each}" for each in choice["token_ids"]]


def test_prompts_are_cut_to_their_end_or_begin_and_keep_bos(engine: Engine) -> None:
    whole = complete(engine, return_token_ids=True)["choices"][0]["prompt_token_ids"]
    for side, rest in (("left", whole[-9:]), ("right", whole[1:10])):
        found = complete(
            engine, truncate_prompt_tokens=10, truncation_side=side, return_token_ids=True
        )["choices"][0]["prompt_token_ids"]
        assert found == [whole[0], *rest]


def test_tokens_and_conversations_are_cut_as_they_are(engine: Engine) -> None:
    ids = list(range(4, 60))
    given = complete(engine, prompt=ids, truncate_prompt_tokens=7, return_token_ids=True)
    assert given["choices"][0]["prompt_token_ids"] == ids[-7:]
    assert given["usage"]["prompt_tokens"] == 7
    whole = chat(engine, return_token_ids=True)["prompt_token_ids"]
    cut = chat(engine, truncate_prompt_tokens=20, return_token_ids=True)["prompt_token_ids"]
    assert cut == whole[-20:]


def test_a_text_that_does_not_fit_is_cut_to_what_leaves_room_for_the_answer(
    engine: Engine,
) -> None:
    answer = complete(engine, prompt=TEXT * 50, truncate_prompt_tokens=-1)
    assert answer["usage"]["prompt_tokens"] == MAX_MODEL_LEN - 4
    assert answer["usage"]["completion_tokens"] == 4


def test_client_types_take_the_reports(engine: Engine) -> None:
    """Further fields do not break clients that know only OpenAI's."""
    answer = engine.openai.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        max_tokens=2,
        extra_body={"prompt_logprobs": 1, "return_token_ids": True},
    )
    assert isinstance(answer, openai.types.chat.ChatCompletion)
    assert answer.model_extra is not None
    assert len(answer.model_extra["prompt_token_ids"]) == len(answer.model_extra["prompt_logprobs"])


@pytest.mark.parametrize(
    ("around", "tokens", "expected"),
    [
        ([], [5, 6, 7, 8], [7, 8]),
        ([1], [1, 5, 6, 7], [1, 7]),
        ([2], [5, 6, 7, 2], [7, 2]),
        ([1, 2], [1, 5, 6, 2], [6, 2]),
        ([1], [1, 5], [1, 5]),
    ],
)
def test_what_the_tokenizer_puts_around_a_text_stays(
    around: list[int], tokens: list[int], expected: list[int]
) -> None:
    assert Truncation(2, keeps_end=True).cut(tokens, around) == expected


def test_cut_texts_equal_those_of_the_library(model_dir: Path) -> None:
    """`tokenizers` cuts so itself, before it puts special tokens around a text."""
    import tokenizers

    library = tokenizers.Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    own = Tokenizer(model_dir)
    whole = own.encode(TEXT, add_special_tokens=True)
    for side in ("left", "right"):
        library.enable_truncation(11, direction=side)
        cut = Truncation(11, keeps_end=side == "left").cut(
            whole, own.encode("", add_special_tokens=True)
        )
        assert cut == library.encode(TEXT).ids
