"""The machines for tool calls: what they find, and that it does not depend on how the text comes."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable

import pytest
from exo_engine.server.answer_parsing.formats import TOOL_PARSERS
from exo_engine.server.answer_parsing.pieces import Arguments, Call, Content, Piece, Reasoning, join

from .corpus import CASES, SOUP, TOOLS, Case

NUM_SPLITS = 1000
few_or_all = pytest.mark.parametrize(
    "num", [200, pytest.param(NUM_SPLITS, marks=pytest.mark.slow)], ids=["few", "all"]
)
ALL_CASES = [
    pytest.param(name, case, id=f"{name}-{number}")
    for name, cases in CASES.items()
    for number, case in enumerate(cases)
]


def run(name: str, parts: Iterable[str]) -> list[Piece]:
    parser = TOOL_PARSERS[name](TOOLS)
    pieces = [piece for part in parts for piece in parser.feed(part)]
    return join(pieces + parser.finish())


def calls_of(pieces: list[Piece]) -> list[tuple[str, object]]:
    return [(each.name, json.loads(each.arguments)) for each in pieces if isinstance(each, Call)]


def content_of(pieces: list[Piece]) -> str:
    return "".join(each.text for each in pieces if isinstance(each, Content))


def split(text: str, rng: random.Random) -> list[str]:
    """Cut a text at random places, or into single characters."""
    if rng.random() < 0.1:
        return list(text)
    cuts = sorted(rng.sample(range(len(text) + 1), k=min(len(text), rng.randrange(1, 12))))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@pytest.mark.parametrize(("name", "case"), ALL_CASES)
def test_calls_and_content_are_found(name: str, case: Case) -> None:
    pieces = run(name, [case.text])
    assert calls_of(pieces) == case.calls
    assert content_of(pieces) == case.content


@few_or_all
@pytest.mark.parametrize("name", CASES)
def test_how_the_text_is_cut_changes_nothing(name: str, num: int) -> None:
    rng = random.Random(13)
    whole = {case.text: run(name, [case.text]) for case in CASES[name]}
    for _ in range(num):
        text = rng.choice(CASES[name]).text
        if rng.random() < 0.3:
            text = text[: rng.randrange(1, len(text) + 1)]  # an answer that was cut
            whole[text] = run(name, [text])
        parts = split(text, rng)
        assert run(name, parts) == whole[text], parts


@few_or_all
@pytest.mark.parametrize("name", SOUP)
def test_no_text_breaks_a_machine_and_no_cut_changes_what_it_makes_of_it(
    name: str, num: int
) -> None:
    rng = random.Random(7)
    for _ in range(num // 2):
        text = "".join(rng.choices(SOUP[name], k=rng.randrange(1, 30)))
        whole = run(name, [text])
        parts = split(text, rng)
        assert run(name, parts) == whole, parts
        for piece in whole:
            if isinstance(piece, Call):
                json.loads(piece.arguments)


@pytest.mark.parametrize("name", TOOL_PARSERS)
@pytest.mark.parametrize(
    "text", ["", " \n ", "Hello, world!\n", "a < b > c {x} [y] (z)", "\\", "<|", "日本"], ids=repr
)
def test_text_without_calls_is_content_to_the_letter(name: str, text: str) -> None:
    pieces = run(name, list(text))
    assert not any(isinstance(each, Call | Arguments | Reasoning) for each in pieces)
    assert content_of(pieces) == text


@pytest.mark.parametrize("name", SOUP)
def test_content_comes_as_soon_as_it_is_sure(name: str) -> None:
    parser = TOOL_PARSERS[name](TOOLS)
    if name == "openai":
        parser.feed("<|channel|>final<|message|>")
    assert parser.feed("Hello, world") == [Content("Hello, world")]


HOSTILE = {
    "hermes": ['<tool_call>{"name":"f","arguments":' + "[" * 50_000, "<tool_call>" * 20_000],
    "qwen3_xml": ["<tool_call><function=f>" + "<parameter=a>" * 20_000, "<function=" * 20_000],
    "llama3_json": ['{"a":' * 20_000, "{" * 30_000, '{"a":"' + "\\" * 100_000, "[" * 30_000],
    "pythonic": [
        "[f(" + "[" * 30_000,
        "[f(a=" + "-" * 30_000,
        "[" * 30_000,
        "[f(a='" + "\\" * 100_000,
        "[f(a=" + "(" * 45 + "1," * 30_000,
    ],
    "mistral": [
        "[TOOL_CALLS]" * 10_000,
        "[TOOL_CALLS]" + "[" * 100_000,
        "[TOOL_CALLS]" + "a" * 100_000,
        '[TOOL_CALLS]f{"a":' + "9" * 100_000 + "}",
    ],
    "deepseek_v31": ["<｜tool▁call▁begin｜>" * 10_000, "<｜tool▁calls▁begin｜>" * 10_000],
    "openai": [
        "<|channel|>" * 10_000,
        "<|start|>" * 10_000,
        "<|channel|>commentary to=functions.f<|message|>" + "[" * 100_000,
    ],
}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param(name, text, marks=[pytest.mark.slow] if number else [])
        for name, texts in HOSTILE.items()
        for number, text in enumerate(texts)
    ],
)
def test_hostile_text_takes_time_in_proportion_and_comes_back(name: str, text: str) -> None:
    """Whole and in 1,000 pieces: work that grows with the square of 30,000 runs into the test's own limit."""
    whole = run(name, [text])
    step = max(1, len(text) // 1000)
    assert run(name, [text[at : at + step] for at in range(0, len(text), step)]) == whole
