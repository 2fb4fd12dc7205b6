"""What rules allow, character by character, and which tokens never come."""

from __future__ import annotations

import json
from typing import Any

import pytest
from exo_engine.errors import InvalidSamplingParams
from exo_engine.structured_output import compiler as compiling
from exo_engine.structured_output import grammars
from exo_engine.structured_output.compiler import Compiler
from exo_engine.structured_output.reasoning import behind_reasoning
from exo_engine.structured_output.schema_check import SchemaRefused
from exo_engine.structured_output.tags import tag_grammar
from exo_engine.structured_output.vocabulary import Vocabulary

pytest.importorskip("llguidance", reason="the engine has no grammars without it")

END, THINK, UNTHINK = 256, 257, 258
TOKENS = (*(bytes([each]) for each in range(256)), b"</s>", b"<think>", b"</think>", b'{"', b"")
ANSWER = grammars.grammar(grammars.json_rule({"enum": ["yes", "no"]}))
THINKING = [("<think>", None)], [("</think>", None)]


@pytest.fixture
def compiler() -> Compiler:
    found = Compiler(len(TOKENS))
    found.use(Vocabulary(TOKENS, (END, THINK, UNTHINK), (END,)))
    return found


def accepts(compiler: Compiler, grammar: str, text: str | list[int]) -> bool:
    tokens = list(text.encode()) if isinstance(text, str) else text
    matcher = compiler.matcher(grammar)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def allowed(matcher: Any) -> set[int]:
    bits = int.from_bytes(matcher.compute_bitmask(), "little")
    return {token_id for token_id in range(len(TOKENS)) if bits >> token_id & 1}


@pytest.mark.parametrize(
    ("rule", "text", "is_allowed"),
    [
        (grammars.literal('a"b\\n\né🙂\x01'), 'a"b\\n\né🙂\x01', True),
        (grammars.literal("a"), "b", False),
        (grammars.regex_rule("a/b"), "a/b", True),
        (grammars.regex_rule(r"a\/b"), "a/b", True),
        (grammars.regex_rule("a\nb"), "a\nb", True),
        (grammars.regex_rule("[/x]+"), "x/x", True),
        (grammars.any_of(['"a"', '"b" "c"']), "bc", True),
        (grammars.json_rule(True), '{"a": [1]}', True),
        (grammars.json_rule({"type": "object"}), '{\n    "a": 1\n}', True),
        (grammars.json_rule({"type": "object"}), '{  "a": 1}', False),
        (grammars.json_rule({"const": {"format": "date"}}), '{"format": "date"}', True),
        (grammars.json_rule({"format": "date"}), '"2023-02-29"', False),
        (grammars.json_rule({"format": "date"}), '"2024-02-29"', True),
        (grammars.json_rule({"format": "time", "pattern": "^2"}), '"20:10:00Z"', True),
        (grammars.json_rule({"format": "time", "pattern": "^2"}), '"10:10:00Z"', False),
    ],
)
def test_rule(compiler: Compiler, rule: str, text: str, is_allowed: bool) -> None:
    assert accepts(compiler, grammars.grammar(rule), text) == is_allowed


def test_special_tokens_come_only_where_they_are_named_and_the_end_where_it_may_be(compiler):
    matcher = compiler.matcher(grammars.grammar(grammars.ANY_TEXT))
    assert allowed(matcher) & {END, THINK, UNTHINK, 260} == {END}
    matcher = compiler.matcher(ANSWER)
    assert allowed(matcher) == {ord('"')}
    named = compiler.matcher(grammars.grammar(f'"a" {grammars.special_token(THINK)}'))
    assert named.consume_token(ord("a"))
    assert allowed(named) == {THINK}
    assert named.consume_token(THINK)
    assert named.is_stopped()


def test_any_tokens_that_spell_the_text_may_come(compiler: Compiler) -> None:
    matcher = compiler.matcher(grammars.grammar(grammars.json_rule({"type": "object"})))
    assert allowed(matcher) == {ord("{"), 259}


@pytest.mark.parametrize(
    ("is_open", "text", "is_allowed"),
    [
        (False, '"yes"', True),
        (False, '<think>hm <b> </think>\n\n"no"', True),
        (False, '<think>hm "no"', False),
        (False, 'hm</think>"no"', False),
        (True, 'hm </think>"no"', True),
        (True, '"no"', False),
        (True, 'hm </think>or "no"', False),
    ],
)
def test_answer_behind_reasoning(compiler, is_open: bool, text: str, is_allowed: bool) -> None:
    assert (
        accepts(compiler, behind_reasoning(ANSWER, *THINKING, is_open=is_open), text) == is_allowed
    )


