"""`chat`: one answer, a conversation, and what can go wrong."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import threading
from typing import Any

import pytest

from exo_inference.cli.chat_stream import way_in

from .conftest import Exo
from .fake_api import CHAT_PIECES, FakeApi

ANSWER = "".join(CHAT_PIECES)


def asked(api: FakeApi) -> list[dict[str, Any]]:
    return [r.body for r in api.requests if r.path.endswith("/chat/completions")]


def test_one_question_is_answered_with_the_deployments_own_key(exo: Exo, api: FakeApi) -> None:
    deployment = api.add_deployment("demo")
    result = exo("ai", "chat", "demo", "What is a KV cache?")
    assert (result.code, result.out, result.err) == (0, ANSWER + "\n", "")
    key = f"sk-rig-{deployment['id'][:8]}"
    assert api.requests[-1].headers["authorization"] == f"Bearer {key}"
    assert asked(api) == [
        {
            "model": "org/m1",
            "messages": [{"role": "user", "content": "What is a KV cache?"}],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ]


def test_the_prompt_may_come_from_stdin_and_flags_are_sent(exo: Exo, api: FakeApi) -> None:
    api.add_deployment("demo")
    flags = ("--system", "Be brief.", "--max-tokens", "5", "--temperature", "0")
    result = exo("ai", "chat", "demo", *flags, "--stats", stdin="Why?\n")
    assert result.out == ANSWER + "\n"
    assert re.match(r"TTFT \d+\.\d+ s, .*3 tokens", result.err), result.err
    sent = asked(api)[0]
    assert sent["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Why?"},
    ]
    assert (sent["max_tokens"], sent["temperature"]) == (5, 0.0)


def test_stats_say_how_long_the_question_was_held(exo: Exo, api: FakeApi) -> None:
    api.add_deployment("demo")
    api.chat_headers = {"X-Exo-Held-Seconds": "4.2"}
    result = exo("ai", "chat", "demo", "Why?", "--stats")
    assert result.err.endswith(", prompt 7 tokens, waited 4.2 s for a replica\n")


def test_a_gateway_that_is_forwarded_is_asked_in_place_of_the_urls_own(
    exo: Exo, api: FakeApi
) -> None:
    """As after a plain installation, whose gateway has only the name of its Service."""
    deployment = api.add_deployment("demo")
    inside = f"http://exo-gateway.inference.svc/inference/{deployment['id']}/v1"
    deployment["deployment-url"] = inside
    result = exo("ai", "chat", "demo", "Why?", "--base-url", f"{api.url}/")
    assert (result.code, result.out) == (0, ANSWER + "\n")
    refused = exo("ai", "chat", "demo", "Why?", "--base-url", "127.0.0.1:8081")
    assert (refused.code, "expected http://HOST[:PORT]" in refused.err) == (2, True)


NOT_SERVED = {
    "error": {"message": "the model 'org/m1' does not exist here", "code": "model_not_found"}
}


def test_while_another_model_does_not_start_the_one_before_answers(exo: Exo, api: FakeApi) -> None:
    api.add_deployment("demo")
    api.answers["models served"] = {"object": "list", "data": [{"id": "org/old"}]}
    api.answers["chat"] = lambda body: None if body["model"] == "org/old" else (404, NOT_SERVED)
    result = exo("ai", "chat", "demo", "Why?")
    assert (result.code, result.out) == (0, ANSWER + "\n")
    assert [body["model"] for body in asked(api)] == ["org/m1", "org/old"]
    assert 'answered by org/old, which "demo" still serves' in result.err
    assert "deployment show demo" in result.err


def test_a_model_that_nobody_serves_is_refused_with_a_hint(exo: Exo, api: FakeApi) -> None:
    api.add_deployment("demo")
    api.answers["chat"] = (404, NOT_SERVED)
    result = exo("ai", "chat", "demo", "Why?")
    assert result.code == 1
    assert "does not exist here" in result.err
    assert "Run `exo dedicated-inference deployment show demo`." in result.err


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        (
            "http://exo-gateway.inference.svc/u/v1",
            "-n inference port-forward service/exo-gateway 8081:80`",
        ),
        ("http://gw.ns.svc.cluster.local:8080/u/v1", "-n ns port-forward service/gw 8081:8080`"),
        ("https://inference.example.com/u/v1", ""),
        ("http://127.0.0.1:8081/u/v1", ""),
    ],
)
def test_a_name_of_the_cluster_has_a_hint_how_to_get_there(url: str, hint: str) -> None:
    found = way_in(url)
    assert hint in found
    assert bool(hint) == ("--base-url http://127.0.0.1:8081" in found)


def test_it_waits_until_the_deployment_is_ready(
    exo: Exo, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("exo_inference.sdk._waiting.ready_interval", lambda elapsed: 0.0)
    ready = api.add_deployment("demo")
    loading = ready | {"state": "deploying", "state-details": "loading weights 43 %"}
    api.answers[f"GET /v2/ai/deployment/{ready['id']}"] = [(200, loading)] * 2 + [(200, ready)]
    result = exo("ai", "chat", "demo", "hello")
    assert (result.code, result.out) == (0, ANSWER + "\n")
    assert "deploying: loading weights 43 %" in result.err


def test_it_says_what_a_question_waits_for_that_the_gateway_holds(
    exo: Exo, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only replica dies after the deployment was found ready."""
    monkeypatch.setattr("exo_inference.cli.chat_hold.LOOK_SECONDS", 0.001)
    found = api.add_deployment("demo", ready_replicas=1)
    lost = found | {"ready-replicas": 0, "state-details": "loading weights 43 %"}
    looks = [lost, lost, lost | {"state-details": "warming up"}, found]
    said = threading.Event()

    def look(_: object) -> tuple[int, Any]:
        if len(looks) == 1:  # what the look before found has been said
            said.set()
        return 200, looks.pop(0) if len(looks) > 1 else looks[0]

    def hold(_: object) -> None:
        api.answers[f"GET /v2/ai/deployment/{found['id']}"] = look
        assert said.wait(30)

    api.answers["chat"] = hold
    result = exo("ai", "chat", "demo", "hello")
    assert (result.code, result.out) == (0, ANSWER + "\n")
    where = "(waiting for a replica: ready (0/1 replicas ready): "
    assert result.err == f"{where}loading weights 43 %)\n{where}warming up)\n"


