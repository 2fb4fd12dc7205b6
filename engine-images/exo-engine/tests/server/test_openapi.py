"""/openapi.json names every route that answers, and takes of each field the types that the engine takes."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import pytest
from aiohttp import ClientSession
from exo_engine.core.request import RequestOutput
from exo_engine.server.known_fields import ROUTES
from exo_engine.server.messages import PoolingInfo
from exo_engine.server.routes.openapi import types_of
from jsonschema import Draft202012Validator

from .conftest import MODEL, Engine
from .scripted_core import FakeCore, serving

pytestmark = pytest.mark.filterwarnings("ignore:It is recommended to use web.RequestKey")
HELLO = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "f"}}]
ENDING = {"3": 100}
"""Has an answer end at once, whatever limits it."""
TEXT = {"type": "structural_tag", "format": {"type": "any_text"}}
OF_ANY_TYPE: dict[str, Any] = {
    "string": "x", "integer": 1, "whole": 1.0, "number": 0.5, "boolean": True, "array": [], "object": {}, "null": None,
}  # fmt: skip
LEAST: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO, "max_tokens": 1, "logit_bias": ENDING},
    "/v1/completions": {"prompt": "hi", "max_tokens": 1},
    "/v1/responses": {"input": "hi", "max_output_tokens": 1, "logit_bias": ENDING},
    "/v1/messages": {"messages": HELLO, "max_tokens": 1},
    "/v1/messages/count_tokens": {"messages": HELLO},
    "/tokenize": {"messages": HELLO},
    "/detokenize": {"tokens": [5]},
    "/v1/embeddings": {"input": "hi"},
    "/pooling": {"input": "hi"},
    "/v1/score": {"text_1": "hi", "text_2": "hi"},
    "/v1/rerank": {"query": "hi", "documents": "hi"},
    "/classify": {"input": "hi"},
}
POOLED = {"/v1/embeddings": "embed", "/pooling": "embed", "/v1/score": "embed", "/v1/rerank": "embed",
          "/classify": "classify"}  # fmt: skip
"""What a model is for that these routes are asked of."""
BESIDE: dict[str, dict[str, Any]] = {
    "stream_options": {"stream": True},
    "top_logprobs": {"logprobs": True},
    "tool_choice": {"tools": TOOLS},
    **{name: {"text_1": None, "text_2": None, other: "hi"} for name, other in [
        ("data_1", "data_2"), ("data_2", "data_1"), ("queries", "documents"), ("documents", "queries"),
        ("items", "queries"),
    ]},
}  # fmt: skip
"""What a field does not go without."""
BESIDE_HERE: dict[tuple[str, str], dict[str, Any]] = {
    ("/v1/responses", "tool_choice"): {"tools": [{"type": "function", "name": "f"}]},
    ("/v1/messages", "tool_choice"): {"tools": [{"name": "f", "input_schema": {}}]},
    ("/v1/messages/count_tokens", "tool_choice"): {"tools": [{"name": "f", "input_schema": {}}]},
    ("/v1/chat/completions", "documents"): {},
    ("/tokenize", "documents"): {},
    ("/v1/rerank", "documents"): {},
}
TAKEN: dict[str, dict[str, Any]] = {
    "allowed_token_ids": {"array": [5]},
    "documents": {"array": [{"text": "hi"}], "object": {"text": "hi"}},
    "encoding_format": {"string": "float"},
    "guided_choice": {"array": ["a"]},
    "guided_decoding_backend": {"string": "auto"},
    "guided_grammar": {"string": 'start: "x"'},
    "guided_json": {"string": '{"type": "integer"}'},
    "input": {"array": ["hi"]},
    "messages": {"array": HELLO},
    "model": {"string": MODEL},
    "prompt": {"array": ["hi"]},
    "structural_tag": {"string": '{"format": {"type": "any_text"}}', "object": TEXT},
    "suffix": {"string": ""},  # this model fills no gaps
    "task": {"string": "embed"},
    "tool_choice": {"string": "auto", "object": {"type": "function", "function": {"name": "f"}}},
    "truncate_prompt_tokens": {"integer": 8, "whole": 8.0},
    "truncation_side": {"string": "left"},
    **{
        name: {"array": ["hi"], "object": {"text": "hi"}}
        for name in ("text_1", "text_2", "queries", "items", "data_1", "data_2")
    },
}
"""Values that are taken, where those of `OF_ANY_TYPE` are none."""
TAKEN_HERE: dict[tuple[str, str], dict[str, Any]] = {
    ("/v1/responses", "input"): {"array": HELLO},
    ("/v1/responses", "tool_choice"): {"string": "auto", "object": {"type": "function", "name": "f"}},
    ("/v1/messages", "tool_choice"): {"object": {"type": "auto"}},
    ("/v1/messages/count_tokens", "tool_choice"): {"object": {"type": "auto"}},
}  # fmt: skip


class FakePooling(FakeCore):
    """Makes four numbers of every text."""

    def add_request(self, request: Any) -> None:
        self._positions[request.request_id] = 0

    def step(self) -> list[RequestOutput]:
        pooled = struct.pack("<4f", 1, 0, 0, 0)
        made = [
            RequestOutput(each, finish_reason="stop", pooled=pooled) for each in self._positions
        ]
        self._positions.clear()
        return made


def schema_of(document: dict[str, Any], path: str) -> dict[str, Any]:
    body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    found: dict[str, Any] = body["schema"]
    return found


def bodies(schema: dict[str, Any], path: str) -> Iterator[dict[str, Any]]:
    """Yield a body for every field and every type that JSON has, and one without each that must be there."""
    least = LEAST[path]
    for name, form in schema["properties"].items():
        beside = BESIDE_HERE.get((path, name), BESIDE.get(name, {}))
        taken = TAKEN_HERE.get((path, name), TAKEN.get(name, {}))
        kinds = (
            OF_ANY_TYPE if "type" in form else ["object"]
        )  # others are harmless, whatever they are
        yield from ({**least, **beside, name: taken.get(k, OF_ANY_TYPE[k])} for k in kinds)
    yield {**least, "something_else": 1}
    yield from ({key: least[key] for key in least if key != name} for name in least)


def judged(document: dict[str, Any], path: str) -> list[tuple[dict[str, Any], int]]:
    """Return these bodies and the status that each gets if the engine keeps to its document."""
    schema = schema_of(document, path)
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    found = [(each, 200 if validator.is_valid(each) else 400) for each in bodies(schema, path)]
    assert {status for _, status in found} == {200, 400}
    return found


@pytest.mark.parametrize("path", [each for each in LEAST if each not in POOLED])
def test_engine_takes_the_types_that_the_document_says(engine: Engine, path: str) -> None:
    document = engine.http.get("/openapi.json").json()
    answers = [
        (body, expected, engine.http.post(path, json=body).status_code)
        for body, expected in judged(document, path)
    ]
    wrong = [each for each in answers if each[1] != each[2]]
    assert wrong == [], wrong


@pytest.mark.parametrize("task", ["embed", "classify"])
async def test_engine_that_pools_takes_the_types_that_the_document_says(
    model_dir: Path, task: str
) -> None:
    labels = ("a", "b", "c", "d") if task == "classify" else ()
    info = PoolingInfo(task, 4, None, is_activated=True, lowers_case=False, labels=labels)
    async with (
        serving(FakePooling([]), model_dir, pooling=info) as server,
        ClientSession(server.make_url("/")) as client,
    ):
        async with client.get("/openapi.json") as response:
            document = await response.json()
        wrong = []
        for path in [path for path, kind in POOLED.items() if kind == task]:
            for body, expected in judged(document, path):
                async with client.post(path, json=body) as answer:
                    if answer.status != expected:
                        wrong.append((path, body, answer.status, await answer.text()))
    assert wrong == [], wrong


def test_every_route_and_field_is_described(engine: Engine) -> None:
    document = engine.http.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    assert set(ROUTES) <= document["paths"].keys()
    for path, known in ROUTES.items():
        schema = schema_of(document, path)
        assert set(schema["properties"]) == (known.honoured - known.refused_here) | known.harmless
        assert all(types_of(path, name) for name in known.honoured - known.refused_here)
    for path, methods in document["paths"].items():
        for method in methods:
            plain = path.replace("{model}", "none")
            status = engine.http.request(method, plain, content=b"{").status_code
            assert status != 405, (method, path)
            assert status != 404 or "{" in path, (method, path)


@pytest.mark.parametrize(
    "flags", [{}, {"has_tokenizer_info": True, "is_dev_mode_on": True}], ids=["plain", "all"]
)
async def test_every_route_of_the_application_is_described(
    model_dir: Path, flags: dict[str, Any]
) -> None:
    async with (
        serving(FakeCore([5]), model_dir, **flags) as server,
        ClientSession(server.make_url("/")) as client,
        client.get("/openapi.json") as response,
    ):
        document = await response.json()
        served = {
            (route.method.lower(), re.sub(r":[^}]*}", "}", route.resource.canonical))
            for route in server.app.router.routes()
            if route.method != "HEAD" and route.resource is not None
        }
    described = {
        (method, path) for path, methods in document["paths"].items() for method in methods
    }
    assert described == served
    assert len(described) > 24
    names = [
        each["operationId"] for methods in document["paths"].values() for each in methods.values()
    ]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("at", ["http://engine", "https://gateway/a-deployment"])
def test_paths_begin_where_the_document_is(engine: Engine, at: str) -> None:
    (server,) = engine.http.get("/openapi.json").json()["servers"]
    assert urljoin(f"{at}/openapi.json", server["url"]).removesuffix("/") == at


@pytest.mark.parametrize(
    "path", ["/health", "/ping", "/metrics", "/load", "/v1/models", "/version"]
)
def test_answers_have_the_media_type_that_is_described(engine: Engine, path: str) -> None:
    methods = engine.http.get("/openapi.json").json()["paths"][path]
    (form,) = methods["get"]["responses"]["200"]["content"]
    assert engine.http.get(path).headers["content-type"].partition(";")[0] == form


async def test_document_says_which_routes_need_a_key(model_dir: Path) -> None:
    async with (
        serving(FakeCore([5]), model_dir, api_keys=("secret",), is_dev_mode_on=True) as server,
        ClientSession(server.make_url("/")) as client,
    ):
        async with client.get("/openapi.json") as response:
            document = await response.json()
        for path, methods in document["paths"].items():
            for method, each in methods.items():
                async with client.request(method, path.replace("{model}", "none")) as answer:
                    assert (answer.status == 401) == ("security" in each), (method, path)
