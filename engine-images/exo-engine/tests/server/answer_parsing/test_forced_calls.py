"""Grammars of forced calls take what the tools' schemas allow and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from exo_engine.server.answer_parsing.forced import schema_of_calls
from exo_engine.structured_output import grammars
from exo_engine.structured_output.compiler import Compiler
from exo_engine.structured_output.vocabulary import Vocabulary

BYTES = Vocabulary((*(bytes([each]) for each in range(256)), b"</s>"), (256,), (256,))
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


def takes(grammar: str, text: str) -> bool:
    """Whether a text is a whole answer."""
    compiler = Compiler(257)
    compiler.use(BYTES)
    matcher = compiler.matcher(grammar)
    return all(map(matcher.consume_token, text.encode())) and bool(matcher.is_accepting())


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
