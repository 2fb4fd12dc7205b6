"""Texts as models write them, per format, and the calls that are in them.

Forms are those of the models' templates; broken ones are cut, or have a mistake that small models make. The
calls were held against vLLM 0.32's parsers, see test_vllm_oracle.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "limit": {"type": "number"},
                    "metric": {"type": "boolean"},
                    "tags": {"type": "array", "items": {"type": "string"}},
                    "place": {"type": "object"},
                    "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                },
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "now"}},
]

VALUES: list[dict[str, Any]] = [
    {},
    {"city": "Bern"},
    {"city": "Bern", "days": 3},
    {
        "city": "a } b ] c",
        "tags": ["x", "y, z"],
        "place": {"lat": 46.9, "in": {"deep": [1, [2, []]]}},
    },
    {"city": 'say "hi"\n\tand \\ back', "metric": True, "note": None},
    {"city": "日本 🙂 é", "days": -7, "limit": 1.5},
    {"city": "", "tags": [], "place": {}},
    {"city": "{'a': 1}", "note": "x = [1, 2]; f(y)"},
]
"""Arguments that hold what parsers stumble over."""

NAMES = ["get_weather", "now", "a-b.c_1"]


class Case(NamedTuple):
    """One answer's text."""

    text: str
    calls: list[tuple[str, Any]]
    content: str = ""


def hermes(name: str, value: Any) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(value)}}}\n</tool_call>'


def qwen_xml(name: str, value: Any) -> str:
    parameters = "".join(
        f"<parameter={key}>\n{each if isinstance(each, str) else json.dumps(each)}\n</parameter>\n"
        for key, each in value.items()
    )
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def llama_json(name: str, value: Any) -> str:
    return json.dumps({"name": name, "parameters": value}, ensure_ascii=False)


def python_call(name: str, value: Any) -> str:
    return f"{name}({', '.join(f'{key}={each!r}' for key, each in value.items())})"


def mistral_list(calls: list[tuple[str, Any]]) -> str:
    return "[TOOL_CALLS]" + json.dumps(
        [{"name": name, "arguments": value} for name, value in calls]
    )


def mistral(name: str, value: Any) -> str:
    return f"[TOOL_CALLS]{name}[ARGS]{json.dumps(value)}"


