"""Reads token usage out of answers as they pass, and asks engines for it where clients did not.

Pure: bytes in, bytes out. Nothing of the text is kept. An engine names usage in the last event of a
stream only when the request says `stream_options.include_usage`; `ask_for_usage` adds that, and
`UsageReader(strip=True)` removes the one event that the client did not ask for. What an engine says is not
believed beyond what a request can be (`MAX_TOKENS`): engines are foreign, and answers repeat what clients sent.
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from exo_inference.gateway import errors
from exo_inference.gateway.uploads import MAX_BODY_BYTES

MAX_TOKENS = MAX_BODY_BYTES
"""No more are believed of one prompt, nor of one answer.

A request has at most so many bytes, and a token of a text takes one or more; it is three times the longest
context there is. A count beyond is not counted, and neither is one that is no whole number.
"""

MAX_WEIGHT = 2_000_000
"""Of a request that has to be parsed: commas, and brackets and braces doubly, which cost more memory each.

Parsing holds up everybody's requests, and 32 MiB of `{},` take seconds and most of a gigabyte. A prompt of a
million tokens has room.
"""

_PARSED_BYTES = 256 << 10
"""An answer longer than this is searched for its usage, and not parsed."""

_MAX_USAGE_BYTES = 4 << 10
_USAGE = re.compile(rb'"usage"\s*:\s*(\{(?:[^{}"]++|"[^"\\]*+"|\{[^{}]*+\})*+\})')
_EVENT_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_LINE_END = re.compile(rb"\r\n|\n|\r")
_TEXT = re.compile(
    rb'"(?:content|text|reasoning|reasoning_content|arguments|delta|thinking|partial_json)"\s*:\s*"[^"]'
)
_LAST = re.compile(
    rb"^(?:data: ?\[DONE\]|event: ?(?:message_stop|response\.(?:completed|incomplete|failed)))\s*$",
    re.MULTILINE,
)
_decode = json.JSONDecoder().decode
_END_BYTES = 3
"""So many bytes of an event's end may have come before the rest of it."""
_MAX_EVENT_BYTES = 4 << 20
"""An event longer than this is passed on as it comes and searched for its usage: `/v1/responses` repeats what
clients send, 32 MiB if they like."""


Doubt = Callable[[str], None]
"""Is told of each count that is not believed, escaped and short."""


def _ignore(_: str) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Tokens:
    """What one request used."""

    prompt: int = 0
    completion: int = 0

    @property
    def total(self) -> int:
        """Both."""
        return self.prompt + self.completion


def tokens_of(usage: Any, doubt: Doubt = _ignore) -> Tokens | None:
    """Return the counts of a `usage` object, OpenAI's or Anthropic's; None when it is not one.

    What is not believed of the answer counts nothing; where the prompt's is not believed, neither does.
    """
    if not isinstance(usage, dict):
        return None
    prompt, completion = _count(usage, "prompt_tokens", doubt), "completion_tokens"
    if prompt is None:
        completion = "output_tokens"
        # Anthropic's count leaves out what came from the prefix cache, or went there.
        parts = [f"{name}input_tokens" for name in ("", "cache_read_", "cache_creation_")]
        counts = [_count(usage, name, doubt) for name in parts]
        if counts[0] is None:
            return None
        prompt = sum(count or 0 for count in counts)
        if prompt > MAX_TOKENS:
            doubt(f"input_tokens and those of the cache: {prompt}")
            return None
    return Tokens(prompt, _count(usage, completion, doubt) or 0)


def _count(usage: dict[str, Any], name: str, doubt: Doubt) -> int | None:
    value = usage.get(name)
    if type(value) is int and 0 <= value <= MAX_TOKENS:
        return value
    if value is not None:
        doubt(f"{name}: {reprlib.repr(value)}")
    return None


def _usage_of_event(event: Any) -> Any:
    """Return the usage of an event: its own, or that of the response or message within."""
    if not isinstance(event, dict):
        return None
    for holder in (event, event.get("response"), event.get("message")):
        if isinstance(holder, dict) and isinstance(holder.get("usage"), dict):
            return holder["usage"]
    return None


def tokens_of_answer(body: bytes, doubt: Doubt = _ignore) -> Tokens | None:
    """Return the counts of a whole JSON answer; None when it names none."""
    if b'"usage"' not in body:
        return None
    if len(body) > _PARSED_BYTES:
        finder = UsageFinder(doubt)
        finder.feed(body)
        return finder.tokens
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return tokens_of(answer.get("usage"), doubt) if isinstance(answer, dict) else None


