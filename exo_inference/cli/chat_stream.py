"""One streamed chat completion of an OpenAI-compatible server, over httpx.

Used by `chat` alone; the SDK speaks the control plane's API and not this one. Exceptions of httpx
are mapped here. Prompts and keys are never logged.
"""

from __future__ import annotations

import json
import reprlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from exo_inference.cli.rendering.terminal import harmless
from exo_inference.errors import (
    ApiError,
    AuthenticationFailed,
    ConnectionFailed,
    ExoError,
    UsageError,
)
from exo_inference.line_splitter import lines_of

if TYPE_CHECKING:
    import httpx

CONNECT_SECONDS = 10.0
SILENCE_SECONDS = 600.0
"""Longest pause between two pieces of an answer; a long prompt may take minutes before the first."""
MAX_EVENT_BYTES = 16 << 20
"""A server that sends a longer event is not listened to."""
MAX_REFUSAL_BYTES = 1 << 20
"""What is read of an error, or of a list of models."""
MAX_ERROR = 2000
"""Characters of a server's error that are shown."""


@dataclass(frozen=True)
class ChatEndpoint:
    """Where and as whom to ask.

    Attributes:
        url: base URL, ending in `/v1`.
        key: Bearer key.
        model: the name the server knows its model by.
        deployment, deployment_id: name and id of what is asked.
    """

    url: str
    key: str = field(repr=False)
    model: str
    deployment: str = ""
    deployment_id: str = ""


class ModelNotServed(ApiError):
    """The server has another model than the one asked for."""


@dataclass(frozen=True)
class JsonSchema:
    """What an answer must keep to.

    Attributes:
        name: for the server's messages.
        schema: as in the file.
    """

    name: str
    schema: dict[str, Any]

    @property
    def response_format(self) -> dict[str, Any]:
        """As OpenAI's API has it."""
        named = {"name": self.name, "schema": self.schema, "strict": True}
        return {"type": "json_schema", "json_schema": named}


@dataclass(frozen=True)
class Tools:
    """What the model may call, as OpenAI's API has it.

    Attributes:
        functions: each with `type` and `function`.
        choice: whether and which; None leaves it to the server.
    """

    functions: tuple[dict[str, Any], ...]
    choice: str | dict[str, Any] | None = None


@dataclass
class Call:
    """A function that the model calls, filled in while it comes; servers send one after the other."""

    index: object
    name: str = ""
    arguments: str = ""

    def shown(self) -> dict[str, Any]:
        """Return it as programs read it; arguments are the text that the model wrote."""
        return {"name": self.name, "arguments": self.arguments}


@dataclass(frozen=True)
class ChatOptions:
    """How to generate; None leaves it to the server."""

    max_tokens: int | None = None
    temperature: float | None = None
    schema: JsonSchema | None = None
    tools: Tools | None = None

    def fields(self) -> dict[str, Any]:
        """Return those of a request that they set."""
        found: dict[str, Any] = {"max_tokens": self.max_tokens, "temperature": self.temperature}
        if self.schema is not None:
            found["response_format"] = self.schema.response_format
        if self.tools is not None:
            found |= {"tools": list(self.tools.functions), "tool_choice": self.tools.choice}
        return {name: value for name, value in found.items() if value is not None}


@dataclass
class Reply:
    """An answer, filled in while it comes.

    Attributes:
        text: what has come so far.
        calls: of functions, in their order.
        finish_reason: why it ended, as the server says.
        num_prompt_tokens, num_completion_tokens: the server's count, None where it gives none.
        held: seconds that the gateway held the question for a replica, as it says; empty where it did not.
        started, first_piece, ended: moments on the monotonic clock; None where not reached.
    """

    text: str = ""
    calls: list[Call] = field(default_factory=list)
    finish_reason: str | None = None
    num_prompt_tokens: int | None = None
    num_completion_tokens: int | None = None
    held: str = ""
    started: float = field(default_factory=time.monotonic)
    first_piece: float | None = None
    ended: float | None = None

    def statistics(self) -> str:
        """Return time to first token, tokens and tokens per second in one line."""
        if self.first_piece is None or self.ended is None:
            return "no token was generated"
        parts = [f"TTFT {self.first_piece - self.started:.2f} s"]
        count = self.num_completion_tokens
        if count is not None:
            parts.append(f"{count} tokens")
            generating = self.ended - self.first_piece
            if count > 1 and generating > 0:
                parts.append(f"{(count - 1) / generating:.1f} tokens/s")
        if self.num_prompt_tokens is not None:
            parts.append(f"prompt {self.num_prompt_tokens} tokens")
        if self.held:
            parts.append(f"waited {self.held} s for a replica")
        return ", ".join(parts)


