"""The `openai` package chats, streams and lists models through the gateway of a real stack."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest

from .conftest import Stack

pytestmark = pytest.mark.timeout(600)  # engines give way: beside much work a start takes minutes


@pytest.fixture
def client(talk: dict[str, Any]) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=talk["deployment_url"], api_key=talk["api_key"], max_retries=0
    ) as client:
        yield client


def ask(client: openai.OpenAI, **options: object) -> str:
    answer = client.chat.completions.create(
        model="exo/tiny-chat",
        messages=[{"role": "user", "content": "What is a KV cache?"}],
        temperature=0,
        **options,  # type: ignore[call-overload]
    )
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    return answer.choices[0].message.content


def test_chat_gives_a_sensible_answer(client: openai.OpenAI) -> None:
    answer = ask(client)
    assert "key" in answer.lower()
    assert len(answer) > 30


def test_a_stream_says_the_same_as_one_answer(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="exo/tiny-chat",
        messages=[{"role": "user", "content": "What is a KV cache?"}],
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == ask(client)
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens > 5


EXAMPLES = Path(__file__).parents[2] / "examples" / "chat"


def test_the_examples_of_the_quickstart_get_answers_of_their_form(
    talk: dict[str, Any], stack: Stack
) -> None:
    schema = EXAMPLES / "kind.json"
    said = stack.exo("chat", "talk", "What is a KV cache?", "--json-schema", str(schema)).stdout
    jsonschema.validate(json.loads(said), json.loads(schema.read_text()))
    (tool,) = json.loads((EXAMPLES / "weather.json").read_text())
    asked = ("chat", "talk", "How is the weather in Geneva?", "-O", "json")
    said = stack.exo(
        *asked, "--tools", str(EXAMPLES / "weather.json"), "--tool-choice", tool["name"]
    ).stdout
    (call,) = json.loads(said)["tool_calls"]
    assert call["name"] == tool["name"]
    jsonschema.validate(json.loads(call["arguments"]), tool["parameters"])


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["exo/tiny-chat"]


def test_wrong_key_model_and_deployment(client: openai.OpenAI, stack: Stack) -> None:
    with pytest.raises(openai.AuthenticationError):
        ask(client.with_options(api_key="no"))
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="none", messages=[{"role": "user", "content": "x"}])
    elsewhere = f"{stack.gateway}/00000000-0000-4000-8000-000000000000/v1"
    with pytest.raises(openai.NotFoundError):
        ask(client.with_options(base_url=elsewhere))


@pytest.mark.slow
def test_scaled_to_zero_is_503_and_back(client: openai.OpenAI, stack: Stack) -> None:
    stack.exo("deployment", "scale", "talk", "0", "--wait")
    try:
        with pytest.raises(openai.InternalServerError, match="talk"):
            ask(client)
    finally:
        stack.exo("deployment", "scale", "talk", "1", "--wait", timeout=300)
    assert ask(client)


def test_usage_counts_each_key_and_metrics_have_everybody(
    stack: Stack, talk: dict[str, Any]
) -> None:
    made = stack.exo("api-key", "create", "phone", "--deployment", "talk", "-O", "json")
    key = json.loads(made.stdout)
    try:
        with openai.OpenAI(
            base_url=talk["deployment_url"], api_key=key["value"], max_retries=5
        ) as client:
            ask(client)
        rows = json.loads(stack.exo("usage", "talk", "-O", "json").stdout)
        (row,) = [each for each in rows if each["key"] == "phone"]
        assert (row["deployment"], row["key_id"]) == ("talk", key["id"])
        assert row["requests"] >= 1
        assert row["completion_tokens"] > 5
        shown = stack.exo("usage").stdout
        assert "phone" in shown
        page = json.loads(stack.exo("metrics", "-O", "json").stdout)
        up = {
            each["labels"]["replica"]: each["value"]
            for each in page
            if each["name"] == "exo_scrape_up"
        }
        assert up["gateway"] == 1.0
        names = {each["name"] for each in page}
        assert {"exo_gateway_requests_total", "exo_deployment_ready_replicas"} <= names
        of_engine = [
            each
            for each in page
            if each["labels"].get("deployment_id") == talk["id"]
            and each["labels"].get("replica", "gateway") != "gateway"
        ]
        assert len({each["name"] for each in of_engine}) > 5
        assert up[of_engine[0]["labels"]["replica"]] == 1.0
    finally:
        stack.exo("api-key", "delete", "phone", "--force")