def test_it_ends_with_8_when_the_deployment_cannot_become_ready(exo: Exo, api: FakeApi) -> None:
    broken = api.add_deployment("demo", state="error", state_details="out of memory")
    assert broken["state"] == "error"
    result = exo("ai", "chat", "demo", "hello")
    assert result.code == 8
    assert "out of memory" in result.err
    assert asked(api) == []


@pytest.mark.parametrize(
    ("status", "body", "code", "found"),
    [
        (404, {"error": {"message": "no such model"}}, 1, "Not Found: no such model"),
        (401, {"error": {"message": "bad key"}}, 4, "Unauthorized: bad key"),
        (503, "nobody home", 1, "nobody home"),
        (429, [], 1, "Too Many Requests"),
    ],
)
def test_a_refusal_is_one_error_line(
    exo: Exo, api: FakeApi, status: int, body: object, code: int, found: str
) -> None:
    api.add_deployment("demo")
    api.answers["chat"] = (status, body)
    result = exo("ai", "chat", "demo", "hello")
    assert (result.code, result.out) == (code, "")
    assert result.err.startswith("error: asking the model: ")
    assert found in result.err


@pytest.mark.parametrize(
    ("events", "found"),
    [
        (b'data: {"choices": [{"delta": {"content": "A"}}]}\n\n', "the answer broke off"),
        (b'data: {"error": {"message": "engine died"}}\n\n', "engine died"),
        (b"data: {nonsense\n\n", "expected a JSON event"),
    ],
)
def test_an_answer_that_breaks_off_is_an_error(
    exo: Exo, api: FakeApi, events: bytes, found: str
) -> None:
    api.add_deployment("demo")
    api.answers["chat"] = events
    result = exo("ai", "chat", "demo", "hello")
    assert result.code == 1
    assert found in result.err


