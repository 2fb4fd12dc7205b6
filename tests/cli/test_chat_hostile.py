"""`chat` with a server, and with files, that mean harm: an error at most, and nothing that drives a terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .conftest import Exo
from .fake_api import FakeApi

DRIVES = "\x1b]0;owned\x07\x1b[2J\x9b\u202e"
END = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
NESTED = b"[" * 100_000 + b"]" * 100_000


def stream(*events: Any) -> bytes:
    return b"".join(
        b"data: %s\n\n" % (each if isinstance(each, bytes) else json.dumps(each).encode())
        for each in events
    )


def said(exo: Exo, api: FakeApi, answer: Any, *flags: str, code: int = 0) -> str:
    """Return all that is printed on a terminal; nothing of it drives one, and there is little of it."""
    if not api.deployments:
        api.add_deployment("demo")
    api.answers["chat"] = answer
    result = exo("ai", "chat", "demo", "Why?", "--stats", *flags, tty=True)
    text = f"{result.out}{result.err}"
    assert result.code == code, text
    assert not {"\x07", "\x9b", "\u202e", "\x1b]"} & {*text, *map("".join, zip(text, text[1:]))}  # noqa: B905, RUF007
    assert "\x1b[2J" not in text
    assert len(text) < 10_000
    return text


@pytest.mark.parametrize(
    "usage",
    [
        b'"%s"' % (b"9" * 100_000),
        b"9" * 4300,
        b"-1",
        b"NaN",
        b"1e400",
        b"true",
        b'["\\u001b]0;owned\\u0007"]',
        b'{"a":1}',
        json.dumps(DRIVES).encode(),
    ],
    ids=["long", "4,300 digits", "negative", "nan", "inf", "true", "list", "object", "escapes"],
)
def test_counts_of_a_server_that_are_none_are_not_shown(
    exo: Exo, api: FakeApi, usage: bytes
) -> None:
    counts = b'{"choices":[],"usage":{"prompt_tokens":%s,"completion_tokens":%s}}' % (usage, usage)
    text = {"choices": [{"delta": {"content": "Hi"}}]}
    assert " tokens" not in said(exo, api, stream(text, counts, END))


@pytest.mark.parametrize(
    "event",
    [
        7,
        {"choices": 7},
        {"choices": {"a": 1}},
        {"choices": [7, None, "x", []]},
        {"choices": [{"delta": 7}, {"delta": [1]}, {"delta": {"content": 7}}]},
        {"choices": [{"delta": {"content": ["x"]}, "finish_reason": {"a": DRIVES}}]},
        {"choices": [{"delta": {"content": {"text": DRIVES}}}], "usage": DRIVES},
        {"choices": [{"delta": {"tool_calls": [{"function": {"name": 7, "arguments": [1]}}]}}]},
        {"choices": [{"delta": {"tool_calls": [{"index": [1], "function": {"name": DRIVES}}]}}]},
        {"choices": [{"delta": {"content": DRIVES, "tool_calls": DRIVES}}]},
    ],
)
@pytest.mark.parametrize("flags", [(), ("-O", "json")], ids=["text", "json"])
def test_events_of_no_form_are_passed_over(
    exo: Exo, api: FakeApi, event: Any, flags: tuple[str, ...]
) -> None:
    said(exo, api, stream(event, END), *flags)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (stream(NESTED), 1),
        (stream(b'{"choices":' + NESTED + b"}"), 1),
        (stream(b"9" * 5000), 1),
        (b"data: " + b"x" * (17 << 20), 1),
        (stream({"error": {"message": DRIVES + "x" * 100_000}}), 1),
        (stream({"error": [DRIVES] * 100_000}), 1),
        ((400, {"error": {"message": DRIVES + "x" * 100_000}}), 1),
        ((400, b'{"error": ' + NESTED + b"}"), 1),
        ((404, b"x" * (8 << 20)), 1),
        ((401, {"error": {DRIVES * 1000: DRIVES}}), 4),
        ((503, [DRIVES]), 1),
    ],
    ids=["nested", "choices", "number", "endless line", "error", "list", "400", "nested 400", "long 404", "401", "503"],
)  # fmt: skip
def test_what_cannot_be_read_is_an_error_in_short(
    exo: Exo, api: FakeApi, answer: Any, code: int
) -> None:
    assert "error:" in said(exo, api, answer, code=code)


def test_a_served_name_cannot_drive_the_terminal(exo: Exo, api: FakeApi) -> None:
    name = f"org/{DRIVES}{'x' * 100_000}"
    api.answers["models served"] = {"object": "list", "data": [{"id": name}]}
    missing = (404, {"error": {"message": "none", "code": "model_not_found"}})
    answers = stream({"choices": [{"delta": {"content": "Hi"}, "finish_reason": "stop"}]})
    text = said(exo, api, lambda body: answers if body["model"] == name else missing)
    assert "answered by org/\\x1b]0;owned" in text


@pytest.mark.parametrize("served", [NESTED, b"[1]", b'{"data":[{"id":7}]}', b"x" * (4 << 20)])
def test_a_list_of_models_of_no_form_is_none(exo: Exo, api: FakeApi, served: bytes) -> None:
    api.answers["models served"] = served
    missing = (404, {"error": {"message": "no such model", "code": "model_not_found"}})
    assert "no such model" in said(exo, api, missing, code=1)


def test_text_that_python_takes_for_several_lines_is_one(exo: Exo, api: FakeApi) -> None:
    """Engines write JSON without escapes where it needs none."""
    text = "one\u2028two\u0085three\u2029four"
    event = {"choices": [{"delta": {"content": text}, "finish_reason": "stop"}]}
    api.add_deployment("demo")
    api.answers["chat"] = b"data: %s\r\n\r\n" % json.dumps(event, ensure_ascii=False).encode()
    assert exo("ai", "chat", "demo", "Why?").out == f"{text}\n"


@pytest.mark.parametrize("option", ["--json-schema", "--tools"])
@pytest.mark.parametrize(
    "text",
    [
        '{"type":"object","maximum":NaN,"name":"f"}',
        '{"type":"object","maximum":-Infinity,"name":"f"}',
        f'{{"name":"f","maximum":{"9" * 5000}}}',
        f'{{"name":"f","items":{"[" * 100_000}{"]" * 100_000}}}',
        *(f'{{"name":"f","items":{"[" * depth}{"]" * depth}}}' for depth in (900, 980, 990)),
        "\x00",
        DRIVES,
    ],
    ids=["nan", "inf", "digits", "nested", "900", "980", "990", "zero", "escapes"],
)
def test_hostile_files_are_sent_or_refused(
    exo: Exo, api: FakeApi, tmp_path: Path, option: str, text: str
) -> None:
    api.add_deployment("demo")
    file = tmp_path / "hostile.json"
    file.write_text(text)
    result = exo("ai", "chat", "demo", "Why?", option, str(file), tty=True)
    assert result.code in (0, 2)
    assert "\x1b]" not in result.err


@pytest.mark.parametrize("prompt", ["\udcff\udcfe", "\x00\x1b[2J"])
def test_a_question_that_is_no_text_is_sent_as_it_is(exo: Exo, api: FakeApi, prompt: str) -> None:
    api.add_deployment("demo")
    assert exo("ai", "chat", "demo", prompt).code == 0
    assert api.requests[-1].body["messages"] == [{"role": "user", "content": prompt}]