class UsageFinder:
    """Finds the usage of a long JSON answer as it passes, without keeping or parsing the rest.

    Inside a JSON text quotes are escaped, so what reads `"usage":` is a field. The highest counts: an answer may
    repeat fields that its client chose, such as a tool's schema, and nobody lowers what was used. Who raises it
    raises what is counted of their own key, by `MAX_TOKENS` a request at most.

    Attributes:
        tokens: None until there was one.
    """

    def __init__(self, doubt: Doubt = _ignore) -> None:
        self._doubt = doubt
        self._end = b""
        self.tokens: Tokens | None = None

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes."""
        data = self._end + chunk
        for found in _USAGE.finditer(data):
            try:
                tokens = tokens_of(_decode(found[1].decode()), self._doubt)
            except ValueError:
                continue
            if tokens is not None and tokens.total > (self.tokens or Tokens()).total:
                self.tokens = tokens
        self._end = data[-_MAX_USAGE_BYTES:]


def ask_for_usage(body: bytes) -> tuple[bytes, bool]:
    """Make a streaming request ask for usage.

    Every byte the client sent stays as it was, unless it sent `stream_options` itself.

    Returns:
        The body to send, and whether the client must not see the usage event.

    Raises:
        RequestRefused: 400, it has so many values that parsing it would hold others up.
    """
    # The key may be spelled with escapes, `"\\u0073tream"`, or in UTF-16, which is full of zeros.
    if b'"stream"' not in body and b"\\u" not in body and b"\0" not in body:
        return body, False
    if body.count(b",") + 2 * (body.count(b"[") + body.count(b"{")) > MAX_WEIGHT:
        raise errors.too_many_values(MAX_WEIGHT)
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        return body, False  # the engine says what is wrong with it
    if not isinstance(request, dict) or not _is_true(request.get("stream")):
        return body, False
    if "stream_options" not in request and b"\0" not in body:
        rest = body.lstrip(b" \t\r\n\xef\xbb\xbf")[1:]
        return b'{"stream_options":{"include_usage":true},' + rest, True
    options = request.get("stream_options") or {}
    if not isinstance(options, dict) or options.get("include_usage") is True:
        return body, False
    request["stream_options"] = {**options, "include_usage": True}
    return json.dumps(request, ensure_ascii=False).encode("utf-8", "surrogatepass"), True


def _is_true(value: Any) -> bool:
    """Whether an engine may take a value for true: vLLM reads booleans leniently, as pydantic."""
    if isinstance(value, str):
        return value.strip().lower() in {"true", "t", "1", "yes", "y", "on"}
    return isinstance(value, (bool, int, float)) and value == 1


class UsageReader:
    """Reads one event stream as it passes.

    Attributes:
        tokens: the last usage seen; None until there was one.
        has_ended: whether the event came that is the last of a stream.
    """

    def __init__(self, *, strip: bool, doubt: Doubt = _ignore) -> None:
        self._strip = strip
        self._doubt = doubt
        self._parts: list[bytes] = []
        """Of the event that goes on; not where it is too long."""
        self._num_bytes = 0
        self._last = b""
        """Its last bytes, which may be a part of its end."""
        self._finder: UsageFinder | None = None
        """Searches it, where it is too long."""
        self._num_texts = 0
        self._is_of_answer = False
        """Whether `tokens` are of more than the prompt, which `/v1/messages` tells at the beginning."""
        self.tokens: Tokens | None = None
        self.has_ended = False

    @property
    def is_estimate(self) -> bool:
        """Whether `estimate` returns what nobody told."""
        return not self._is_of_answer and self.estimate() is not None

    def estimate(self) -> Tokens | None:
        """Return the last usage seen, else what a stream that was cut off used at the least.

        Each event with text is one token or more; what the prompt took is not known where no event told.
        """
        if self._is_of_answer or not self._num_texts:
            return self.tokens
        told = self.tokens or Tokens()
        return Tokens(told.prompt, max(told.completion, self._num_texts))

    def feed(self, chunk: bytes) -> bytes:
        """Take the next bytes and return those to pass on now.

        Without `strip` that is always `chunk` itself. With it, an event is passed on as soon as it
        is whole, and the usage-only event never. Each byte is looked at once, however long an event is.
        """
        passed, begin, num_before = [], 0, len(self._last)
        for end in _EVENT_END.finditer(self._last + chunk):
            at = end.end() - num_before
            passed += [self._take(chunk[begin:at]), self._end()]
            begin = at
        passed.append(self._take(chunk[begin:]))
        return b"".join(passed) if self._strip else chunk

    def finish(self) -> bytes:
        """Return what was held back when the stream ended inside an event."""
        held = b"".join(self._parts)
        self._begin()
        return held if self._strip else b""

    def _begin(self) -> None:
        self._parts, self._num_bytes, self._last, self._finder = [], 0, b"", None

    def _take(self, part: bytes) -> bytes:
        """Add to the event; return what of it is passed on although it has not ended."""
        self._num_bytes += len(part)
        self._last = (self._last + part[-_END_BYTES:])[-_END_BYTES:]
        if self._finder is None:
            self._parts.append(part)
            if self._num_bytes <= _MAX_EVENT_BYTES:
                return b""
            self._finder = UsageFinder(self._doubt)
            part, self._parts = b"".join(self._parts), []
        self._finder.feed(part)
        return part

    def _end(self) -> bytes:
        """Read the event, which is whole; return what of it is passed on, of what was held."""
        event, finder = b"".join(self._parts), self._finder
        self._begin()
        if finder is not None:
            self.tokens = finder.tokens or self.tokens
            self._is_of_answer |= finder.tokens is not None
            return b""
        self.has_ended |= _LAST.search(event) is not None
        self._num_texts += _TEXT.search(event) is not None
        return b"" if self._is_usage_only(event) else event

    def _is_usage_only(self, event: bytes) -> bool:
        if b'"usage"' not in event:
            return False
        lines = (line for line in _LINE_END.split(event) if line.startswith(b"data:"))
        try:
            answer = json.loads(b"\n".join(line[5:] for line in lines))
        except (ValueError, RecursionError):
            return False
        usage = _usage_of_event(answer)
        tokens = tokens_of(usage, self._doubt)
        if tokens is None:
            num = _count(usage, "output_tokens", self._doubt) if usage is not None else None
            if num and self.tokens:  # the prompt's were in an earlier event
                self.tokens, self._is_of_answer = Tokens(self.tokens.prompt, num), True
            return False
        self.tokens, self._is_of_answer = tokens, answer.get("message") is None
        return self._strip and answer.get("choices") == []
