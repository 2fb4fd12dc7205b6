"""Every wrong request gets an OpenAI error object that names the field, and harms nobody else."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from .conftest import MODEL, Engine

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
USER = {"role": "user", "content": "hi"}
ASSISTANT_CALL = {
    "role": "assistant",
    "tool_calls": [{"function": {"name": "f", "arguments": "{"}}],
}

WRONG_CHAT: dict[str, tuple[dict[str, Any], str | None]] = {
    "no messages": ({"messages": None}, "messages"),
    "empty messages": ({"messages": []}, "messages"),
    "messages as text": ({"messages": "hi"}, "messages"),
    "message as text": ({"messages": ["hi"]}, "messages[0]"),
    "no role": ({"messages": [{"content": "hi"}]}, "messages[0].role"),
    "unknown role": ({"messages": [{"role": "owner", "content": "hi"}]}, "messages[0].role"),
    "role that is a list": ({"messages": [{"role": [], "content": "hi"}]}, "messages[0].role"),
    "no content": ({"messages": [{"role": "user"}]}, "messages[0].content"),
    "content as number": ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
    "picture": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages[0].content[0]",
    ),
    "call as it was": (
        {"messages": [USER, {"role": "assistant", "function_call": {"name": "f"}}]},
        "messages[1].function_call",
    ),
    "sound of an answer": (
        {"messages": [USER, {"role": "assistant", "audio": {"id": "a"}}]},
        "messages[1].audio",
    ),
    "part with a word of its own": (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "txt": "y"}]}]},
        "messages[0].content[0].txt",
    ),
    "choice with a word of its own": (
        {
            "tools": [{"type": "function", "function": {"name": "f"}}],
            "tool_choice": {"type": "function", "function": {"name": "f", "strict": True}},
        },
        "tool_choice.function.strict",
    ),
    "part without text": (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "messages[0].content[0].text",
    ),
    "arguments not JSON": (
        {"messages": [USER, ASSISTANT_CALL]},
        "messages[1].tool_calls[0].function.arguments",
    ),
    "role the template refuses": ({"messages": [{"role": "function", "content": "x"}]}, "messages"),
    "tools as text": ({"tools": "f"}, "tools"),
    "tool without a name": (
        {"tools": [{"type": "function", "function": {}}]},
        "tools[0].function.name",
    ),
    "old functions": ({"functions": [{"name": "f"}]}, "functions"),
    "response format as text": ({"response_format": "json"}, "response_format"),
    "template in the request": ({"chat_template": "x"}, "chat_template"),
    "documents as text": ({"documents": ["x"]}, "documents"),
    "prompt too long": (
        {"messages": [{"role": "user", "content": "fox " * 5000}], "max_tokens": 1},
        "messages",
    ),
    "audio": ({"modalities": ["text", "audio"]}, "modalities"),
    "top_logprobs alone": ({"top_logprobs": 2}, "top_logprobs"),
    "too many top_logprobs": ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    "logprobs as number": ({"logprobs": 2}, "logprobs"),
    "no answer wanted": ({"max_tokens": 0}, "max_tokens"),
    "no answer wanted, newer name": ({"max_completion_tokens": 0}, "max_completion_tokens"),
    "the older name as text": ({"max_completion_tokens": 1, "max_tokens": "x"}, "max_tokens"),
    "bad words as an empty text": ({"bad_words": ""}, "bad_words"),
    "an object as text": (
        {"structured_outputs": {"json_object": "no"}},
        "structured_outputs.json_object",
    ),
    "a choice of whitespace as text": (
        {"structured_outputs": {"json": {}, "disable_any_whitespace": 0}},
        "structured_outputs.disable_any_whitespace",
    ),
    "a pattern that is none": (
        {"structured_outputs": {"json": {}}, "guided_whitespace_pattern": "("},
        "structured_outputs.json",
    ),
    "more than fits": ({"max_tokens": 100000}, "max_tokens"),
    "temperature as text": ({"temperature": "hot"}, "temperature"),
    "negative temperature": ({"temperature": -0.1}, "temperature"),
    "temperature true": ({"temperature": True}, "temperature"),
    "top_p of zero": ({"top_p": 0}, "top_p"),
    "top_p above one": ({"top_p": 1.1}, "top_p"),
    "top_k broken": ({"top_k": 1.5}, "top_k"),
    "top_k below -1": ({"top_k": -2}, "top_k"),
    "min_p above one": ({"min_p": 2}, "min_p"),
    "presence penalty": ({"presence_penalty": 3}, "presence_penalty"),
    "frequency penalty": ({"frequency_penalty": -3}, "frequency_penalty"),
    "repetition penalty": ({"repetition_penalty": 0}, "repetition_penalty"),
    "a repetition penalty that ends float32": ({"repetition_penalty": 1e-33}, "repetition_penalty"),
    "a huge repetition penalty": ({"repetition_penalty": 1e308}, "repetition_penalty"),
    "a huge temperature": ({"temperature": 1e39}, "temperature"),
    "no choices": ({"n": 0}, "n"),
    "an empty cache salt": ({"cache_salt": ""}, "cache_salt"),
    "a long cache salt": ({"cache_salt": "x" * 1025}, "cache_salt"),
    "a cache salt that is no text": ({"cache_salt": 7}, "cache_salt"),
    "token ids as text": ({"return_token_ids": "yes"}, "return_token_ids"),
    "truncated to more than fits": ({"truncate_prompt_tokens": 4096}, "truncate_prompt_tokens"),
    "truncated to nothing": ({"truncate_prompt_tokens": 0}, "messages"),
    "truncated to less": ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
    "truncated in the middle": ({"truncation_side": "middle"}, "truncation_side"),
    "suffix of a conversation": ({"suffix": "x"}, "suffix"),
    "KV transfer": ({"kv_transfer_params": {"do_remote_decode": True}}, "kv_transfer_params"),
    "all log probabilities of the prompt": ({"prompt_logprobs": -1}, "prompt_logprobs"),
    "log probabilities of the prompt in a stream": (
        {"prompt_logprobs": 0, "stream": True},
        "prompt_logprobs",
    ),
    "misspelt field": ({"temprature": 0}, "temprature"),
    "unknown stream option": (
        {"stream": True, "stream_options": {"include_everything": True}},
        "stream_options.include_everything",
    ),
    "too many choices": ({"n": 1000}, "n"),
    "n true": ({"n": True}, "n"),
    "best_of": ({"best_of": 2}, "best_of"),
    "seed as text": ({"seed": "x"}, "seed"),
    "seed too large": ({"seed": 2**70}, "seed"),
    "min above max": ({"min_tokens": 9, "max_tokens": 3}, "min_tokens"),
    "empty stop": ({"stop": ""}, "stop"),
    "stop as number": ({"stop": [3]}, "stop"),
    "stop token unknown": ({"stop_token_ids": [10**6]}, "stop_token_ids"),
    "stop tokens as text": ({"stop_token_ids": "3"}, "stop_token_ids"),
    "bias too large": ({"logit_bias": {"3": 101}}, "logit_bias"),
    "bias for a word": ({"logit_bias": {"the": 1}}, "logit_bias"),
    "two biases for a token": ({"logit_bias": {"5": 1, "05": 2}}, "logit_bias"),
    "bias as list": ({"logit_bias": [1]}, "logit_bias"),
    "stream as text": ({"stream": "yes"}, "stream"),
    "stream options alone": ({"stream_options": {"include_usage": True}}, "stream_options"),
    "stream option as text": (
        {"stream": True, "stream_options": {"include_usage": "x"}},
        "stream_options.include_usage",
    ),
    "model as number": ({"model": 3}, "model"),
    "half a surrogate pair": ({"messages": [{"role": "user", "content": "a\ud800"}]}, "messages"),
    "half a pair as role": ({"messages": [{"role": "\udfff", "content": "a"}]}, "messages"),
    "half a pair as number": ({"max_tokens": "\ud800"}, "max_tokens"),
    "half a pair in a tool": (
        {"tools": [{"type": "function", "function": {"name": "f\ud800"}}]},
        "tools",
    ),
    "deep arguments": (
        {
            "messages": [
                USER,
                {
                    "role": "assistant",
                    "tool_calls": [{"function": {"name": "f", "arguments": "[" * 100_000}}],
                },
            ]
        },
        "messages[1].tool_calls[0].function.arguments",
    ),
    "more messages than tokens": ({"messages": [USER] * 4200}, "messages"),
    "long max_tokens": ({"max_tokens": 10**400}, "max_tokens"),
    "long temperature": ({"temperature": 10**400}, "temperature"),
    "long seed": ({"seed": -(10**400)}, "seed"),
    "long priority": ({"priority": 10**400}, "priority"),
    "long min_tokens": ({"min_tokens": 10**400}, "min_tokens"),
    "huge top_k": ({"top_k": 1e30}, "top_k"),
    "long top_k": ({"top_k": 10**400}, "top_k"),
    "long bias": ({"logit_bias": {"3": 10**400}}, "logit_bias"),
    "bias for a long number": ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
    "too many biases": ({"logit_bias": {f"{i:05}": 1 for i in range(1100)}}, "logit_bias"),
    "too many stops": ({"stop": ["x"] * 65}, "stop"),
    "long stop": ({"stop": "x" * 1025}, "stop"),
    "too many stop tokens": ({"stop_token_ids": [1] * 1025}, "stop_token_ids"),
    "guided output": ({"guided_json": 7}, "guided_json"),
    "beam search": ({"use_beam_search": True}, "use_beam_search"),
}

WRONG_COMPLETIONS: dict[str, tuple[dict[str, Any], str | None]] = {
    "no prompt": ({"prompt": None}, "prompt"),
    "empty list": ({"prompt": []}, "prompt"),
    "mixed list": ({"prompt": ["a", 3]}, "prompt"),
    "empty ids": ({"prompt": [[]]}, "prompt"),
    "unknown id": ({"prompt": [10**6]}, "prompt"),
    "negative id": ({"prompt": [-1]}, "prompt"),
    "truth as id": ({"prompt": [True]}, "prompt"),
    "suffix": ({"suffix": "end"}, "suffix"),
    "logprobs true": ({"logprobs": True}, "logprobs"),
    "too many logprobs": ({"logprobs": 50}, "logprobs"),
    "nothing wanted": ({"max_tokens": 0}, "max_tokens"),
    "half a surrogate pair": ({"prompt": "a\ud800"}, "prompt"),
    "too many ids": ({"prompt": [1] * 4096}, "prompt"),
    "too many prompts": ({"prompt": ["a"] * 4097}, "n"),
    "text that cannot fit": ({"prompt": "x" * 190_000}, "prompt"),
    "huge batch": ({"prompt": ["a"] * 100, "n": 100}, "n"),
}


def check(response: Any, status: int, param: str | None, code: str | None = None) -> None:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param
    assert 10 < len(error["message"]) < 500
    if code is not None:
        assert error["code"] == code


@pytest.mark.parametrize(("change", "param"), WRONG_CHAT.values(), ids=WRONG_CHAT.keys())
def test_wrong_chat_request_names_the_field(
    engine: Engine, change: dict[str, Any], param: str | None
) -> None:
    body = {"model": MODEL, "messages": [USER], "max_tokens": 1, **change}
    check(engine.http.post(CHAT, content=json.dumps(body)), 400, param)


@pytest.mark.parametrize(
    ("change", "param"), WRONG_COMPLETIONS.values(), ids=WRONG_COMPLETIONS.keys()
)
def test_wrong_completion_request_names_the_field(
    engine: Engine, change: dict[str, Any], param: str | None
) -> None:
    body = {"model": MODEL, "prompt": "hi", "max_tokens": 1, **change}
    check(engine.http.post(COMPLETIONS, content=json.dumps(body)), 400, param)


@pytest.mark.parametrize(
    ("path", "change", "param"),
    [
        ("/v1/messages", {"stop_sequences": [""]}, "stop_sequences"),
        ("/v1/messages", {"stop_sequences": ["x"] * 65}, "stop_sequences"),
        ("/v1/messages", {"stop_sequences": [7]}, "stop_sequences must be a list"),
        ("/v1/messages", {"stop_sequences": "x"}, "stop_sequences"),
        ("/v1/messages", {"system": 0}, "system"),
        ("/v1/messages", {"system": {}}, "system"),
        (
            "/v1/messages",
            {"thinking": {"type": "enabled"}, "chat_template_kwargs": []},
            "chat_template_kwargs",
        ),
        (
            "/v1/messages",
            {"output_config": {"format": {"type": "json_schema", "schema": {"not": {}}}}},
            "output_config.format",
        ),
        ("/v1/responses", {"max_output_tokens": 0}, "max_output_tokens"),
        ("/v1/responses", {"max_output_tokens": "x"}, "max_output_tokens"),
        ("/v1/responses", {"include": ""}, "include"),
        ("/v1/responses", {"input": [{"type": "reasoning", "content": 0}]}, "input[0].content"),
        (
            "/v1/responses",
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"not": {}}}}},
            "text.format",
        ),
    ],
)
def test_refusal_says_the_name_that_the_route_has_for_a_field(
    engine: Engine, path: str, change: dict[str, Any], param: str
) -> None:
    least = {
        "/v1/messages": {"messages": [USER], "max_tokens": 1},
        "/v1/responses": {"input": "hi"},
    }
    response = engine.http.post(path, json={**least[path], **change})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param.partition(" ")[0]
    assert error["message"].startswith(param)


def test_limit_of_a_response_is_called_by_its_name_where_it_does_not_fit(engine: Engine) -> None:
    body = {"input": "hi", "max_output_tokens": 100_000}
    error = engine.http.post("/v1/responses", json=body).json()["error"]
    assert error["param"] == "max_output_tokens"
    assert error["message"].endswith("or lower max_output_tokens.")


def test_whole_numbers_may_be_written_as_floats(engine: Engine) -> None:
    body = {"prompt": "a", "max_tokens": 2.0, "n": 1.0, "seed": 3.0, "top_k": 5.0, "logprobs": 1.0}
    answer = engine.http.post(COMPLETIONS, json={**body, "ignore_eos": True})
    assert answer.json()["usage"]["completion_tokens"] == 2
    check(engine.http.post(COMPLETIONS, json={**body, "n": 1.5}), 400, "n")


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'"text"', b"null", b"\xff\xfe", b'{"a": NaN', b"[" * 100_000],
    ids=["empty", "cut", "list", "text", "null", "not utf-8", "nan", "deep"],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/tokenize", "/detokenize"])
def test_body_that_is_no_json_object_is_refused(engine: Engine, path: str, body: bytes) -> None:
    check(engine.http.post(path, content=body), 400, None, "invalid_json")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"[" * 100_000, "is nested too deeply"),
        (b'{"max_tokens": ' + b"9" * 5000 + b"}", "has a number of too many digits"),
    ],
    ids=["deep", "digits"],
)
def test_body_that_goes_beyond_the_parser_is_refused_in_our_words(
    engine: Engine, body: bytes, words: str
) -> None:
    answer = engine.http.post(COMPLETIONS, content=body)
    check(answer, 400, None, "invalid_json")
    assert answer.json()["error"]["message"] == f"the request body {words}"


@pytest.mark.parametrize(
    ("fields", "param", "names"),
    [
        ({"min_tokens": 3}, "min_tokens", "allowed_token_ids"),
        ({"allowed_token_ids": [76], "bad_words": ["i"]}, "allowed_token_ids", "bad_words"),
        ({"allowed_token_ids": [76], "bad_words": ["ii"]}, None, "allowed_token_ids, bad_words"),
    ],
    ids=["end held back", "bad word", "bad word later"],
)
def test_request_that_leaves_no_token_is_no_fault_of_the_model(
    engine: Engine, fields: dict[str, Any], param: str | None, names: str
) -> None:
    body = {"model": MODEL, "prompt": "a", "max_tokens": 5, "allowed_token_ids": [1], **fields}
    answer = engine.http.post(COMPLETIONS, json=body)
    check(answer, 400, param, "invalid_sampling_params")
    assert names in answer.json()["error"]["message"]
    assert engine.metric("vllm:corrupted_requests_total") == 0


def test_not_a_number_is_no_number(engine: Engine) -> None:
    body = json.dumps({"model": MODEL, "prompt": "a", "temperature": float("nan")})
    check(engine.http.post(COMPLETIONS, content=body), 400, "temperature")


@pytest.mark.parametrize(("tokens", "first"), [([1, 10**6], 10**6), ([[1], [-1, 10**6]], -1)])
def test_a_token_outside_of_the_vocabulary_is_told_its_size(
    engine: Engine, tokens: list[Any], first: int
) -> None:
    answer = engine.http.post(COMPLETIONS, json={"model": MODEL, "prompt": tokens})
    told = rf"prompt has the token id {first}, but the model's vocabulary has (\d+) tokens, with ids from 0 to (\d+)"
    found = re.fullmatch(told, answer.json()["error"]["message"])
    assert found is not None
    assert int(found[1]) == int(found[2]) + 1


def test_limits_are_written_out(engine: Engine) -> None:
    body = {"model": MODEL, "prompt": "a", "seed": 2**63}
    message = engine.http.post(COMPLETIONS, json=body).json()["error"]["message"]
    assert "from -9223372036854775808 to 9223372036854775807" in message


def test_raw_surrogate_bytes_are_not_json(engine: Engine) -> None:
    body = b'{"prompt": "\xed\xa0\x80", "max_tokens": 1}'
    check(engine.http.post(COMPLETIONS, content=body), 400, None, "invalid_json")


def test_body_that_is_not_what_its_encoding_says_is_refused(engine: Engine) -> None:
    response = engine.http.post(
        COMPLETIONS, content=b"no gzip", headers={"Content-Encoding": "gzip"}
    )
    check(response, 400, None)
    assert response.headers["connection"] == "close"


def test_huge_body_is_refused_without_reading_it_all(engine: Engine) -> None:
    body = json.dumps({"model": MODEL, "prompt": "x" * 300_000})
    check(engine.http.post(COMPLETIONS, content=body), 413, None, "request_too_large")


def test_unknown_paths_and_methods_are_error_objects(engine: Engine) -> None:
    check(engine.http.get("/v1/nothing"), 404, None, "not_found")
    wrong_method = engine.http.get(CHAT)
    check(wrong_method, 405, None)
    assert wrong_method.headers["allow"] == "POST"
    check(engine.http.get("/v1/models/other"), 404, "model", "model_not_found")


def test_wrong_tokenize_requests_are_refused(engine: Engine) -> None:
    check(engine.http.post("/tokenize", json={"prompt": 3}), 400, "prompt")
    both = {"prompt": "a", "messages": [{"role": "user", "content": "b"}]}
    check(engine.http.post("/tokenize", json=both), 400, "prompt")
    check(engine.http.post("/detokenize", json={}), 400, "tokens")
    check(engine.http.post("/detokenize", json={"tokens": [10**7]}), 400, "tokens")
    too_many = {"tokens": [1] * 5000}
    check(engine.http.post("/detokenize", json=too_many), 400, "tokens")
    check(engine.http.post("/tokenize", json={"model": "x", "prompt": "a"}), 404, "model")


def test_foreign_request_id_comes_back_unless_it_is_strange(engine: Engine) -> None:
    given = engine.http.get("/v1/models", headers={"X-Request-Id": "abc-1"})
    assert given.headers["x-request-id"] == "abc-1"
    strange = engine.http.get("/v1/models", headers={"X-Request-Id": "x" * 500})
    assert strange.headers["x-request-id"] != "x" * 500


def test_engine_still_answers_after_all_this(engine: Engine) -> None:
    body = {"model": MODEL, "prompt": "hi", "max_tokens": 2}
    assert engine.http.post(COMPLETIONS, json=body).status_code == 200
    assert "hi" not in [line.get("message") for line in _log_lines(engine)]


def test_log_shows_routes_and_counts_but_no_prompt(engine: Engine) -> None:
    secret = "swordfish-41"
    engine.http.post(
        CHAT,
        json={
            "messages": [{"role": "user", "content": secret}],
            "max_tokens": 3,
            "ignore_eos": True,
        },
    )
    engine.http.post(CHAT, json={"messages": [{"role": secret, "content": secret}]})
    lines = [line for line in _log_lines(engine) if line["logger"] == "exo_engine.requests"]
    assert secret not in engine.log.read_text()
    assert lines[-1]["status"] == 400
    assert lines[-2]["status"] == 200
    assert lines[-2]["message"] == "POST /v1/chat/completions"
    assert lines[-2]["completion_tokens"] == 3
    assert lines[-2]["seconds"] >= 0


def _log_lines(engine: Engine) -> list[dict[str, Any]]:
    return [json.loads(line) for line in engine.log.read_text().splitlines()]
