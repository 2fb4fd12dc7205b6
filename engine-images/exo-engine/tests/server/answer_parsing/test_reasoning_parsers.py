"""The machines for reasoning, and with calls behind it."""

from __future__ import annotations

import random

import pytest
from exo_engine.server.answer_parsing.forced import NamedCall, RequiredCalls
from exo_engine.server.answer_parsing.formats import AnswerFormat, choose_format
from exo_engine.server.answer_parsing.pieces import Arguments, Call, Content, Piece, Reasoning, join

from .corpus import TOOLS, hermes
from .test_tool_parsers import split

QWEN = AnswerFormat("hermes", "qwen3")
R1 = AnswerFormat("deepseek_v3", "deepseek_r1")
MISTRAL = AnswerFormat("mistral", "mistral")
GRANITE = AnswerFormat(None, "granite")
GPT_OSS = AnswerFormat("openai", "openai_gptoss")
OPEN, SHUT = "<|im_start|>assistant\n<think>\n", "<|im_start|>assistant\n<think>\n\n</think>\n\n"
BOTH: list[Piece] = [Reasoning("hm, 1 < 2"), Content("Hello.")]

CASES = [
    (QWEN, "", "<think>\nhm, 1 < 2\n</think>\n\nHello.", BOTH),
    (QWEN, OPEN, "hm, 1 < 2\n</think>\n\nHello.", BOTH),
    (QWEN, OPEN, "<think>\nhm, 1 < 2\n</think>\n\nHello.", BOTH),
    (QWEN, SHUT, "Hello.", [Content("Hello.")]),
    (QWEN, "", "Hello.", [Content("Hello.")]),
    (QWEN, "", "  Hello </think>", [Content("  Hello </think>")]),
    (QWEN, "", "<think>\n\n</think>\n\nHello.", [Content("Hello.")]),
    (QWEN, OPEN, "cut in the mid", [Reasoning("cut in the mid")]),
    (QWEN, OPEN, "hm</think>\n" + hermes("now", {}), [Reasoning("hm"), Call("now", "{}")]),
    (
        QWEN,
        OPEN,
        "hm</think>\nI look.\n" + hermes("now", {}),
        [Reasoning("hm"), Content("I look."), Call("now", "{}")],
    ),
    (R1, "", "hm, 1 < 2\n</think>\n\nHello.", BOTH),
    (R1, "<｜Assistant｜></think>", "Hello.", [Content("Hello.")]),
    (R1, "", "never ends", [Reasoning("never ends")]),
    (MISTRAL, "", "[THINK]hm, 1 < 2[/THINK]Hello.", BOTH),
    (MISTRAL, "", "[THINK]hm[/THINK][TOOL_CALLS]now[ARGS]{}", [Reasoning("hm"), Call("now", "{}")]),
    (GRANITE, "", "Here is my thought process: hm, 1 < 2 Here is my response: Hello.", BOTH),
    (GRANITE, "", "Here's my thought process:\nhm, 1 < 2\nHere's my response:\nHello.", BOTH),
    (GRANITE, "", "Here is another thing", [Content("Here is another thing")]),
    (
        GPT_OSS,
        "<|start|>assistant",
        "<|channel|>analysis<|message|>hm, 1 < 2<|end|><|start|>assistant<|channel|>final<|message|>Hello.",
        BOTH,
    ),
    (
        GPT_OSS,
        "<|start|>assistant<|channel|>analysis<|message|>",
        "hm, 1 < 2<|end|>",
        [Reasoning("hm, 1 < 2")],
    ),
    (
        GPT_OSS,
        "<|start|>assistant",
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}<|call|>",
        [Reasoning("a\nb"), Call("now", "{}")],
    ),
]


def run(form: AnswerFormat, prompt: str, parts: list[str]) -> list[Piece]:
    parser = form.parser(prompt=prompt, tools=TOOLS)
    assert parser is not None
    return join([piece for part in parts for piece in parser.feed(part)] + parser.finish())


@pytest.mark.parametrize(("form", "prompt", "text", "pieces"), CASES)
def test_parts_are_found(form: AnswerFormat, prompt: str, text: str, pieces: list[Piece]) -> None:
    assert run(form, prompt, [text]) == pieces


@pytest.mark.parametrize(("form", "prompt", "text", "pieces"), CASES)
def test_how_the_text_is_cut_changes_nothing(
    form: AnswerFormat, prompt: str, text: str, pieces: list[Piece]
) -> None:
    rng = random.Random(3)
    for _ in range(100):
        parts = split(text, rng)
        assert run(form, prompt, parts) == pieces, parts


def test_reasoning_comes_as_soon_as_it_is_sure() -> None:
    parser = QWEN.parser(prompt=OPEN, tools=TOOLS)
    assert parser is not None
    assert parser.is_reasoning
    assert parser.feed("hm, ") == [Reasoning("hm,")]
    assert parser.feed("1 < 2</thi") == [Reasoning(" 1 < 2")]
    assert parser.is_reasoning
    assert parser.feed("nk>\n\nHel") == [Content("Hel")]
    assert not parser.is_reasoning


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ('[{"name": "now", "parameters": {}}]', [Call("now", "{}")]),
        (
            ' [ {"name":"a\\"b","parameters":{"x": "}]"}} , {"name": "now", "parameters": { } } ]\n',
            [Call('a"b', '{"x": "}]"}'), Call("now", "{ }")],
        ),
        ('[{"name": "now", "parameters": {"city": "Be', [Call("now", '{"city": "Be')]),
        ('[{"name": "no', [Content('[{"name": "no')]),
    ],
)
def test_required_calls_are_read_as_they_come(text: str, pieces: list[Piece]) -> None:
    rng = random.Random(5)
    for _ in range(100):
        parser = RequiredCalls()
        found = [piece for part in split(text, rng) for piece in parser.feed(part)]
        assert join(found + parser.finish()) == pieces


def test_arguments_of_a_named_call_leave_at_once() -> None:
    parser = NamedCall("now")
    found = [*parser.feed('{"a'), *parser.feed('": 1}'), *parser.finish()]
    assert found == [Call("now", '{"a'), Arguments('": 1}')]


@pytest.mark.parametrize(
    ("template", "tools", "reasoning"),
    [
        ("<tool_call>{{ x | tojson }}</tool_call> </think>", "hermes", "qwen3"),
        ("<tool_call>\n<function=' ~ name", "qwen3_xml", None),
        ("[TOOL_CALLS] [THINK]", "mistral", "mistral"),
        ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜> </think>", "deepseek_v31", "qwen3"),
        ("<|start|>assistant<|channel|>analysis", "openai", "openai_gptoss"),
        ("<|python_tag|>", "llama3_json", None),
        ("<|python_start|>", "llama4_pythonic", None),
        ("{{ messages }}", None, None),
    ],
)
def test_format_is_chosen_by_the_template(
    template: str, tools: str | None, reasoning: str | None
) -> None:
    found = choose_format({"default": template}, tools="auto", reasoning="auto")
    assert (found.tools, found.reasoning) == (tools, reasoning)
    assert choose_format({"default": template}, tools="none", reasoning="none") == AnswerFormat()
