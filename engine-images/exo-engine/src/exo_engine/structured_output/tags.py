"""Structural tags: free text in which a begin is followed by what a schema allows, and an end.

Both forms of vLLM are read: the older one with `structures` and `triggers`, and `format` with its parts.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from exo_engine.structured_output import grammars
from exo_engine.structured_output.schema_check import MAX_DEPTH, SchemaRefused, check, escaped

_MAX_PARTS = 4096
_FIELDS: Final[Mapping[str, frozenset[str]]] = {
    "const_string": frozenset({"value"}),
    "any_text": frozenset(),
    "json_schema": frozenset({"json_schema"}),
    "regex": frozenset({"pattern"}),
    "sequence": frozenset({"elements"}),
    "or": frozenset({"elements"}),
    "tag": frozenset({"begin", "content", "end"}),
    "triggered_tags": frozenset({"triggers", "tags", "at_least_one", "stop_after_first"}),
}
"""Of each kind of part, beside its type. What vLLM has more is refused by name: `excludes`, `style`."""
_STRUCTURE: Final = frozenset({"begin", "schema", "end"})


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
    if value.get("format") is not None:
        _check_fields(value, frozenset({"format"}), "")
        start = builder.rule(value["format"], "/format", 0)
    else:
        _check_fields(value, frozenset({"structures", "triggers"}), "")
        tags = [
            _tag_of(each, f"/structures/{number}")
            for number, each in enumerate(_objects(value, "structures", ""))
        ]
        start = builder.triggered({"tags": tags, "triggers": value.get("triggers")}, "", 0)
    return grammars.grammar(start, "".join(builder.rules))


def _tag_of(structure: Mapping[str, Any], at: str) -> dict[str, Any]:
    """Return what the older form says as a tag of the newer one."""
    _check_fields(structure, _STRUCTURE, at)
    content = {"type": "json_schema", "json_schema": structure.get("schema", {})}
    return {"begin": structure.get("begin"), "end": structure.get("end"), "content": content}


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
        if not isinstance(kind, str) or kind not in _FIELDS:
            raise SchemaRefused(f"a part of type {str(kind)[:40]!r} is not supported", at)
        if kind == "tag":
            return self._tag(part, at, depth)
        _check_fields(part, _FIELDS[kind], at)
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
        return self.triggered(part, at, depth)

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
        has_one = _flag(part, "at_least_one", at)
        if _flag(part, "stop_after_first", at):
            return tags if has_one else f"({tags} | {grammars.ANY_TEXT})"
        return f"({tags}{'+' if has_one else '*'} {grammars.ANY_TEXT})"

    def _tag(self, tag: Mapping[str, Any], at: str, depth: int) -> str:
        _check_fields(tag, _FIELDS["tag"], at)
        begin, end = _text(tag, "begin", at), _text(tag, "end", at)
        content = self.rule(tag.get("content"), f"{at}/content", depth + 1)
        pieces = [begin and grammars.literal(begin), content, end and grammars.literal(end)]
        return f"({' '.join(filter(None, pieces))})"

    def _parts(self, part: Mapping[str, Any], name: str, at: str, depth: int) -> Iterator[str]:
        for number, each in enumerate(_objects(part, name, at)):
            yield self.rule(each, f"{at}/{name}/{number}", depth + 1)


def _check_fields(part: Mapping[str, Any], known: frozenset[str], at: str) -> None:
    """Refuse a field that would be ignored, unless it asks for nothing."""
    for name, value in part.items():
        is_neutral = value is None or value == [] or (name, value) == ("style", "json")
        if name != "type" and name not in known and not is_neutral:
            place = f"{at}/{escaped(name[:64])}"
            raise SchemaRefused(f"{name[:64]!r} is not supported here", place)


def _flag(part: Mapping[str, Any], name: str, at: str) -> bool:
    found = part.get(name)
    if not isinstance(found, bool | None):
        raise SchemaRefused(f"{name} must be true or false", f"{at}/{name}")
    return bool(found)


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
