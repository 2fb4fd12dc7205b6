"""Structural tags: free text in which a begin is followed by what a schema allows, and an end.

Both forms of vLLM are read: the older one with `structures` and `triggers`, and `format` with its parts.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any

from exo_engine.structured_output import grammars
from exo_engine.structured_output.schema_check import MAX_DEPTH, SchemaRefused, check

_MAX_PARTS = 4096


def tag_grammar(value: Any) -> str:
    """Return the grammar of a structural tag, an object or JSON text of one.

    Raises:
        SchemaRefused: it is none, or has a part that is not supported.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as exc:
            raise SchemaRefused("a structural tag that is text must be JSON", "") from exc
    if not isinstance(value, dict) or value.get("type", "structural_tag") != "structural_tag":
        raise SchemaRefused("a structural tag is an object of type 'structural_tag'", "")
    builder = _Builder()
    if "format" in value:
        start = builder.rule(value["format"], "/format", 0)
    else:
        tags = [
            {
                "begin": each.get("begin"),
                "end": each.get("end"),
                "content": {"type": "json_schema", "json_schema": each.get("schema", {})},
            }
            for each in _objects(value, "structures", "")
        ]
        start = builder.triggered({"tags": tags, "triggers": value.get("triggers")}, "", 0)
    return grammars.grammar(start, "".join(builder.rules))


class _Builder:
    """Makes rules of parts; those that need a name are in `rules`."""

    def __init__(self) -> None:
        self.rules: list[str] = []
        self._names = (f"tag_{number}" for number in itertools.count())
        self._num_parts = 0

    def rule(self, part: Any, at: str, depth: int) -> str:
        """Return the rule of one part."""
        self._num_parts += 1
        if self._num_parts > _MAX_PARTS or depth > MAX_DEPTH:
            raise SchemaRefused(f"more than {_MAX_PARTS} parts, or {MAX_DEPTH} levels of them", at)
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "const_string":
            return grammars.literal(_text(part, "value", at))
        if kind == "any_text":
            return grammars.ANY_TEXT
        if kind == "json_schema":
            check(part.get("json_schema"))
            return grammars.json_rule(part["json_schema"])
        if kind == "regex":
            return grammars.regex_rule(_text(part, "pattern", at))
        if kind in ("sequence", "or"):
            rules = list(self._parts(part, "elements", at, depth))
            return grammars.any_of(rules) if kind == "or" else f"({' '.join(rules)})"
        if kind == "tag":
            return self._tag(part, at, depth)
        if kind == "triggered_tags":
            return self.triggered(part, at, depth)
        raise SchemaRefused(f"a part of type {str(kind)[:40]!r} is not supported", at)

    def triggered(self, part: Mapping[str, Any], at: str, depth: int) -> str:
        """Return a rule for text in which each trigger is followed by the rest of one of its tags."""
        triggers = part.get("triggers")
        if not isinstance(triggers, list) or not all(isinstance(t, str) and t for t in triggers):
            raise SchemaRefused("triggers are a list of texts that are not empty", f"{at}/triggers")
        bodies: dict[str, list[str]] = {trigger: [] for trigger in triggers}
        for number, tag in enumerate(_objects(part, "tags", at)):
            place = f"{at}/tags/{number}"
            begin = _text(tag, "begin", place)
            trigger = next((each for each in triggers if begin.startswith(each)), None)
            if trigger is None:
                raise SchemaRefused("begin starts with none of the triggers", f"{place}/begin")
            rest = {**tag, "begin": begin[len(trigger) :]}
            bodies[trigger].append(self._tag(rest, place, depth + 1))
        starts = []
        for trigger, rules in bodies.items():
            if rules:
                name = next(self._names)
                self.rules.append(
                    f"{name}[lazy]: {grammars.ANY_TEXT} {grammars.literal(trigger)}\n"
                )
                starts.append(f"{name} {grammars.any_of(rules)}")
        if not starts:
            return grammars.ANY_TEXT
        tags = grammars.any_of(starts)
        if part.get("stop_after_first"):
            return tags if part.get("at_least_one") else f"({tags} | {grammars.ANY_TEXT})"
        return f"({tags}{'+' if part.get('at_least_one') else '*'} {grammars.ANY_TEXT})"

    def _tag(self, tag: Mapping[str, Any], at: str, depth: int) -> str:
        begin, end = _text(tag, "begin", at), _text(tag, "end", at)
        content = self.rule(tag.get("content"), f"{at}/content", depth + 1)
        pieces = [begin and grammars.literal(begin), content, end and grammars.literal(end)]
        return f"({' '.join(filter(None, pieces))})"

    def _parts(self, part: Mapping[str, Any], name: str, at: str, depth: int) -> Iterator[str]:
        for number, each in enumerate(_objects(part, name, at)):
            yield self.rule(each, f"{at}/{name}/{number}", depth + 1)


def _objects(part: Mapping[str, Any], name: str, at: str) -> list[Mapping[str, Any]]:
    found = part.get(name)
    if not isinstance(found, list) or not found or not all(isinstance(e, dict) for e in found):
        raise SchemaRefused(f"{name} must be a list of objects that is not empty", f"{at}/{name}")
    return found


def _text(part: Mapping[str, Any], name: str, at: str) -> str:
    found = part.get(name)
    if not isinstance(found, str):
        raise SchemaRefused(f"{name} must be a string", f"{at}/{name}")
    return found
