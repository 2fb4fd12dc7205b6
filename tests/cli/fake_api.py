"""A fake of the v2 AI API for the tests of the command line: a real HTTP server with canned objects.

It records every request, checks nothing, and keeps just enough state for a create to show up in a
list. What the real controller does is tested with the real controller.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

TIME = "2026-11-20T20:36:44Z"

PARAMETERS = [
    {
        "name": "max-model-len",
        "flags": ["--max-model-len"],
        "type": "integer",
        "default": "",
        "section": "ModelConfig",
        "description": "Model context length (prompt and output). If unspecified, will be "
        "automatically derived from the model config. This text is long so that it wraps.",
        "allowed-values": [],
    },
    {
        "name": "dtype",
        "flags": ["--dtype"],
        "type": "enum",
        "default": "auto",
        "section": "ModelConfig",
        "description": "Data type for model weights and activations.",
        "allowed-values": ["auto", "half", "bfloat16"],
    },
    {
        "name": "enable-prefix-caching",
        "flags": ["--enable-prefix-caching", "--no-enable-prefix-caching"],
        "type": "boolean",
        "default": "True",
        "section": "CacheConfig",
        "description": "Whether to enable prefix caching (default: True)",
    },
    {
        "name": "gpu-memory-utilization",
        "flags": ["--gpu-memory-utilization"],
        "type": "float",
        "default": "0.9",
        "section": "CacheConfig",
        "description": "The fraction of GPU memory to be used for the model executor.",
    },
]

CHAT_PIECES = ["A KV ", "cache ", "keeps keys and values."]


@dataclass(frozen=True)
class Recorded:
    """One request as it came in."""

    method: str
    path: str
    query: dict[str, list[str]]
    body: Any
    headers: dict[str, str]

    @property
    def line(self) -> str:
        """Method and path with its query, as `GET /v2/zone`."""
        query = "&".join(f"{k}={v}" for k, values in self.query.items() for v in values)
        return f"{self.method} {self.path}" + (f"?{query}" if query else "")

    @property
    def signed(self) -> bool:
        return self.headers.get("authorization", "").startswith("EXO2-HMAC-SHA256 ")


@dataclass
class FakeApi:
    """The state of the fake; tests set what they need.

    Attributes:
        url: where it listens, without a path.
        zones: name and prefix of each zone.
        models, deployments: objects by prefix, as JSON.
        answers: canned answers by `METHOD path`, taken before anything else; a list is used up.
        requests: what came in.
        operation: what writes answer with, besides id and reference.
    """

    url: str = ""
    zones: dict[str, str] = field(
        default_factory=lambda: {"at-vie-2": "/v2", "ch-gva-2": "/z/ch-gva-2/v2"}
    )
    models: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    deployments: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)
    requests: list[Recorded] = field(default_factory=list)
    operation: dict[str, Any] = field(default_factory=lambda: {"state": "success"})
    logs: list[dict[str, Any]] = field(default_factory=list)
    chat_headers: dict[str, str] = field(default_factory=dict)

    @property
    def lines(self) -> list[str]:
        return [request.line for request in self.requests]

    @property
    def endpoint(self) -> str:
        return f"{self.url}/v2"

    def add_model(self, name: str, *, prefix: str = "/v2", **more: Any) -> dict[str, Any]:
        model = {
            "id": str(uuid.uuid4()),
            "name": name,
            "state": "ready",
            "model-size": 16069713920,
            "created-at": TIME,
            "updated-at": TIME,
        } | {key.replace("_", "-"): value for key, value in more.items()}
        self.models.setdefault(prefix, []).append(model)
        return model

    def add_deployment(self, name: str, *, prefix: str = "/v2", **more: Any) -> dict[str, Any]:
        deployment_id = more.pop("id", None) or str(uuid.uuid4())
        deployment = {
            "id": deployment_id,
            "name": name,
            "state": "ready",
            "gpu-type": "gpua5000",
            "gpu-count": 2,
            "replicas": 1,
            "service-level": "pro",
            "deployment-url": f"{self.url}/inference/{deployment_id}/v1",
            "model": {"id": "39791b86-f80d-41ed-9cab-854099d4ed37", "name": "org/m1"},
            "created-at": TIME,
            "updated-at": TIME,
            "visibility": "private",
        } | {key.replace("_", "-"): value for key, value in more.items()}
        self.deployments.setdefault(prefix, []).append(deployment)
        return deployment

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        """Return status and body for one request."""
        canned = self.answers.get(f"{method} {path}")
        if isinstance(canned, list):
            canned = canned.pop(0) if len(canned) > 1 else canned[0]
        if callable(canned):
            canned = canned(body)
        if canned is not None:
            return canned
        if path == "/v2/zone":
            zones = [
                {"name": name, "api-endpoint": self.url + prefix}
                for name, prefix in self.zones.items()
            ]
            return 200, {"zones": zones}
        for prefix in sorted(self.zones.values(), key=len, reverse=True):
            if path.startswith(prefix + "/"):
                return self._in_zone(method, prefix, path.removeprefix(prefix), body)
        return 404, {"message": f"no route {method} {path}"}

    def _in_zone(self, method: str, prefix: str, path: str, body: Any) -> tuple[int, Any]:
        match path.strip("/").split("/"):
            case ["ai", "model"] if method == "GET":
                return 200, {"models": self.models.get(prefix, [])}
            case ["ai", "deployment"] if method == "GET":
                brief = ("state-details", "inference-engine-parameters", "inference-engine-version")
                listed = [
                    {key: value for key, value in item.items() if key not in brief}
                    for item in self.deployments.get(prefix, [])
                ]
                return 200, {"deployments": listed}
            case ["ai", "model"]:
                return self._operation(self.add_model(body["name"], prefix=prefix)["id"])
            case ["ai", "deployment"]:
                return self._operation(self.add_deployment(body["name"], prefix=prefix)["id"])
            case ["ai", "model" | "deployment" as kind, object_id]:
                return self._one(method, prefix, kind, object_id)
            case ["ai", "deployment", object_id, "scale"]:
                return self._operation(object_id)
            case ["ai", "deployment", object_id, "api-key"]:
                return 200, {"api-key": f"sk-rig-{object_id[:8]}"}
            case ["ai", "deployment", _, "logs"]:
                return 200, {"logs": self.logs}
            case ["ai", "instance-type"]:
                families = [("gpua5000", True), ("gpurtx6000pro", False)]
                return 200, {
                    "instance-types": [{"family": f, "authorized": a} for f, a in families]
                }
            case ["ai", "help", "inference-engine-parameters"]:
                return 200, {"parameters": PARAMETERS}
            case ["ai", "status"]:
                return 200, {"version": "0.0.0"}
            case ["operation", operation_id]:
                return 200, {"id": operation_id, "state": "success"}
        return 404, {"message": f"no route {method} {path}"}

    def _one(self, method: str, prefix: str, kind: str, object_id: str) -> tuple[int, Any]:
        listed = (self.models if kind == "model" else self.deployments).setdefault(prefix, [])
        found = [item for item in listed if item["id"] == object_id]
        if not found:
            return 404, {"title": f"No such {kind}", "detail": object_id, "message": "x"}
        if method == "GET":
            return 200, found[0]
        if method == "DELETE":
            listed.remove(found[0])
        return self._operation(object_id)

    def _operation(self, object_id: str) -> tuple[int, Any]:
        reference = {"id": object_id, "link": f"/v2/x/{object_id}", "command": "get"}
        return 200, {"id": str(uuid.uuid4()), "reference": reference, **self.operation}


def _handler(api: FakeApi) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # or each answer waits 40 ms for a delayed ACK

        def handle_any(self) -> None:
            url = urlsplit(self.path)
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = json.loads(raw) if raw else None
            headers = {name.lower(): value for name, value in self.headers.items()}
            api.requests.append(
                Recorded(self.command, url.path, parse_qs(url.query), body, headers)
            )
            if url.path.endswith("/v1/models") and "models served" in api.answers:
                self._send(200, api.answers["models served"])
                return
            if url.path.endswith("/chat/completions"):
                self._chat()
                return
            status, answer = api.answer(self.command, url.path, body)
            self._send(status, answer)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any  # noqa: N815

        def _send(self, status: int, answer: Any) -> None:
            ndjson = isinstance(answer, bytes)
            data = answer if ndjson else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _chat(self) -> None:
            canned = api.answers.get("chat")
            if callable(canned):
                canned = canned(api.requests[-1].body)
            if canned is not None and not isinstance(canned, bytes):
                self._send(*canned)
                return
            events = [
                {"choices": [{"delta": {"content": piece}, "finish_reason": None}]}
                for piece in CHAT_PIECES
            ]
            events.append({"choices": [{"delta": {}, "finish_reason": "stop"}]})
            events.append({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}})
            text = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
            data = canned or (text + "data: [DONE]\n\n").encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            for name, value in api.chat_headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: object) -> None:
            pass

    return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A client that hangs up is what some tests are about."""


@contextmanager
def running_fake_api() -> Iterator[FakeApi]:
    """Serve a fake on a free port until the block ends."""
    api = FakeApi()
    server = _Server(("127.0.0.1", 0), _handler(api))
    api.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), name="fake-api")
    thread.start()
    try:
        yield api
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