def deepseek_v3(calls: list[tuple[str, Any]]) -> str:
    inner = "\n".join(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{json.dumps(value)}\n```<｜tool▁call▁end｜>"
        for name, value in calls
    )
    return f"<｜tool▁calls▁begin｜>{inner}<｜tool▁calls▁end｜>"


def deepseek_v31(calls: list[tuple[str, Any]]) -> str:
    inner = "".join(
        f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{json.dumps(value)}<｜tool▁call▁end｜>"
        for name, value in calls
    )
    return f"<｜tool▁calls▁begin｜>{inner}<｜tool▁calls▁end｜>"


def harmony(name: str, value: Any) -> str:
    return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{json.dumps(value)}<|call|>"


def _each(write: Any) -> list[Case]:
    return [Case(write(name, value), [(name, value)]) for name in NAMES for value in VALUES]


def _all(write: Any) -> list[Case]:
    calls = [(name, value) for name, value in zip(NAMES, VALUES[1:4], strict=True)]
    return [Case(write([call]), [call]) for call in calls] + [Case(write(calls), calls)]


WRITERS: dict[str, Callable[[str, Any], str]] = {
    "hermes": hermes,
    "qwen3_xml": qwen_xml,
    "llama3_json": llama_json,
    "pythonic": lambda name, value: f"[{python_call(name, value)}]",
    "mistral": mistral,
    "deepseek_v3": lambda name, value: deepseek_v3([(name, value)]),
    "deepseek_v31": lambda name, value: deepseek_v31([(name, value)]),
}
"""One call as a model writes it."""

_TWO = [("get_weather", {"city": "Bern"}), ("now", {})]

CASES: dict[str, list[Case]] = {
    "hermes": [
        *_each(hermes),
        Case("I look.\n" + hermes("now", {}), [("now", {})], "I look."),
        Case("\n".join(hermes(*call) for call in _TWO), _TWO),
        Case('<tool_call>{"name": "now", "arguments": {}}', [("now", {})]),
        Case("just text with < and <tool", [], "just text with < and <tool"),
        Case(
            '<tool_call>{"name": "now"}</tool_call>', [], '<tool_call>{"name": "now"}</tool_call>'
        ),
        Case('<tool_call>{"name": "now", "argum', [], '<tool_call>{"name": "now", "argum'),
        Case("<tool_call></tool_call>", [], "<tool_call></tool_call>"),
        Case("<tool_call>[1]</tool_call>", [], "<tool_call>[1]</tool_call>"),
    ],
    "qwen3_xml": [
        *[Case(qwen_xml("get_weather", value), [("get_weather", value)]) for value in VALUES],
        Case(qwen_xml("unknown", {"a": "1"}), [("unknown", {"a": "1"})]),
        Case("I look.\n" + qwen_xml("now", {}), [("now", {})], "I look."),
        Case("\n".join(qwen_xml(*call) for call in _TWO), _TWO),
        Case("<function=now>\n</function>", [("now", {})]),
        Case("text <functio", [], "text <functio"),
    ],
    "llama3_json": [
        *_each(llama_json),
        *[Case("<|python_tag|>" + each.text, each.calls) for each in _each(llama_json)[:4]],
        Case("; ".join(llama_json(*call) for call in _TWO), _TWO),
        Case('{"name": "now", "arguments": {}}', [("now", {})]),
        Case('{"answer": 42}', [], '{"answer": 42}'),
        Case('{"name": "now", "param', [], '{"name": "now", "param'),
        Case("int main() { return 0; }", [], "int main() { return 0; }"),
    ],
    "pythonic": [
        *[
            Case(f"[{python_call(name, value)}]", [(name, value)])
            for name in ("get_weather", "now")
            for value in VALUES
        ],
        Case(f"[{', '.join(python_call(*call) for call in _TWO)}]", _TWO),
        Case("[now(a=true, b=null)]", [("now", {"a": True, "b": None})]),
        Case("[1, 2, 3] is a list", [], "[1, 2, 3] is a list"),
        Case("[now(a=1", [], "[now(a=1"),
        Case("[now(a=open('x'))]", [], "[now(a=open('x'))]"),
        Case("plain [text](link)", [], "plain [text](link)"),
    ],
    "mistral": [
        *_each(mistral),
        *_all(mistral_list),
        Case("".join(mistral(*call) for call in _TWO), _TWO),
        Case("I look.[TOOL_CALLS]now{}", [("now", {})], "I look."),
        Case("[TOOL_CALLS]now[CALL_ID]abc123xyz[ARGS]{}", [("now", {})]),
        Case("no [TOOL_CALL here", [], "no [TOOL_CALL here"),
        Case('[TOOL_CALLS][{"name": 1}]', [], '[TOOL_CALLS][{"name": 1}]'),
    ],
    "deepseek_v3": [
        *_all(deepseek_v3),
        Case("I look.\n" + deepseek_v3(_TWO), _TWO, "I look."),
        Case("text <｜tool", [], "text <｜tool"),
    ],
    "deepseek_v31": [
        *_all(deepseek_v31),
        Case("I look." + deepseek_v31(_TWO), _TWO, "I look."),
    ],
    "openai": [
        *_each(harmony),
        Case(
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant" + harmony("now", {}),
            [("now", {})],
        ),
        Case("<|channel|>final<|message|>Hello.<|return|>", [], "Hello."),
        Case(
            "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
            " to=functions.now<|channel|>commentary json<|message|>{}<|call|>",
            [("now", {})],
            "I look.",
        ),
        Case("<|channel|>commentary to=functions.now<|message|>{broken<|call|>", [], "{broken"),
        Case(
            "<|channel|>final<|message|>So.<|end|><|start|>assistant"
            "<|channel|>analysis to=functions.now<|message|>{broken<|call|>",
            [],
            "So.\n{broken",
        ),
    ],
}
"""By vLLM's name of the parser."""

SOUP: dict[str, list[str]] = {
    "hermes": [
        "<tool_call>",
        "</tool_call>",
        '{"name": "f", "arguments": {}}',
        "<",
        "\n",
        " ",
        '"',
        "x",
    ],
    "qwen3_xml": [
        "<tool_call>",
        "</tool_call>",
        "<function=f>",
        "</function>",
        "<parameter=a>",
        "</parameter>",
        "<",
        "\n",
        "1",
        "null",
    ],
    "llama3_json": [
        "<|python_tag|>",
        '{"name": "f", "parameters": {}}',
        "{",
        "}",
        '"',
        ";",
        " ",
        "x",
        "[",
        ":",
    ],
    "pythonic": [
        "[",
        "f(",
        "a=",
        "1",
        "'",
        '"',
        ")",
        "]",
        ",",
        " ",
        "<|python_start|>",
        "<|python_end|>",
        "x",
    ],
    "mistral": [
        "[TOOL_CALLS]",
        "[ARGS]",
        "[CALL_ID]",
        "f",
        "{}",
        '[{"name": "f", "arguments": {}}]',
        "[",
        "{",
        " ",
    ],
    "deepseek_v3": [
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁sep｜>",
        "f",
        "\n```json\n",
        "{}",
        "\n```",
        " ",
    ],
    "deepseek_v31": [
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁sep｜>",
        "f",
        "{}",
        " ",
    ],
    "openai": [
        "<|channel|>",
        "<|message|>",
        "<|end|>",
        "<|call|>",
        "<|start|>assistant",
        "analysis",
        "final",
        "commentary",
        " to=functions.f",
        "{}",
        " ",
        "x",
    ],
}
"""What random texts are put together from, so that they come near to what the machine looks for."""