def test_reasoning_between_special_tokens(compiler: Compiler) -> None:
    marks = [("<think>", THINK)], [("</think>", UNTHINK)]
    grammar = behind_reasoning(ANSWER, *marks, is_open=False)
    thought = [THINK, *b"hm", UNTHINK, *b'"yes"']
    assert accepts(compiler, grammar, thought)
    assert not accepts(compiler, grammar, thought[:-5])
    assert not accepts(compiler, grammar, '<think>hm</think>"yes"')


TAG = {
    "begin": "<f=x>",
    "content": {"type": "json_schema", "json_schema": {"type": "integer"}},
    "end": "</f>",
}


@pytest.mark.parametrize(
    ("part", "text", "is_allowed"),
    [
        ({}, "no call", True),
        ({}, "a <f=x>12</f> and <f=x>3</f>.", True),
        ({}, "a <f=x>no</f>", False),
        ({}, "a <f=y>", False),
        ({"at_least_one": True}, "no call", False),
        ({"at_least_one": True, "stop_after_first": True}, "a <f=x>1</f>", True),
        ({"at_least_one": True, "stop_after_first": True}, "a <f=x>1</f> b", False),
    ],
)
def test_text_is_free_up_to_a_trigger(compiler, part, text: str, is_allowed: bool) -> None:
    form = {"type": "triggered_tags", "triggers": ["<f="], "tags": [TAG], **part}
    assert accepts(compiler, tag_grammar({"format": form}), text) == is_allowed


def test_the_older_form_of_tags_is_the_same(compiler: Compiler) -> None:
    one = {"begin": "<f=x>", "schema": {"type": "integer"}, "end": "</f>"}
    value = {"type": "structural_tag", "triggers": ["<f="], "structures": [one]}
    assert accepts(compiler, tag_grammar(json.dumps(value)), "a <f=x>1</f> b")
    assert not accepts(compiler, tag_grammar(value), "a <f=x>b</f>")


NAMED = {"type": "json_schema", "json_schema": {"type": "integer"}}
OLDER = {"triggers": ["<f="], "structures": [{"begin": "<f=x>", "schema": {}, "end": "</f>"}]}
TRIGGERED = {"type": "triggered_tags", "triggers": ["<f="], "tags": [TAG]}


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"format": {"type": "any_text", "excludes": ["no"]}}, "/format/excludes"),
        ({"format": {**NAMED, "style": "qwen_xml"}}, "/format/style"),
        ({"format": {"type": "sequence", "elements": [{**NAMED, "a/b": 1}]}}, "/format/elements/0/a~1b"),
        ({"format": {**TAG, "type": "tag", "ends": ["</f>"]}}, "/format/ends"),
        ({"format": {**TRIGGERED, "tags": [{**TAG, "more": 1}]}}, "/format/tags/0/more"),
        ({"format": {**TRIGGERED, "excludes": ["no"]}}, "/format/excludes"),
        ({"format": {**TRIGGERED, "at_least_one": "false"}}, "/format/at_least_one"),
        ({"format": {**TRIGGERED, "stop_after_first": 1}}, "/format/stop_after_first"),
        ({"format": NAMED, **OLDER}, "/triggers"),
        ({**OLDER, "at_least_one": True}, "/at_least_one"),
        ({**OLDER, "structures": [{**OLDER["structures"][0], "strict": True}]}, "/structures/0/strict"),
    ],
)  # fmt: skip
def test_field_of_a_tag_that_would_be_ignored_is_refused_with_its_place(value, place: str) -> None:
    with pytest.raises(SchemaRefused) as caught:
        tag_grammar({"type": "structural_tag", **value})
    assert caught.value.pointer == place


def test_fields_of_tags_that_ask_for_nothing_pass() -> None:
    assert tag_grammar({"format": {**NAMED, "style": "json"}}) == tag_grammar({"format": NAMED})
    assert tag_grammar({"format": {**TRIGGERED, "excludes": []}, "triggers": None})


def test_compiled_grammars_are_kept_within_a_bound(compiler, monkeypatch) -> None:
    made = []
    compile_one = Compiler._compile
    monkeypatch.setattr(Compiler, "_compile", lambda *a: (made.append(a[1]), compile_one(*a))[1])
    monkeypatch.setattr(compiling, "_MAX_BYTES", 3 * compiling._LEAST_BYTES)
    texts = [grammars.grammar(grammars.literal(str(each))) for each in range(8)]
    for each in (*texts, texts[-1]):
        compiler.matcher(each)
    assert made == texts
    assert len(compiler._kept) <= 3


def test_without_the_package_grammars_are_refused_by_name(compiler, monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
    with pytest.raises(InvalidSamplingParams, match="llguidance, which is not installed") as caught:
        compiler.prepare(ANSWER).result()
    assert caught.value.param == "structured_outputs"
