"""Which tools a request brings, and what it says about calling them.

Shared by all routes with conversations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from exo_engine.server.answer_parsing.forced import (
    NamedCall,
    RequiredCalls,
    schema_of_arguments,
    schema_of_calls,
)
from exo_engine.server.answer_parsing.pieces import AnswerParser
from exo_engine.server.api_errors import bad_request, not_supported
from exo_engine.server.fields import Fields
from exo_engine.server.inner_fields import (
    ALLOWED_CHOICE,
    ALLOWED_TOOLS,
    TOOL_CHOICE,
    TOOL_CHOICE_FUNCTION,
)
from exo_engine.server.known_fields import check_fields

_MAX_TOOLS = 1024
_MAX_NAME_CHARACTERS = 256
Tool = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of one request.

    Attributes:
        tools: that the model sees and may call.
        choice: it calls when it likes, must call one at least, or must call the only one there is.
        is_parallel: it may call several at once.
    """

    tools: tuple[Tool, ...] = ()
    choice: Literal["auto", "required", "named"] = "auto"
    is_parallel: bool = True
    shown: tuple[Tool, ...] = ()
    """Those that the template gets: with a named one, the others too."""

    @property
    def is_forced(self) -> bool:
        """Whether the answer is calls and nothing else."""
        return self.choice != "auto"

    @property
    def schema(self) -> dict[str, Any] | None:
        """What the text of a forced answer keeps to; None: it is not forced."""
        if self.choice == "named":
            return schema_of_arguments(self.tools[0])
        if self.choice == "required":
            return schema_of_calls(self.tools, is_single=not self.is_parallel)
        return None

    def forced_parser(self) -> AnswerParser | None:
        """Return the machine that reads a forced answer; None: it is not forced."""
        if self.choice == "named":
            return NamedCall(self.tools[0]["function"]["name"])
        return RequiredCalls() if self.choice == "required" else None


def translate_tools(
    fields: Fields, read: Callable[[Any, str], dict[str, Any]]
) -> list[dict[str, Any]] | None:
    """Return the tools of another API's request, each as `read` makes of it and its name in the request.

    Raises:
        ApiError: they are no list, or `read` refuses one.
    """
    tools = fields.values.get("tools")
    if tools is None:
        return None
    if not isinstance(tools, list):
        raise fields.wrong("tools", "a list")
    return [read(tool, f"tools[{index}]") for index, tool in enumerate(tools)]


def read_tools(fields: Fields) -> ToolUse:
    """Read `tools`, `tool_choice` and `parallel_tool_calls`.

    Raises:
        ApiError: one of them is wrong, or names a tool that is not there.
    """
    for name in ("functions", "function_call"):
        if fields.has(name):
            raise not_supported(name, f"{name} (use tools)")
    tools = _read_list(fields)
    is_parallel = fields.boolean("parallel_tool_calls", True)
    choice = fields.values.get("tool_choice")
    if choice == "none":
        # Nothing keeps the model from calling a tool that it sees; so it sees none.
        return ToolUse(is_parallel=is_parallel)
    if choice in (None, "auto"):
        return ToolUse(tools, "auto", is_parallel, tools)
    if not tools:
        raise bad_request("tool_choice is only allowed with tools", "tool_choice")
    if choice == "required":
        return ToolUse(tools, "required", is_parallel, tools)
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        return _allowed(fields, choice, tools, is_parallel)
    named = (_named(fields, choice, tools),)
    return ToolUse(named, "named", is_parallel, tools)


def _read_list(fields: Fields) -> tuple[Tool, ...]:
    tools = fields.values.get("tools")
    if tools is None:
        return ()
    if not isinstance(tools, list) or len(tools) > _MAX_TOOLS:
        raise fields.wrong("tools", f"a list of at most {_MAX_TOOLS} tools")
    return tuple(_read_tool(tool, fields.name(f"tools[{i}]")) for i, tool in enumerate(tools))


def _read_tool(tool: Any, name: str) -> Tool:
    kind = tool.get("type", "function") if isinstance(tool, dict) else None
    if isinstance(kind, str) and kind != "function":
        raise not_supported(name, f"a tool of type {kind[:40]!r}")
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict):
        raise bad_request(f"{name} must be an object with a function and its name", name)
    inner = Fields(function, prefix=f"{name}.function.")
    called = inner.string("name")
    if not called or len(called) > _MAX_NAME_CHARACTERS:
        raise inner.wrong("name", f"a string of 1 to {_MAX_NAME_CHARACTERS} characters")
    inner.mapping("parameters")
    inner.string("description")
    inner.boolean("strict")
    return dict(tool)


def _named(fields: Fields, choice: Any, tools: tuple[Tool, ...]) -> Tool:
    """Return the tool that a choice names."""
    given = choice.get("function") if isinstance(choice, dict) else None
    function: dict[str, Any] = given if isinstance(given, dict) else {}
    name = function.get("name")
    if not isinstance(name, str) or choice.get("type", "function") != "function":
        expected = "auto, required, none or an object that names a function"
        raise fields.wrong("tool_choice", expected)
    check_fields(Fields(choice, prefix="tool_choice."), TOOL_CHOICE)
    check_fields(Fields(function, prefix="tool_choice.function."), TOOL_CHOICE_FUNCTION)
    for tool in tools:
        if tool["function"]["name"] == name:
            return tool
    raise bad_request(f"tool_choice names {name[:100]!r}, which is not in tools", "tool_choice")


def _allowed(
    fields: Fields, choice: Mapping[str, Any], tools: tuple[Tool, ...], is_parallel: bool
) -> ToolUse:
    """Read OpenAI's `allowed_tools`: the model sees these alone."""
    inner = Fields(
        Fields(choice, prefix="tool_choice.").mapping("allowed_tools"),
        prefix="tool_choice.allowed_tools.",
    )
    check_fields(Fields(choice, prefix="tool_choice."), ALLOWED_CHOICE)
    check_fields(inner, ALLOWED_TOOLS)
    mode = inner.values.get("mode")
    listed = inner.values.get("tools")
    if mode not in ("auto", "required"):
        raise inner.wrong("mode", "auto or required")
    if not isinstance(listed, list) or not 0 < len(listed) <= _MAX_TOOLS:
        raise inner.wrong("tools", "a list of at least one tool")
    allowed = tuple(_named(fields, each, tools) for each in listed)
    return ToolUse(allowed, mode, is_parallel, allowed)
