"""Grammars of forced calls take what the tools' schemas allow and nothing else, also behind reasoning."""

from __future__ import annotations

from typing import Any

import pytest
from exo_engine.server.answer_parsing.after_reasoning import after_reasoning
from exo_engine.server.answer_parsing.forced import schema_of_calls
from exo_engine.server.answer_parsing.thinking import Markers
from exo_engine.structured_output import grammars
from exo_engine.structured_output.compiler import Compiler
from exo_engine.structured_output.vocabulary import Vocabulary

THINK_END = 256
BYTES = Vocabulary(
    (*(bytes([each]) for each in range(256)), b"</t>", b"</s>"), (THINK_END, 257), (257,)
)
NODE = {
    "type": "object",
    "properties": {"kind": {"$ref": "#/$defs/Kind"}, "default": {"$ref": "#"}},
    "required": ["kind"],
    "additionalProperties": False,
    "$defs": {"Kind": {"enum": ["p", "q"]}},
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "node", "parameters": NODE}},
    {"type": "function", "function": {"name": "now"}},
]
CALLS = grammars.grammar(grammars.json_rule(schema_of_calls(TOOLS, is_single=False)))
NOW = '[{"name": "now", "parameters": {}}]'
WORD = grammars.grammar(grammars.literal("yes"))


def takes(grammar: str, text: str, *ids: int) -> bool:
    """Whether a text is a whole answer; {} stands for a token that is no text."""
    compiler = Compiler(258)
    compiler.use(BYTES)
    matcher = compiler.matcher(grammar)
    tokens = [token for part in text.split("{}") for token in (*part.encode(), *ids)]
    tokens = tokens[: len(tokens) - len(ids)] if ids else [*text.encode()]
    return all(matcher.consume_token(each) for each in tokens) and bool(matcher.is_accepting())


@pytest.mark.parametrize(
    ("text", "is_taken"),
    [
        (NOW, True),
        ('[{"name": "node", "parameters": {"kind": "p", "default": {"kind": "q"}}}]', True),
        (
            '[{"name": "now", "parameters": {}}, {"name": "node", "parameters": {"kind": "q"}}]',
            True,
        ),
        ('[{"name": "node", "parameters": {"kind": "z"}}]', False),
        ('[{"name": "node", "parameters": {}}]', False),
        ('[{"name": "other", "parameters": {}}]', False),
        ("[]", False),
    ],
)
def test_calls_keep_to_the_schemas_of_their_tools(text: str, is_taken: bool) -> None:
    assert takes(CALLS, text) is is_taken


def test_one_call_where_parallel_ones_are_not_wanted() -> None:
    single = grammars.grammar(grammars.json_rule(schema_of_calls(TOOLS, is_single=True)))
    assert takes(single, NOW)
    assert not takes(single, NOW[:-1] + ", " + NOW[1:])


@pytest.mark.parametrize(
    ("prompt", "text", "is_taken"),
    [
        ("<think>\n", "hm </think>\n\nyes", True),
        ("<think>\n", "yes", False),
        ("<think>\n", "hm </think></think>yes", False),
        ("", "<think>hm</think>yes", True),
        ("", "yes", True),
        ("", "hm</think>yes", False),
        ("<think></think>\n", "yes", True),
        ("<think></think>\n", "<think></think>yes", False),
    ],
)
def test_reasoning_may_come_first(prompt: str, text: str, is_taken: bool) -> None:
    grammar = after_reasoning(WORD, Markers(), prompt=prompt, special_token=lambda _: None)
    assert takes(grammar, text) is is_taken


def test_reasoning_may_end_with_a_special_token() -> None:
    markers = Markers(("<t>",), ("</t>",), is_open=True)
    grammar = after_reasoning(WORD, markers, prompt="", special_token=lambda _: THINK_END)
    assert takes(grammar, "hm{}yes", THINK_END)
    assert not takes(grammar, "hm</t>yes")
