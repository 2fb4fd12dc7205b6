"""Streams stay as they are, byte for byte, but for the one usage event nobody asked for."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exo_inference.gateway import answer_usage
from exo_inference.gateway.answer_usage import Tokens, UsageReader, ask_for_usage, tokens_of_answer
from exo_inference.gateway.errors import RequestRefused

TEXT = (
    b'data: {"choices":[{"delta":{"content":"the \\"usage\\" of it"}}],"usage":null}\n\n'
    b": a comment\n\n"
    b'event: x\r\ndata: {"choices":[{"index":0}]}\r\n\r\n'
    b'data: "usage" that is no json {\n\n'
)
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":5}}\n\n'
DONE = b"data: [DONE]\n\n"


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(p % (len(data) + 1) for p in places), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


@settings(deadline=None)
@given(st.lists(st.integers(0, 1000), max_size=12))
def test_exactly_the_usage_event_is_removed_however_the_bytes_are_cut(places):
    reader = UsageReader(strip=True)
    passed = b"".join(reader.feed(part) for part in cut(TEXT + USAGE + DONE, places))
    assert passed + reader.finish() == TEXT + DONE
    assert reader.tokens == Tokens(7, 5)


@settings(deadline=None)
@given(st.lists(st.integers(0, 1000), max_size=12))
def test_without_strip_every_chunk_passes_at_once(places):
    reader = UsageReader(strip=False)
    for part in cut(TEXT + USAGE + DONE, places):
        assert reader.feed(part) == part
    assert reader.finish() == b""
    assert reader.tokens == Tokens(7, 5)


def test_usage_next_to_choices_is_counted_and_kept():
    event = b'data: {"choices":[{"index":0}],"usage":{"prompt_tokens":1,"completion_tokens":2}}\n\n'
    reader = UsageReader(strip=True)
    assert reader.feed(event) == event
    assert reader.tokens == Tokens(1, 2)


def test_stream_that_ends_inside_an_event_is_passed_on_whole():
    reader = UsageReader(strip=True)
    assert reader.feed(b"data: {") == b""
    assert reader.finish() == b"data: {"


def test_endless_event_is_not_kept_in_memory():
    reader = UsageReader(strip=True)
    block = b"x" * (1 << 20)
    passed = sum(len(reader.feed(block)) for _ in range(64))
    assert passed + len(reader.finish()) == 64 << 20
    assert passed >= 56 << 20


def test_streaming_request_asks_for_usage_and_keeps_every_other_byte():
    body = b'{"model":"m", "stream":true, "seed": 12345678901234567890, "x": 1.50}'
    changed, strip = ask_for_usage(body)
    assert strip
    assert changed == b'{"stream_options":{"include_usage":true},' + body[1:]
    assert json.loads(changed)["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize(
    "options", ["null", "{}", '{"include_usage":false}', '{"continuous_usage_stats":true}']
)
def test_own_stream_options_are_completed(options):
    changed, strip = ask_for_usage(b'{"stream":true,"stream_options":%s}' % options.encode())
    assert strip
    assert json.loads(changed)["stream_options"] == {
        **(json.loads(options) or {}),
        "include_usage": True,
    }


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(rb'{"\u0073tream": true}', id="escaped key"),
        pytest.param(rb'{"str\u0065am": true, "stream_options": null}', id="escaped, options"),
        pytest.param('{"stream": true}'.encode("utf-16"), id="utf-16"),
        pytest.param('{"stream": true}'.encode("utf-32-le"), id="utf-32"),
        pytest.param(b'\xef\xbb\xbf{"stream": true}', id="byte order mark"),
        pytest.param(b'{"stream": false, "stream": true}', id="twice"),
        pytest.param(b'{"stream": 1}', id="a number that pydantic takes"),
        pytest.param(b'{"stream": "True"}', id="a text that pydantic takes"),
    ],
)
def test_no_spelling_of_a_stream_escapes_the_count(body):
    changed, strip = ask_for_usage(body)
    assert strip
    assert json.loads(changed)["stream_options"] == {"include_usage": True}
    assert json.loads(changed)["stream"] == json.loads(body)["stream"]


def test_stream_cut_off_counts_the_texts_that_passed():
    reader = UsageReader(strip=True)
    reader.feed(b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n')
    assert reader.estimate() is None
    reader.feed(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n' * 2)
    reader.feed(b'data: {"choices": [{"text": "b \\"content\\":"}]}\n\ndata: {"half')
    assert reader.estimate() == Tokens(0, 3)
    reader.feed(b'"}\n\n' + USAGE)
    assert reader.estimate() == Tokens(7, 5)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b'{"stream":', id="not json"),
        pytest.param(b'["stream"]', id="not an object"),
        pytest.param(b'{"stream":false}', id="no stream"),
        pytest.param(b'{"stream":"maybe"}', id="the engine refuses it"),
        pytest.param(b'{"stream":true,"stream_options":"x"}', id="bad options"),
        pytest.param(
            b'{"stream":true,"stream_options":{"include_usage":true}}', id="asked already"
        ),
        pytest.param(b'{"prompt":"what is \\"stream\\"?"}', id="only in the text"),
        pytest.param(b"[" * 100_000 + b'"stream"', id="deeply nested"),
    ],
)
def test_other_requests_stay_as_they_are(body):
    assert ask_for_usage(body) == (body, False)


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        (b'{"usage":{"prompt_tokens":3,"completion_tokens":4}}', Tokens(3, 4)),
        (b'{"usage":{"prompt_tokens":3}}', Tokens(3, 0)),
        (b'{"usage":{"prompt_tokens":true}}', None),
        (b'{"usage":null}', None),
        (b'{"text":"usage"}', None),
        (b'[{"usage":1}]', None),
        (b'"usage', None),
    ],
)
def test_tokens_of_a_whole_answer(body, tokens):
    assert tokens_of_answer(body) == tokens


@pytest.mark.parametrize(
    "values",
    [
        pytest.param(b"{}," * 1_000_000, id="objects"),
        pytest.param(b"0," * 2_100_000, id="numbers"),
        pytest.param(b"[" * 1_100_000, id="nested"),
    ],
)
def test_request_of_millions_of_values_is_refused_before_it_is_parsed(values, monkeypatch):
    monkeypatch.setattr(json, "loads", lambda *_: pytest.fail("it was parsed"))
    with pytest.raises(RequestRefused) as refusal:
        ask_for_usage(b'{"stream":true,"x":[' + values + b"0]}")
    assert (refusal.value.status, refusal.value.code) == (400, "request_too_large")


def test_long_text_with_many_commas_is_no_reason_to_refuse():
    body = b'{"stream":true,"prompt":"' + b"1,234," * 900_000 + b'"}'
    changed, strip = ask_for_usage(body)
    assert strip
    assert changed.endswith(body[1:])


@pytest.mark.parametrize("size", [10, 3 << 20])
def test_usage_of_an_answer_is_found_whatever_its_size(size):
    text = 'it says \\"usage\\": {\\"prompt_tokens\\": 1}' + "x" * size
    answer = '{"choices":[{"text":"' + text + '"}],"usage":{"prompt_tokens":7,'
    answer += (
        '"prompt_tokens_details":{"cached_tokens":0},"completion_tokens":5},"x":{"y":"usage"}}'
    )
    assert tokens_of_answer(answer.encode()) == Tokens(7, 5)


@pytest.mark.parametrize("is_first", [True, False])
def test_usage_of_a_ranking_is_its_own_whatever_its_documents_say(is_first):
    text = '"usage": {"prompt_tokens": 1} \\"usage\\": {"prompt_tokens": 2} \\' + "x" * 70_000
    results = [{"index": i, "relevance_score": 0.5, "document": {"text": text}} for i in range(9)]
    usage = {"usage": {"prompt_tokens": 700, "total_tokens": 700}}
    parts = [usage, {"results": results}]
    answer = {"id": "rerank-1"} | parts[not is_first] | parts[is_first]
    assert tokens_of_answer(json.dumps(answer).encode()) == Tokens(700, 0)


def test_no_field_that_a_client_chose_lowers_the_usage_of_a_long_answer():
    """`/v1/responses` repeats the tools of its request."""
    chosen = {"properties": {"usage": {"prompt_tokens": 0, "completion_tokens": 0}}}
    usage = {"input_tokens": 7, "output_tokens": 5}
    answer = {"usage": usage, "tools": [chosen], "output": "x" * (1 << 20)}
    assert tokens_of_answer(json.dumps(answer).encode()) == Tokens(7, 5)


def test_long_answer_is_not_parsed_as_a_whole(monkeypatch):
    monkeypatch.setattr(json, "loads", lambda *_: pytest.fail("it was parsed"))
    answer = (
        b'{"x":[' + b"{}," * 1_000_000 + b'{}],"usage":{"prompt_tokens":7,"completion_tokens":5}}'
    )
    assert tokens_of_answer(answer) == Tokens(7, 5)


@pytest.mark.parametrize("answer", [b'{"usage":' + b"[" * 100_000, b'"usage"', b'{"usage":{"a":'])
def test_answer_that_is_not_understood_names_no_usage(answer):
    assert tokens_of_answer(answer) is None
    assert tokens_of_answer(b" " * (2 << 20) + answer) is None


RESPONSES = (
    b'event: response.created\ndata: {"type":"response.created","response":{"usage":null}}\n\n'
    b'event: response.output_text.delta\ndata: {"delta":"Hi"}\n\n'
    b'event: response.completed\ndata: {"response":{"output":[],"usage":{"input_tokens":7,'
    b'"input_tokens_details":{"cached_tokens":4},"output_tokens":5}}}\n\n'
)
MESSAGES = (
    b'event: message_start\ndata: {"message":{"usage":{"input_tokens":3,"cache_read_input_tokens":4,'
    b'"output_tokens":0}}}\n\n'
    b'event: content_block_delta\ndata: {"delta":{"type":"text_delta","text":"Hi"}}\n\n'
    b'event: message_delta\ndata: {"delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":5}}\n\n'
)


@pytest.mark.parametrize("stream", [RESPONSES, MESSAGES], ids=["responses", "messages"])
def test_usage_of_other_forms_is_counted_and_their_streams_stay_as_they_are(stream):
    reader = UsageReader(strip=True)
    assert reader.feed(stream) + reader.finish() == stream
    assert reader.tokens == Tokens(7, 5)


@pytest.mark.parametrize(
    "usage",
    [
        b'{"input_tokens":7,"input_tokens_details":{"cached_tokens":4},"output_tokens":5}',
        b'{"input_tokens":3,"cache_read_input_tokens":4,"output_tokens":5}',
    ],
)
@pytest.mark.parametrize("filler", [0, 1 << 20])
def test_usage_of_other_forms_is_found_in_whole_answers(usage, filler):
    assert tokens_of_answer(b'{"usage":%s,"text":"%s"}' % (usage, b"x" * filler)) == Tokens(7, 5)


def test_answer_of_another_form_that_is_cut_counts_the_texts_that_passed():
    reader = UsageReader(strip=False)
    reader.feed(RESPONSES[: RESPONSES.index(b"event: response.completed")])
    assert reader.estimate() == Tokens(0, 1)


def test_a_stream_that_tells_its_prompt_first_counts_the_texts_that_passed_when_it_is_cut():
    """`message_start` names a token of the answer, or none, however long the answer gets."""
    begin, text, end = (event + b"\n\n" for event in MESSAGES.split(b"\n\n")[:3])
    reader = UsageReader(strip=False)
    reader.feed(begin)
    assert (reader.estimate(), reader.is_estimate) == (Tokens(7, 0), True)
    reader.feed(text * 4)
    assert (reader.estimate(), reader.is_estimate) == (Tokens(7, 4), True)
    reader.feed(end)
    assert (reader.estimate(), reader.is_estimate) == (Tokens(7, 5), False)


@pytest.mark.parametrize(
    ("event", "is_last"),
    [
        (b"data: [DONE]", True),
        (b"data:[DONE]\r", True),
        (b'event: message_stop\ndata: {"type":"message_stop"}', True),
        (b'event: response.completed\ndata: {"response":{}}', True),
        (b'event: response.output_text.done\ndata: {"text":"data: [DONE]"}', False),
        (b'data: {"choices":[{"delta":{"content":"event: message_stop"}}]}', False),
    ],
)
def test_the_last_event_of_a_stream_is_known(event, is_last):
    reader = UsageReader(strip=True)
    reader.feed(event + b"\n\n")
    assert reader.has_ended is is_last


LONG = (
    b'event: response.completed\ndata: {"response":{"metadata":{"x":"%s","usage":{"input_tokens":0}},'
    b'"usage":{"input_tokens":7,"output_tokens":5}}}\n\n' % (b"a" * (6 << 20))
)


@pytest.mark.parametrize("strip", [False, True])
def test_usage_of_an_event_that_is_too_long_to_be_held_is_counted(strip):
    reader = UsageReader(strip=strip)
    parts = [LONG[at : at + 65536] for at in range(0, len(LONG), 65536)]
    passed = b"".join(map(reader.feed, parts)) + reader.feed(DONE)
    assert passed + reader.finish() == LONG + DONE
    assert reader.tokens == Tokens(7, 5)


def test_no_byte_of_a_long_event_is_looked_at_again_for_its_end(monkeypatch):
    looked_at = 0

    class Counting:
        def finditer(self, data):
            nonlocal looked_at
            looked_at += len(data)
            return iter(())

    monkeypatch.setattr(answer_usage, "_EVENT_END", Counting())
    reader = UsageReader(strip=False)
    for _ in range(100):
        reader.feed(b"x" * 4000)
    assert looked_at < 2 * 100 * 4000


@pytest.mark.parametrize("filler", [0, 1 << 20])
def test_counts_below_nothing_are_none(filler):
    body = b'{"usage":{"prompt_tokens":-7,"completion_tokens":5},"x":"%s"}' % (b"x" * filler)
    assert tokens_of_answer(body) is None


NO_COUNTS = [
    pytest.param(b"9" * 4300, id="the most digits that json reads"),
    pytest.param(b"9" * 4301, id="more digits than json reads"),
    pytest.param(b"1000000000", id="more than a request can be"),
    pytest.param(b"%d" % (answer_usage.MAX_TOKENS + 1), id="one more than it can be"),
    pytest.param(b"-1", id="negative"),
    pytest.param(b"NaN", id="nan"),
    pytest.param(b"-Infinity", id="infinity"),
    pytest.param(b"1e400", id="infinity as a number"),
    pytest.param(b"7.0", id="fraction"),
    pytest.param(b"true", id="boolean"),
    pytest.param(b'"7"', id="text"),
    pytest.param(b"[7]", id="list"),
    pytest.param(b'{"n":7}', id="object"),
]
USAGES = [
    pytest.param(b'{"prompt_tokens":%s,"completion_tokens":5}', id="OpenAI"),
    pytest.param(b'{"input_tokens":%s,"output_tokens":5}', id="responses"),
]


@pytest.mark.parametrize("filler", [0, 1 << 20])
@pytest.mark.parametrize("usage", USAGES)
@pytest.mark.parametrize("count", NO_COUNTS)
def test_a_count_that_no_request_can_have_is_none(count, usage, filler):
    body = b'{"usage":%s,"x":"%s"}' % (usage % count, b"x" * filler)
    assert tokens_of_answer(body) is None


@pytest.mark.parametrize("filler", [0, 5 << 20], ids=["short", "long"])
@pytest.mark.parametrize("usage", USAGES)
@pytest.mark.parametrize("count", NO_COUNTS)
def test_a_count_that_no_stream_can_have_is_none(count, usage, filler):
    reader = UsageReader(strip=False)
    reader.feed(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n')
    reader.feed(b'data: {"x":"%s","usage":%s}\n\n' % (b"x" * filler, usage % count))
    assert reader.estimate() == Tokens(0, 1)


@pytest.mark.parametrize("usage", ['{"prompt_tokens":7,"completion_tokens":%d}', '{"input_tokens":7,"output_tokens":%d}'])  # fmt: skip
def test_of_a_count_that_is_not_believed_the_prompt_is_counted(usage):
    for count, counted in ((answer_usage.MAX_TOKENS, answer_usage.MAX_TOKENS), (10**4000, 0)):
        body = b'{"usage":%s}' % (usage % count).encode()
        assert tokens_of_answer(body) == Tokens(7, counted)


def test_counts_of_a_cache_are_bounded_with_those_of_the_prompt():
    half = answer_usage.MAX_TOKENS // 2
    usage = {"input_tokens": half, "cache_read_input_tokens": half, "output_tokens": 5}
    assert answer_usage.tokens_of(usage) == Tokens(2 * half, 5)
    assert answer_usage.tokens_of({**usage, "cache_creation_input_tokens": 1}) is None


def test_later_events_of_a_message_do_not_raise_its_count_beyond_the_bound():
    reader = UsageReader(strip=False)
    reader.feed(MESSAGES.replace(b'{"output_tokens":5}', b'{"output_tokens":1000000000}'))
    assert reader.tokens == Tokens(7, 0)


def test_a_field_that_a_client_chose_raises_the_usage_of_a_long_answer_within_the_bound():
    """`/v1/responses` repeats the tools of its request, with counts of thousands of digits if they have them."""
    chosen = {"properties": {"usage": {"input_tokens": 10**4000, "output_tokens": 10**9}}}
    usage = {"input_tokens": 7, "output_tokens": 5}
    answer = {"usage": usage, "tools": [chosen], "output": "x" * (1 << 20)}
    assert tokens_of_answer(json.dumps(answer).encode()) == Tokens(7, 5)


@settings(deadline=None)
@given(st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["prompt_tokens", "input_tokens", "output_tokens", "a"]), inner)))  # fmt: skip
def test_whatever_an_engine_says_its_doubted_counts_are_told_in_short(usage):
    doubts: list[str] = []
    tokens = answer_usage.tokens_of(usage, doubts.append)
    assert tokens is None or max(tokens.prompt, tokens.completion) <= answer_usage.MAX_TOKENS
    assert all(len(doubt) < 1000 and doubt.isprintable() for doubt in doubts)