def test_an_answer_cannot_drive_the_terminal(exo: Exo, api: FakeApi) -> None:
    api.add_deployment("demo")
    events = [
        {"choices": [{"delta": {"content": "a\x1b[2J"}, "finish_reason": "stop"}]},
    ]
    api.answers["chat"] = "".join(f"data: {json.dumps(e)}\n\n" for e in events).encode()
    assert exo("ai", "chat", "demo", "hello", tty=True).out == "a\\x1b[2J\n"


@pytest.mark.parametrize(
    "flags",
    [("--max-tokens", "0"), ("--temperature", "3"), ("--temperature", "hot"), ("--timeout", "x")],
)
def test_bad_flags_are_refused(exo: Exo, api: FakeApi, flags: tuple[str, str]) -> None:
    assert exo("ai", "chat", "demo", "hello", *flags).code == 2
    assert api.requests == []


@pytest.mark.parametrize("argv", [("",), ()])
def test_no_prompt_is_refused(exo: Exo, api: FakeApi, argv: tuple[str, ...]) -> None:
    api.add_deployment("demo")
    result = exo("ai", "chat", "demo", *argv)
    assert result.code == 2
    assert asked(api) == []


def test_a_conversation_on_a_terminal_remembers_until_cleared(api: FakeApi) -> None:
    api.add_deployment("demo")
    controller, terminal = pty.openpty()
    with os.fdopen(controller, "wb", buffering=0) as keyboard:
        process = subprocess.Popen(
            [sys.executable, "-m", "exo_inference.cli", "ai", "chat", "demo", "-Q"],
            stdin=terminal,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        os.close(terminal)
        keyboard.write(b"one\ntwo\n/clear\nthree\n/quit\n")
        out, err = process.communicate(timeout=90)
    assert process.returncode == 0, err
    assert out.decode().count(ANSWER) == 3
    sizes = [len(sent["messages"]) for sent in asked(api)]
    assert sizes == [1, 3, 1]
    assert asked(api)[1]["messages"][1] == {"role": "assistant", "content": ANSWER}


def test_a_deployment_scaled_to_zero_is_said_at_once(exo: Exo, api: FakeApi) -> None:
    api.add_deployment("s", replicas=0, ready_replicas=0)
    result = exo("ai", "chat", "s", "hi")
    assert (result.code, result.out) == (1, "")
    assert result.err == (
        'error: deployment "s" is scaled to zero, so nothing can answer\n'
        "Run `exo dedicated-inference deployment scale s 1`.\n"
    )
    assert asked(api) == []


SCHEMA = {"type": "object", "properties": {"age": {"type": "integer"}}}


def test_a_schema_goes_along_under_the_name_of_its_file(exo: Exo, api: FakeApi, tmp_path) -> None:
    api.add_deployment("demo")
    file = tmp_path / "my person.json"
    file.write_text(json.dumps(SCHEMA))
    result = exo("ai", "chat", "demo", "Ada, 36", "--json-schema", str(file))
    assert (result.code, result.out) == (0, ANSWER + "\n")
    named = {"name": "my_person", "schema": SCHEMA, "strict": True}
    assert asked(api)[0]["response_format"] == {"type": "json_schema", "json_schema": named}


@pytest.mark.parametrize(
    ("text", "said"), [("{", "not JSON"), ("[]", "no object"), (None, "cannot read")]
)
def test_a_file_without_a_schema_is_refused_before_anything_is_asked(
    exo: Exo, api: FakeApi, tmp_path, text: str | None, said: str
) -> None:
    api.add_deployment("demo")
    file = tmp_path / "person.json"
    if text is not None:
        file.write_text(text)
    result = exo("ai", "chat", "demo", "Ada", "--json-schema", str(file))
    assert result.code != 0
    assert said in result.err
    assert not asked(api)


WEATHER = {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}


def calling(*functions: dict[str, Any]) -> bytes:
    """Return a stream in which each piece belongs to a call: (index, what comes)."""
    deltas = [
        {"tool_calls": [{"index": each.pop("index"), "function": each}]} for each in functions
    ]
    events = [{"choices": [{"delta": each, "finish_reason": None}]} for each in deltas]
    events.append({"choices": [{"delta": {}, "finish_reason": "tool_calls"}]})
    return "".join(f"data: {json.dumps(e)}\n\n" for e in events).encode() + b"data: [DONE]\n\n"


@pytest.mark.parametrize("held", [[WEATHER], [{"type": "function", "function": WEATHER}], WEATHER])
@pytest.mark.parametrize(
    ("flags", "choice"),
    [
        ((), None),
        (("--tool-choice", "required"), "required"),
        (
            ("--tool-choice", "get_weather"),
            {"type": "function", "function": {"name": "get_weather"}},
        ),
    ],
)
def test_tools_go_along_and_calls_are_printed(
    exo: Exo, api: FakeApi, tmp_path, held: Any, flags: tuple[str, ...], choice: Any
) -> None:
    api.add_deployment("demo")
    api.answers["chat"] = calling(
        {"index": 0, "name": "get_weather", "arguments": ""},
        {"index": 0, "arguments": '{"city": '},
        {"index": 0, "arguments": '"Bern"}'},
        {"index": 1, "name": "get_weather", "arguments": "{}"},
    )
    file = tmp_path / "weather.json"
    file.write_text(json.dumps(held))
    asking = ("ai", "chat", "demo", "And Bern?", "--tools", str(file), *flags)
    result = exo(*asking)
    assert result.out == 'get_weather({"city": "Bern"})\nget_weather({})\n'
    assert asked(api)[0]["tools"] == [{"type": "function", "function": WEATHER}]
    assert asked(api)[0].get("tool_choice") == choice
    api.answers["chat"] = calling({"index": 0, "name": "get_weather", "arguments": "{}"})
    assert json.loads(exo(*asking, "-O", "json").out)["tool_calls"] == [
        {"name": "get_weather", "arguments": "{}"}
    ]


@pytest.mark.parametrize(
    "delta", [{"tool_calls": 7}, {"tool_calls": [7, {"function": 7}, {"index": "x"}]}]
)
def test_calls_of_no_form_are_none(exo: Exo, api: FakeApi, delta: dict[str, Any]) -> None:
    api.add_deployment("demo")
    event = {"choices": [{"delta": delta, "finish_reason": "stop"}]}
    api.answers["chat"] = f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n".encode()
    result = exo("ai", "chat", "demo", "Hello")
    assert (result.code, result.out) == (0, "")


@pytest.mark.parametrize(
    ("text", "flags", "said"),
    [
        ("{", (), "not JSON"),
        ("[]", (), "no function"),
        ("[{}]", (), "no function"),
        ('[{"type": "function"}]', (), "no function"),
        (json.dumps([WEATHER]), ("--tool-choice", "other"), "auto, required, none, get_weather"),
        (None, ("--tool-choice", "auto"), "needs --tools"),
    ],
)
def test_wrong_tools_are_refused_before_anything_is_asked(
    exo: Exo, api: FakeApi, tmp_path, text: str | None, flags: tuple[str, ...], said: str
) -> None:
    api.add_deployment("demo")
    file = tmp_path / "tools.json"
    if text is not None:
        file.write_text(text)
        flags = ("--tools", str(file), *flags)
    result = exo("ai", "chat", "demo", "Hello", *flags)
    assert result.code != 0
    assert said in result.err
    assert not asked(api)
