"""The `openai` client against a real server."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from .conftest import MAX_MODEL_LEN, MODEL, Engine

HELLO: list[Any] = [{"role": "user", "content": "The quick brown fox"}]
GREEDY: dict[str, Any] = {"model": MODEL, "temperature": 0, "extra_body": {"ignore_eos": True}}


def test_models_are_listed_with_their_length(engine: Engine) -> None:
    found = {model.id: model for model in engine.openai.models.list()}
    assert set(found) == {MODEL, "second-name"}
    assert found[MODEL].model_extra is not None
    assert found[MODEL].model_extra["max_model_len"] == MAX_MODEL_LEN
    assert engine.openai.models.retrieve(MODEL).id == MODEL


def test_chat_answer_has_text_usage_and_finish_reason(engine: Engine) -> None:
    answer = engine.openai.chat.completions.create(messages=HELLO, max_tokens=9, **GREEDY)
    assert answer.object == "chat.completion"
    assert answer.model == MODEL
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 9
    prompt = engine.http.post("/tokenize", json={"messages": HELLO}).json()
    assert answer.usage.prompt_tokens == prompt["count"]
    assert answer.usage.total_tokens == prompt["count"] + 9


def test_stream_joins_to_the_same_text_as_the_whole_answer(engine: Engine) -> None:
    whole = engine.openai.chat.completions.create(messages=HELLO, max_tokens=40, **GREEDY)
    stream = engine.openai.chat.completions.create(
        messages=HELLO, max_tokens=40, stream=True, stream_options={"include_usage": True}, **GREEDY
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].choices[0].delta.content == ""
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks[:-1]][-1] == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 40
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert len({chunk.id for chunk in chunks}) == 1


def test_raw_stream_ends_with_done(engine: Engine) -> None:
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 2, "stream": True}
    response = engine.http.post("/v1/chat/completions", json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.text.endswith("data: [DONE]\n\n")
    assert "usage" not in response.text


def test_same_seed_gives_the_same_answer_and_another_seed_another(engine: Engine) -> None:
    def ask(seed: int) -> str | None:
        answer = engine.openai.chat.completions.create(
            model=MODEL, messages=HELLO, max_tokens=24, seed=seed, temperature=1.0
        )
        return answer.choices[0].message.content

    assert ask(7) == ask(7)
    assert ask(7) != ask(8)


def test_choices_differ_and_count_the_prompt_once(engine: Engine) -> None:
    answer = engine.openai.chat.completions.create(
        model=MODEL, messages=HELLO, n=3, seed=1, max_tokens=12, extra_body={"ignore_eos": True}
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in answer.choices}) == 3
    single = engine.openai.chat.completions.create(
        model=MODEL, messages=HELLO, seed=1, max_tokens=12, extra_body={"ignore_eos": True}
    )
    assert single.choices[0].message.content == answer.choices[0].message.content
    assert answer.usage is not None
    assert single.usage is not None
    assert answer.usage.prompt_tokens == single.usage.prompt_tokens
    assert answer.usage.completion_tokens == 36


def test_streamed_choices_are_told_apart_by_index(engine: Engine) -> None:
    stream = engine.openai.chat.completions.create(
        model=MODEL, messages=HELLO, n=2, seed=1, max_tokens=6, stream=True
    )
    texts = {0: "", 1: ""}
    ends = {}
    for chunk in stream:
        choice = chunk.choices[0]
        texts[choice.index] += choice.delta.content or ""
        if choice.finish_reason:
            ends[choice.index] = choice.finish_reason
    assert set(ends) == {0, 1}
    assert texts[0] != texts[1]


@pytest.mark.parametrize("is_streaming", [False, True], ids=["whole", "stream"])
def test_stop_string_across_tokens_ends_the_text(engine: Engine, is_streaming: bool) -> None:
    text = _complete(engine, max_tokens=30)
    stop = text[10:14]
    assert text.index(stop) == 10
    body = {"model": MODEL, "prompt": "fox", "temperature": 0, "ignore_eos": True}
    body |= {"max_tokens": 30, "stop": ["never there", stop], "stream": is_streaming}
    response = engine.http.post("/v1/completions", json=body)
    if is_streaming:
        events = [json.loads(line[6:]) for line in response.text.split("\n\n") if "{" in line]
        choices = [event["choices"][0] for event in events]
    else:
        choices = response.json()["choices"]
    assert "".join(choice["text"] for choice in choices) == text[:10]
    assert choices[-1]["finish_reason"] == "stop"
    assert choices[-1]["stop_reason"] == stop


def test_stop_string_can_be_included_and_tokens_after_it_do_not_count(engine: Engine) -> None:
    text = _complete(engine, max_tokens=30)
    body = {"model": MODEL, "prompt": "fox", "temperature": 0, "ignore_eos": True}
    body |= {"max_tokens": 30, "stop": text[4:8], "include_stop_str_in_output": True}
    answer = engine.http.post("/v1/completions", json=body).json()
    assert answer["choices"][0]["text"] == text[: text.index(text[4:8]) + 4]
    assert answer["usage"]["completion_tokens"] < 30


def test_stop_token_ends_the_answer_and_is_named(engine: Engine) -> None:
    body = {"model": MODEL, "prompt": "fox", "temperature": 0, "max_tokens": 8, "logprobs": 0}
    body["ignore_eos"] = True
    tokens = engine.http.post("/v1/completions", json=body).json()["choices"][0]["logprobs"][
        "tokens"
    ]
    ids = engine.http.post("/tokenize", json={"prompt": tokens[2], "add_special_tokens": False})
    stop_id = ids.json()["tokens"]
    assert len(stop_id) == 1
    answer = engine.http.post("/v1/completions", json=body | {"stop_token_ids": stop_id}).json()
    choice = answer["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop_id[0])
    assert choice["text"] == "".join(tokens[: tokens.index(tokens[2])])
    assert answer["usage"]["completion_tokens"] == tokens.index(tokens[2]) + 1


def test_end_of_sequence_is_not_shown_and_counts(engine: Engine) -> None:
    body = {"model": MODEL, "prompt": "fox", "temperature": 0, "max_tokens": 8}
    biased = engine.http.post("/v1/completions", json=body | {"logit_bias": {"3": 100}}).json()
    assert biased["choices"][0]["text"] == ""
    assert biased["choices"][0]["finish_reason"] == "stop"
    assert biased["choices"][0]["stop_reason"] is None
    assert biased["usage"]["completion_tokens"] == 1
    held = engine.http.post(
        "/v1/completions", json=body | {"logit_bias": {"3": 100}, "min_tokens": 4}
    ).json()
    assert held["usage"]["completion_tokens"] == 5


def test_chat_logprobs_name_tokens_with_their_bytes(engine: Engine) -> None:
    answer = engine.openai.chat.completions.create(
        messages=HELLO, max_tokens=6, logprobs=True, top_logprobs=3, **GREEDY
    )
    assert answer.choices[0].logprobs is not None
    content = answer.choices[0].logprobs.content
    assert content is not None
    assert len(content) == 6
    spoken = b"".join(bytes(entry.bytes or []) for entry in content)
    assert spoken.decode(errors="replace") == answer.choices[0].message.content
    for entry in content:
        assert len(entry.top_logprobs) == 3
        assert entry.logprob <= 0
        assert entry.top_logprobs[0].logprob == pytest.approx(entry.logprob)


def test_completion_echoes_prompt_with_its_logprobs(engine: Engine) -> None:
    answer = engine.openai.completions.create(
        prompt="The quick", echo=True, logprobs=2, max_tokens=3, **GREEDY
    )
    choice = answer.choices[0]
    assert choice.text.startswith("The quick")
    assert choice.logprobs is not None
    tokens, values = choice.logprobs.tokens, choice.logprobs.token_logprobs
    assert tokens is not None
    assert values is not None
    assert answer.usage is not None
    assert len(tokens) == len(values) == answer.usage.total_tokens
    assert values[0] is None
    assert all(value is not None and value <= 0 for value in values[1:])
    only = engine.openai.completions.create(
        prompt="The quick", echo=True, logprobs=2, max_tokens=0, **GREEDY
    )
    assert only.choices[0].text == "The quick"
    assert only.choices[0].logprobs is not None
    assert only.choices[0].logprobs.token_logprobs == values[:-3]
    assert only.usage is not None
    assert only.usage.completion_tokens == 0


def test_prompts_may_be_texts_or_token_ids_or_lists_of_them(engine: Engine) -> None:
    ids = [engine.http.post("/tokenize", json={"prompt": each}).json()["tokens"] for each in "ab"]
    forms: list[Any] = [["a", "b"], ids]
    answers = [
        engine.openai.completions.create(prompt=form, max_tokens=5, **GREEDY) for form in forms
    ]
    texts = [[choice.text for choice in answer.choices] for answer in answers]
    assert texts[0] == texts[1]
    assert [choice.index for choice in answers[0].choices] == [0, 1]
    single = engine.openai.completions.create(prompt=ids[1], max_tokens=5, **GREEDY)
    assert single.choices[0].text == texts[0][1]


def test_completion_without_a_limit_gives_sixteen_tokens(engine: Engine) -> None:
    answer = engine.openai.completions.create(prompt="fox", **GREEDY)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16


def test_repeated_prompt_is_found_in_the_prefix_cache(engine: Engine) -> None:
    long = [{"role": "user", "content": "jumps over the lazy dog " * 20}]
    ask: Any = lambda: engine.openai.chat.completions.create(  # noqa: E731
        messages=long, max_tokens=1, **GREEDY
    )
    first, second = ask().usage, ask().usage
    assert first.prompt_tokens == second.prompt_tokens
    cached = second.prompt_tokens_details.cached_tokens
    assert second.prompt_tokens - 16 <= cached < second.prompt_tokens
    assert engine.metric("vllm:prefix_cache_hits_total") >= cached


@pytest.mark.parametrize("route", ["completions", "chat/completions"])
def test_what_one_salt_has_cached_is_not_found_under_another_one(
    engine: Engine, route: str
) -> None:
    text = "jumps over the lazy dog " * 20
    asked = (
        {"messages": [{"role": "user", "content": text}]} if "chat" in route else {"prompt": text}
    )
    found = []
    for salt in ("one", "two", "one", "two"):
        body = {**asked, "max_tokens": 1, "cache_salt": f"{route} {salt}"}
        usage = engine.http.post(f"/v1/{route}", json=body).json()["usage"]
        found.append(usage["prompt_tokens_details"]["cached_tokens"] > 0)
    assert found == [False, False, True, True]


def test_content_parts_developer_role_and_tools_reach_the_template(engine: Engine) -> None:
    messages: list[Any] = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ]
    tool = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
    body = {"messages": messages, "tools": [tool]}
    tokens = engine.http.post("/tokenize", json=body).json()["tokens"]
    prompt = engine.http.post("/detokenize", json={"tokens": tokens}).json()["prompt"]
    assert prompt == (
        "<s><|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\na\nb<|im_end|>\n"
        f"tools: {json.dumps([tool])}\n<|im_start|>assistant\n"
    )
    answer = engine.openai.chat.completions.create(
        messages=messages, tools=[tool], max_tokens=2, **GREEDY
    )
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(tokens)


def test_final_message_can_be_continued(engine: Engine) -> None:
    messages = [*HELLO, {"role": "assistant", "content": "It jumps"}]
    body = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}
    tokens = engine.http.post("/tokenize", json=body).json()["tokens"]
    prompt = engine.http.post("/detokenize", json={"tokens": tokens}).json()["prompt"]
    assert prompt.endswith("<|im_start|>assistant\nIt jumps")


def test_unknown_model_is_a_typed_error_of_the_client(engine: Engine) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        engine.openai.chat.completions.create(model="gpt-4", messages=HELLO)
    assert caught.value.code == "model_not_found"
    assert MODEL in caught.value.message


def test_too_long_prompt_says_both_numbers(engine: Engine) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        engine.openai.completions.create(model=MODEL, prompt=[5] * 5000, max_tokens=1)
    assert caught.value.code == "context_length_exceeded"
    assert str(MAX_MODEL_LEN) in caught.value.message
    assert "5000" in caught.value.message


def test_version_and_ping_answer(engine: Engine) -> None:
    from exo_engine import __version__

    assert engine.http.get("/version").json() == {"version": __version__}
    assert engine.http.get("/ping").status_code == 200


def _complete(engine: Engine, max_tokens: int) -> str:
    answer = engine.openai.completions.create(prompt="fox", max_tokens=max_tokens, **GREEDY)
    return answer.choices[0].text