def stream_chat(
    endpoint: ChatEndpoint,
    messages: Sequence[dict[str, str]],
    options: ChatOptions,
    reply: Reply,
) -> Iterator[str]:
    """Yield the pieces of an answer as they come.

    Args:
        endpoint: the server.
        messages: the conversation, ending with the question.
        options: how to generate.
        reply: filled in on the way.

    Raises:
        ModelNotServed: the server does not know the model by that name.
        ApiError: the server refused.
        ConnectionFailed: it could not be reached, or hung up in the middle.
    """
    import httpx

    body: dict[str, Any] = {
        "model": endpoint.model,
        "messages": list(messages),
        "stream": True,
        "stream_options": {"include_usage": True},
        **options.fields(),
    }
    timeout = httpx.Timeout(CONNECT_SECONDS, read=SILENCE_SECONDS)
    headers = {"Authorization": f"Bearer {endpoint.key}", "Content-Type": "application/json"}
    url = f"{endpoint.url.rstrip('/')}/chat/completions"
    content = _encode(body)
    reply.started = time.monotonic()
    try:
        with httpx.stream("POST", url, content=content, headers=headers, timeout=timeout) as answer:
            if answer.status_code != 200:
                raise _refusal(answer, endpoint)
            reply.held = harmless(answer.headers.get("x-exo-held-seconds", ""))[:16]
            yield from _pieces(answer, reply)
    except (httpx.HTTPError, httpx.InvalidURL) as exc:
        what = "the answer broke off" if reply.text else f"cannot reach {endpoint.url}"
        raise ConnectionFailed(
            f"asking the model: {what}: {str(exc) or type(exc).__name__}",
            hint=way_in(endpoint.url) or "Run `exo dedicated-inference status`.",
        ) from exc
    finally:
        reply.ended = time.monotonic()


def read_served_model(endpoint: ChatEndpoint) -> str:
    """Return the name of a model that the server has; empty where it does not say."""
    import httpx

    headers = {"Authorization": f"Bearer {endpoint.key}"}
    url = f"{endpoint.url.rstrip('/')}/models"
    try:
        with httpx.stream("GET", url, headers=headers, timeout=CONNECT_SECONDS) as answer:
            first = json.loads(_beginning(answer))["data"][0]["id"]
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, LookupError, TypeError, RecursionError):
        return ""
    return first if isinstance(first, str) else ""


def through(base_url: str, url: str) -> str:
    """Return a deployment's URL on the gateway that is reached at another address.

    Raises:
        UsageError: the base is no URL of a gateway.
    """
    base = urlsplit(base_url)
    if base.scheme not in ("http", "https") or not base.netloc or base.query or base.fragment:
        raise UsageError(
            f"--base-url is {base_url[:256]!r}, expected http://HOST[:PORT]",
            hint="For a gateway that `kubectl port-forward` brought here: --base-url http://127.0.0.1:8081",
        )
    return f"{base_url.rstrip('/')}{urlsplit(url).path}"


def way_in(url: str) -> str:
    """Return how to reach a gateway that has only the name of its Service; empty for any other."""
    service, _, rest = (urlsplit(url).hostname or "").partition(".")
    namespace, _, suffix = rest.partition(".")
    if suffix not in ("svc", "svc.cluster.local"):
        return ""
    port = urlsplit(url).port or 80
    return (
        f"That name is known inside the cluster alone. Run `kubectl -n {namespace} port-forward service/{service} "
        f"8081:{port}` and add `--base-url http://127.0.0.1:8081`; for good, set gateway.publicUrl of the chart."
    )


def _encode(body: dict[str, Any]) -> bytes:
    """Return a request as JSON; what was typed may be no text in UTF-8, and stays in it as escapes.

    Raises:
        UsageError: a file holds what is not sent, as a schema that is nested too deeply.
    """
    try:
        return json.dumps(body, allow_nan=False).encode()
    except (ValueError, RecursionError) as exc:
        raise UsageError(f"the question cannot be sent as JSON: {exc}") from exc


