"""Reads the files that `chat` is given: a JSON schema, and tools."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from exo_inference.cli.chat_stream import JsonSchema, Tools
from exo_inference.cli.text_files import read_text_file
from exo_inference.errors import UsageError

_WORDS = ("auto", "required", "none")


def read_schema(path: Path) -> JsonSchema:
    """Read the file of --json-schema.

    Raises:
        UsageError: it holds no schema.
    """
    schema = _read_json("--json-schema", path)
    if not isinstance(schema, dict):
        raise UsageError(
            f"--json-schema: {path} holds no object",
            hint='A schema is an object, such as {"type": "object", "properties": {...}}.',
        )
    # Servers take 64 letters, digits, - and _ as a schema's name.
    return JsonSchema(re.sub(r"[^A-Za-z0-9_-]", "_", path.stem)[:64] or "schema", schema)


def read_tools(path: Path, choice: str | None) -> Tools:
    """Read the file of --tools: functions in a list, each as OpenAI's API has it or without its wrapping.

    Args:
        path: of the file.
        choice: `auto`, `required`, `none`, a function's name, or None, which leaves it to the server.

    Raises:
        UsageError: it holds something else, or no function of that name.
    """
    found = _read_json("--tools", path)
    functions = [_function(each) for each in (found if isinstance(found, list) else [found])]
    names = [each["name"] for each in functions if each is not None]
    if not functions or len(names) != len(functions):
        raise UsageError(
            f"--tools: {path} holds something that is no function",
            hint='It is a list of functions, such as [{"name": "get_weather", "parameters": {...}}].',
        )
    if choice is not None and choice not in (*_WORDS, *names):
        known = ", ".join((*_WORDS, *names))
        raise UsageError(f"--tool-choice is {choice[:64]!r}, expected one of {known[:1000]}")
    wrapped = tuple({"type": "function", "function": each} for each in functions)
    return Tools(wrapped, _choice(choice))


def _function(value: Any) -> dict[str, Any] | None:
    if isinstance(value, dict) and value.get("type") == "function":
        value = value.get("function")
    is_one = isinstance(value, dict) and isinstance(value.get("name"), str)
    return value if is_one else None


def _choice(choice: str | None) -> str | dict[str, Any] | None:
    if choice is None or choice in _WORDS:
        return choice
    return {"type": "function", "function": {"name": choice}}


def _read_json(option: str, path: Path) -> Any:
    text = read_text_file(option, path, max_mib=1)
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as exc:
        raise UsageError(f"{option}: {path} is not JSON: {exc}") from exc


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no value of JSON")
