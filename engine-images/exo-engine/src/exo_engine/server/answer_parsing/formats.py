"""Which format a model's answers have: the table, vLLM's names, and the choice by the chat template."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from exo_engine.server.answer_parsing.deepseek import DeepSeek
from exo_engine.server.answer_parsing.harmony import Harmony
from exo_engine.server.answer_parsing.hermes import Hermes
from exo_engine.server.answer_parsing.llama_json import LlamaJson
from exo_engine.server.answer_parsing.mistral import Mistral
from exo_engine.server.answer_parsing.pieces import AnswerParser
from exo_engine.server.answer_parsing.pythonic import Pythonic
from exo_engine.server.answer_parsing.qwen_xml import QwenXml
from exo_engine.server.answer_parsing.thinking import Markers, Thinking

Tools = Sequence[Mapping[str, Any]]
_ALPHANUMERIC = string.ascii_letters + string.digits
_MISTRAL_ID_CHARACTERS = 9

TOOL_PARSERS: Mapping[str, Callable[[Tools], AnswerParser]] = {
    "hermes": lambda tools: Hermes(),
    "qwen3_json": lambda tools: Hermes(),
    "qwen3_coder": QwenXml,
    "qwen3_xml": QwenXml,
    "llama3_json": lambda tools: LlamaJson(),
    "llama4_json": lambda tools: LlamaJson(),
    "pythonic": lambda tools: Pythonic(),
    "llama4_pythonic": lambda tools: Pythonic(),
    "olmo3": lambda tools: Pythonic(),
    "mistral": lambda tools: Mistral(),
    "deepseek_v3": lambda tools: DeepSeek(),
    "deepseek_v31": lambda tools: DeepSeek(),
    "openai": lambda tools: Harmony(),
}
"""Machines for calls under vLLM's names."""

TOOL_MARKS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("hermes", "qwen3_json", "qwen3_coder", "qwen3_xml"), ("<tool_call>",)),
    **dict.fromkeys(("llama3_json", "llama4_json"), ("<|python_tag|>",)),
    **dict.fromkeys(("pythonic", "llama4_pythonic", "olmo3"), ("<|python_start|>",)),
    "mistral": ("[TOOL_CALLS]",),
    **dict.fromkeys(("deepseek_v3", "deepseek_v31"), ("<｜tool▁call▁begin｜>",)),
    "openai": ("<|channel|>",),
}
"""What a call begins with, by the same names."""

_THINK = Markers()
_GRANITE = Markers(
    starts=("Here is my thought process:", "Here's my thought process:"),
    ends=("Here is my response:", "Here's my response:"),
)
REASONING_MARKERS: Mapping[str, Markers | None] = {
    "qwen3": _THINK,
    "deepseek_v3": _THINK,
    "glm45": _THINK,
    "deepseek_r1": Markers(is_open=True),
    "granite": _GRANITE,
    "mistral": Markers(("[THINK]",), ("[/THINK]",)),
    "openai_gptoss": None,
}
"""How reasoning is marked, under vLLM's names; None: in channels."""

_TOOL_MARKS = (
    ("<|channel|>", "openai"),
    ("<｜tool▁call▁begin｜>", "deepseek_v31"),
    ("[TOOL_CALLS]", "mistral"),
    ("<function=", "qwen3_xml"),
    ("<tool_call>", "hermes"),
    ("<|python_start|>", "llama4_pythonic"),
    ("[func_name1(", "pythonic"),
    ("<|python_tag|>", "llama3_json"),
    ('"parameters": dictionary of argument name', "llama3_json"),
)
_REASONING_MARKS = (
    ("<|channel|>", "openai_gptoss"),
    ("[THINK]", "mistral"),
    ("</think>", "qwen3"),
    ("Here is my thought process", "granite"),
)


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """How a model marks calls and reasoning; names of the tables, None: not at all."""

    tools: str | None = None
    reasoning: str | None = None

    @property
    def marks_reasoning(self) -> bool:
        """Whether answers may have reasoning apart from content."""
        return self.reasoning is not None or self.tools == "openai"

    def marks(self, *, has_tools: bool) -> tuple[str, ...]:
        """Return texts that must be seen, though they may be special tokens.

        Args:
            has_tools: calls are looked for.
        """
        tools = TOOL_MARKS[self.tools] if has_tools and self.tools else ()
        if self.reasoning == "openai_gptoss":
            return (*tools, "<|channel|>")
        markers = self.reasoning_markers
        return (*tools, *(markers.ends if markers else ()))

    def parser(
        self, *, prompt: str, tools: Tools = (), forced: AnswerParser | None = None
    ) -> AnswerParser | None:
        """Return a machine for one answer; None: its text is content as it stands.

        Args:
            prompt: what the model goes on with, as text.
            tools: those that it may call; calls are looked for only where there are some.
            forced: takes the place of the machine for calls.
        """
        has_calls = bool(tools) and self.tools == "openai"
        is_in_channels = has_calls or self.reasoning == "openai_gptoss"
        if is_in_channels and forced is None:
            return Harmony(prompt=prompt, has_calls=has_calls)
        rest = forced
        if rest is None and tools and self.tools is not None:
            rest = TOOL_PARSERS[self.tools](tools)
        markers = self.reasoning_markers
        if markers is None:
            return rest
        return Thinking(markers, rest, is_open=markers.is_open_after(prompt))

    @property
    def reasoning_markers(self) -> Markers | None:
        """Between what reasoning stands; None: there is none, or it is in channels."""
        return REASONING_MARKERS.get(self.reasoning or "")

    def call_id(self) -> str:
        """Return a new id of a call; Mistral's templates take only those of nine letters and digits."""
        if self.tools == "mistral":
            return "".join(secrets.choice(_ALPHANUMERIC) for _ in range(_MISTRAL_ID_CHARACTERS))
        return f"call_{secrets.token_hex(12)}"


def choose_format(templates: Mapping[str, str], *, tools: str, reasoning: str) -> AnswerFormat:
    """Return the format of a model.

    Args:
        templates: its chat templates by name.
        tools: a name of `TOOL_PARSERS`, `none`, or `auto`: by what stands in the templates.
        reasoning: a name of `REASONING_MARKERS`, and likewise.
    """
    text = "\n".join(templates.values())
    return AnswerFormat(
        _chosen(tools, text, _TOOL_MARKS), _chosen(reasoning, text, _REASONING_MARKS)
    )


def _chosen(name: str, text: str, marks: Sequence[tuple[str, str]]) -> str | None:
    if name == "auto":
        return next((each for mark, each in marks if mark in text), None)
    return None if name == "none" else name