def _beginning(answer: httpx.Response) -> bytes:
    """Return what is read of an answer that is no stream."""
    body = bytearray()
    for part in answer.iter_bytes():
        body += part
        if len(body) > MAX_REFUSAL_BYTES:
            break
    return bytes(body[:MAX_REFUSAL_BYTES])


def _pieces(answer: httpx.Response, reply: Reply) -> Iterator[str]:
    """Read server-sent events until `[DONE]`; what has not the form of an answer is passed over."""
    for line in lines_of(answer.iter_bytes(), max_bytes=MAX_EVENT_BYTES):
        if not line.startswith("data:"):
            continue
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            return
        event = _decode(data)
        if "error" in event:
            raise ExoError(f"the engine failed while it answered: {_error_text(event['error'])}")
        _take_usage(event, reply)
        choices = event.get("choices")
        for choice in choices if isinstance(choices, list) else []:
            piece = _take_choice(choice, reply)
            if piece:
                reply.text += piece
                yield piece
    if reply.finish_reason is None:
        raise ConnectionFailed(
            "asking the model: the answer broke off before its end", hint="Ask again."
        )


def _take_choice(choice: Any, reply: Reply) -> str:
    """Take what an event says of one answer; return its text."""
    if not isinstance(choice, dict):
        return ""
    reason, delta = choice.get("finish_reason"), choice.get("delta")
    if isinstance(reason, str):
        reply.finish_reason = reason or reply.finish_reason
    if not isinstance(delta, dict):
        return ""
    piece, calls = delta.get("content"), delta.get("tool_calls")
    if (piece or calls) and reply.first_piece is None:
        reply.first_piece = time.monotonic()
    _take_calls(calls, reply)
    return _piece(piece)


def _piece(value: Any) -> str:
    """Return a piece of text; none for what is no text."""
    return value if isinstance(value, str) else ""


def _take_calls(deltas: Any, reply: Reply) -> None:
    """Put pieces of calls behind those that have come; `index` says of which."""
    for delta in deltas if isinstance(deltas, list) else []:
        function = delta.get("function") if isinstance(delta, dict) else None
        if not isinstance(function, dict):
            continue
        if not reply.calls or delta.get("index", 0) != reply.calls[-1].index:
            reply.calls.append(Call(delta.get("index", 0)))
        reply.calls[-1].name += _piece(function.get("name"))
        reply.calls[-1].arguments += _piece(function.get("arguments"))


def _decode(data: str) -> dict[str, Any]:
    try:
        event = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise ExoError(f"asking the model: expected a JSON event, found {data[:80]!r}") from exc
    return event if isinstance(event, dict) else {}


def _take_usage(event: dict[str, Any], reply: Reply) -> None:
    usage = event.get("usage")
    if isinstance(usage, dict):
        reply.num_prompt_tokens = _count(usage.get("prompt_tokens"), reply.num_prompt_tokens)
        reply.num_completion_tokens = _count(
            usage.get("completion_tokens"), reply.num_completion_tokens
        )


def _count(value: Any, before: int | None) -> int | None:
    """Return a number of tokens, else the one before: servers are foreign."""
    return value if type(value) is int and 0 <= value < 2**53 else before


def _refusal(answer: httpx.Response, endpoint: ChatEndpoint) -> ApiError:
    """Return the error that an answer of 400 and above stands for."""
    body = _beginning(answer)
    try:
        error = json.loads(body).get("error")
    except (ValueError, AttributeError, RecursionError):
        error = body[:256].decode("utf-8", "replace")
    kind = AuthenticationFailed if answer.status_code in (401, 403) else ApiError
    hint = None
    if answer.status_code == 404:
        kind = ModelNotServed if _is_about_model(error) else ApiError
        hint = f"Run `exo dedicated-inference deployment show {endpoint.deployment}`."
    message = f"asking the model: {answer.reason_phrase}: {_error_text(error)}"
    return kind(message, status_code=answer.status_code, hint=hint)


def _is_about_model(error: object) -> bool:
    """Whether a 404 is about the model: vLLM says NotFoundError with `param` model, others a code."""
    if not isinstance(error, dict):
        return False
    return error.get("code") == "model_not_found" or error.get("param") == "model"


def _error_text(error: object) -> str:
    if isinstance(error, dict):
        error = error.get("message") or error
    text = error if isinstance(error, str) else reprlib.repr(error)
    return text if len(text) <= MAX_ERROR else f"{text[:MAX_ERROR]}…"
