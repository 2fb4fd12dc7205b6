"""Answers that keep to what a request asks for, and the requests that ask for what cannot be."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import jsonschema
import pytest

pytest.importorskip("llguidance", reason="the engine has no grammars without it")

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
STRICT = {"type": "json_schema", "json_schema": {"name": "p", "strict": True, "schema": SCHEMA}}
TAG = {
    "type": "structural_tag",
    "triggers": ["<function="],
    "structures": [{"begin": "<function=get>", "schema": SCHEMA, "end": "</function>"}],
}
WHOLE_TAG = {
    "type": "structural_tag",
    "format": {
        "type": "sequence",
        "elements": [
            {"type": "const_string", "value": 'say "this": '},
            {"type": "or", "elements": [{"type": "regex", "pattern": "a/b|c"}]},
            {
                "type": "tag",
                "begin": "<x>",
                "content": {"type": "json_schema", "json_schema": {"type": "boolean"}},
                "end": "</x>",
            },
        ],
    },
}


def is_person(text: str) -> bool:
    jsonschema.validate(json.loads(text), SCHEMA)
    return True


def is_object(text: str) -> bool:
    return isinstance(json.loads(text), dict)


ASKED: dict[str, tuple[dict[str, Any], Any]] = {
    "schema": ({"response_format": FORMAT}, is_person),
    "strict schema": ({"response_format": STRICT}, is_person),
    "json": ({"structured_outputs": {"json": SCHEMA}}, is_person),
    "json as text": ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, is_person),
    "no blanks": (
        {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
        lambda text: text == json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False)
        or "\\" in text,
    ),
    "regex": ({"structured_outputs": {"regex": r"\d{3}/[x-z]{2}"}}, r"\d{3}/[x-z]{2}"),
    "choice": ({"structured_outputs": {"choice": ["red", 'bl"ue', "grün"]}}, 'red|bl"ue|grün'),
    "lark": ({"structured_outputs": {"grammar": 'start: "a" B\nB: /[0-9]/ "z"'}}, "a[0-9]z"),
    "llama.cpp's": ({"structured_outputs": {"grammar": 'root ::= "yes" | "no"'}}, "yes|no"),
    "tag": ({"structured_outputs": {"structural_tag": json.dumps(WHOLE_TAG)}}, r'say "this": (a/b|c)<x>(true|false)</x>'),
    "tag as format": ({"response_format": WHOLE_TAG}, r'say "this": (a/b|c)<x>(true|false)</x>'),
    "old json": ({"guided_json": SCHEMA, "guided_decoding_backend": "guidance"}, is_person),
    "old regex": ({"guided_regex": "[ab]{4}"}, "[ab]{4}"),
    "old choice": ({"guided_choice": ["one", "two"]}, "one|two"),
    "old grammar": ({"guided_grammar": 'start: "q"~3'}, "qqq"),
}  # fmt: skip


def ask(engine, path: str = "/v1/chat/completions", **fields: Any) -> httpx.Response:
    prompt = (
        {"messages": [{"role": "user", "content": "Hi"}]} if "chat" in path else {"prompt": "Hi"}
    )
    return engine.http.post(path, json={**prompt, "max_tokens": 600, "seed": 3, **fields})


@pytest.mark.parametrize("name", ASKED)
def test_answer_keeps_to_what_is_asked(engine, name: str) -> None:
    fields, expected = ASKED[name]
    answer = ask(engine, n=2, **fields)
    assert answer.status_code == 200, answer.text
    for choice in answer.json()["choices"]:
        text = choice["message"]["content"]
        assert choice["finish_reason"] == "stop", text
        assert expected(text) if callable(expected) else re.fullmatch(expected, text), text


def test_completions_are_constrained_too_each_prompt_for_itself(engine) -> None:
    answer = ask(engine, "/v1/completions", prompt=["Hi", "Ho"], **ASKED["schema"][0])
    assert all(is_person(each["text"]) for each in answer.json()["choices"])


def test_any_object_is_one_unless_it_is_cut(engine) -> None:
    answer = ask(engine, response_format={"type": "json_object"}, logit_bias={"97": 5})
    (choice,) = answer.json()["choices"]
    assert choice["finish_reason"] == "length" or is_object(choice["message"]["content"])


def test_a_stream_joins_to_the_same_answer(engine) -> None:
    whole = ask(engine, response_format=FORMAT).json()["choices"][0]["message"]["content"]
    lines = ask(engine, response_format=FORMAT, stream=True).text.splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    text = "".join(each["choices"][0]["delta"].get("content", "") for each in events)
    assert text == whole
    assert is_person(text)


def test_text_asks_for_nothing(engine) -> None:
    free = ask(engine, max_tokens=8).json()["choices"][0]["message"]["content"]
    same = ask(engine, max_tokens=8, response_format={"type": "text"})
    assert same.json()["choices"][0]["message"]["content"] == free


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, "response_format.schema", "json_schema.schema"),
        ({"response_format": {"type": "json_object", "json_schema": {"schema": SCHEMA}}}, "response_format.json_schema", "another type"),
        ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, "response_format.schema", "ignore"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA, "strikt": True}}}, "response_format.json_schema.strikt", "'strict'"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "json_schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema", "schema"),
        ({"guided_json": SCHEMA, "guided_regex": "a"}, "guided_regex", "only one"),
        ({"structured_outputs": {"json": {}, "choice": ["a"]}}, "structured_outputs.choice", "only one"),
        ({"structured_outputs": {"jsn": {}}}, "structured_outputs.jsn", "ignore"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "list"),
        ({"structured_outputs": {"regex": "(?=a)b"}}, "structured_outputs.regex", "look-ahead"),
        ({"guided_grammar": "start: nobody"}, "guided_grammar", "nobody"),
        ({"guided_grammar": "%$ ::="}, "guided_grammar", ""),
        ({"guided_json": "{"}, "guided_json", "JSON"),
        ({"guided_json": [1]}, "guided_json", "object"),
        ({"guided_json": {"type": "foo"}}, "guided_json", "foo"),
        ({"guided_json": {"not": {}}}, "guided_json", "not"),
        ({"guided_json": {"properties": {"a": {"x-guidance": {"lenient": True}}}}}, "guided_json", "/properties/a/x-guidance"),
        ({"guided_json": {"properties": {"a~b": {"items": {"uniqueItems": True}}}}}, "guided_json", "/properties/a~0b/items"),
        ({"guided_json": {"$ref": "#/$defs/none"}}, "guided_json", "/$defs/none"),
        ({"guided_json": {"$ref": "#"}}, "guided_json", "no text"),
        ({"guided_decoding_backend": "xgrammar"}, "guided_decoding_backend", "xgrammar"),
        ({"response_format": {**TAG, "triggers": ["<f>"]}}, "response_format", "/tags/0/begin"),
        ({"allowed_token_ids": []}, "allowed_token_ids", ""),
        ({"allowed_token_ids": [10**6]}, "allowed_token_ids", ""),
        ({"bad_words": "word"}, "bad_words", "list"),
        ({"bad_words": ["x" * 300]}, "bad_words", "300"),
    ],
)  # fmt: skip
def test_what_cannot_be_kept_to_is_refused_with_its_place(engine, fields, param, said) -> None:
    for is_stream in (False, True):
        answer = ask(engine, stream=is_stream, **fields)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"] == param
        assert said in answer.json()["error"]["message"]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add"}}])
def test_forced_calls_have_arguments_of_the_tools_schema(engine, choice) -> None:
    tool = {"type": "function", "function": {"name": "add", "parameters": SCHEMA}}
    answer = ask(engine, tools=[tool], tool_choice=choice, parallel_tool_calls=False)
    assert answer.status_code == 200, answer.text
    (call,) = answer.json()["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "add"
    assert is_person(call["function"]["arguments"])
    both = ask(engine, tools=[tool], tool_choice=choice, response_format=FORMAT)
    assert both.status_code == 400


def test_parameters_that_leave_no_token_are_told(engine) -> None:
    answer = ask(engine, guided_choice=["a"], logit_bias={}, allowed_token_ids=[5])
    assert answer.status_code == 400
    assert "allowed_token_ids" in answer.json()["error"]["message"]


def test_text_before_a_tag_is_free_and_the_tag_is_not(engine) -> None:
    tags = {
        "type": "triggered_tags",
        "triggers": ["<f="],
        "at_least_one": True,
        "stop_after_first": True,
    }
    tag = {
        "begin": "<f=x>",
        "content": {"type": "json_schema", "json_schema": SCHEMA},
        "end": "</f>",
    }
    form = {"type": "structural_tag", "format": {**tags, "tags": [tag]}}
    answer = ask(engine, response_format=form, logit_bias={})
    (choice,) = answer.json()["choices"]
    text = choice["message"]["content"]
    if choice["finish_reason"] == "stop":
        assert is_person(text.partition("<f=x>")[2].removesuffix("</f>"))
    else:
        assert "<f=" not in text


def test_allowed_tokens_and_bad_words(engine) -> None:
    tokens = engine.http.post("/tokenize", json={"prompt": "ab", "add_special_tokens": False})
    ids = tokens.json()["tokens"]
    text = ask(engine, max_tokens=20, allowed_token_ids=ids).json()["choices"][0]["message"][
        "content"
    ]
    assert text
    assert set(text) <= set("ab")
    words = {"max_tokens": 20, "allowed_token_ids": ids, "bad_words": ["a"]}
    assert set(ask(engine, **words).json()["choices"][0]["message"]["content"]) == {"b"}


def test_compile_times_are_counted(engine) -> None:
    before = engine.metric("exo:grammar_compilation_time_seconds_count")
    for _ in range(2):
        assert ask(engine, guided_choice=["never", "asked", "before"]).status_code == 200
    assert engine.metric("exo:grammar_compilation_time_seconds_count") == before + 1
