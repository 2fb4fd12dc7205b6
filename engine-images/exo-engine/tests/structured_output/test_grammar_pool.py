"""Schemas that are made to hurt: each is compiled or refused within bounds, and others are served."""

from __future__ import annotations

import asyncio
import resource
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from exo_engine.server.api_errors import ApiError
from exo_engine.server.constraints import read_constraint
from exo_engine.server.fields import Fields
from exo_engine.server.pools import grammar_pool
from exo_engine.server.pools.grammar_pool import GrammarPool

pytest.importorskip("llguidance", reason="the engine has no grammars without it")

MODEL = Path(__file__).parents[4] / "exo_inference/hub/builtin_models/tiny-chat"
VOCABULARY_SIZE = 3072


def nested(depth: int) -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(depth):
        schema = {"properties": {"a": schema}}
    return schema


def table(number: int) -> dict[str, Any]:
    return {f"p{each}": {"type": "string"} for each in range(number)}


TWICE = {
    f"d{n}": {
        "properties": {"a": {"$ref": f"#/$defs/d{n + 1}"}, "b": {"$ref": f"#/$defs/d{n + 1}"}}
    }
    for n in range(40)
} | {"d40": {}}
LONG = {"minItems": 3000, "maxItems": 100_000}
ATTACKS: dict[str, dict[str, Any]] = {
    "quantifiers in quantifiers": {"guided_regex": "((a{1,1000}){1,1000}){1,1000}"},
    "backtracking": {"guided_regex": "(.*a){30}.{200}(x+x+)+y"},
    "intersected expressions": {
        "guided_json": {
            "allOf": [{"type": "string", "pattern": f"(a|b)*a(a|b){{{20 + n}}}"} for n in range(6)]
        }
    },
    "long strings in long lists": {
        "guided_json": {
            **LONG,
            "items": {**LONG, "items": {"type": "string", "minLength": 3000, "maxLength": 90_000}},
        }
    },
    "a billion items": {"guided_json": {"type": "array", "minItems": 10**9}},
    "enumeration of numbers": {"guided_json": {"enum": list(range(100_000))}},
    "enumeration of texts": {"guided_json": {"enum": [f"value {n}" for n in range(20_000)]}},
    "many properties": {"guided_json": {"properties": table(8000)}},
    "ten megabytes": {"guided_json": {"enum": ["x" * 10_000_000]}},
    "sixty levels": {"guided_json": nested(30)},
    "ten thousand levels": {"guided_json": nested(10_000)},
    "a schema that is itself": {"guided_json": {"$ref": "#"}},
    "references that double": {"guided_json": {"$defs": TWICE, "$ref": "#/$defs/d0"}},
    "product of alternatives": {
        "guided_json": {
            "allOf": [
                {"anyOf": [{"type": "object", "properties": table(n)} for n in range(6)]}
                for _ in range(8)
            ]
        }
    },
    "multiples of a prime": {
        "guided_json": {"type": "integer", "multipleOf": 982451653, "minimum": 10**15}
    },
    "ambiguous rules": {"guided_grammar": 'start: s\ns: s s | s s s | "a" | '},
    "rules that double": {
        "guided_grammar": "start: a0\n"
        + "".join(f"a{n}: a{n + 1} a{n + 1} a{n + 1}\n" for n in range(200))
        + 'a200: "x"'
    },
    "null byte": {"guided_regex": "a\0b"},
    "half a character": {"guided_json": '{"const": "\\ud800"}'},
}


def run(*requests: dict[str, Any]) -> tuple[list[str], list[float]]:
    """Return what a pool says of requests, and how long it took for each that it compiled."""

    async def ask() -> list[str]:
        pool = GrammarPool(MODEL, MODEL, VOCABULARY_SIZE, seconds.append)
        try:
            return [await verdict(pool, each) for each in requests]
        finally:
            await pool.close()

    async def verdict(pool: GrammarPool, request: dict[str, Any]) -> str:
        try:
            constraint = read_constraint(Fields(request))
            assert constraint is not None
            await pool.check(constraint)
        except ApiError as exc:
            return exc.message if exc.status == 400 and exc.param in request else repr(exc)
        return "compiled"

    seconds: list[float] = []
    return asyncio.run(ask()), seconds


@pytest.mark.slow
def test_hostile_grammars_are_compiled_or_refused_and_the_next_one_is_served():
    said, _ = run(*ATTACKS.values(), {"guided_choice": ["a", "b"]})
    told = dict(zip(ATTACKS, said, strict=False))
    assert said[-1] == "compiled"
    assert told["sixty levels"] == told["references that double"] == "compiled"
    for name in (
        "ten megabytes",
        "ten thousand levels",
        "a schema that is itself",
        "half a character",
    ):
        assert told[name] != "compiled"
    assert "1.5 seconds" in told["many properties"]
    assert all(len(each) < 2500 for each in said)


def cost_of(*names: str) -> tuple[list[str], float, int]:
    """Return what a pool says of a plain grammar and of attacks, and its processes' seconds and most bytes of one."""
    said, _ = run({"guided_choice": ["a", "b"]}, *(ATTACKS[each] for each in names))
    taken = resource.getrusage(resource.RUSAGE_CHILDREN)
    return said, taken.ru_utime + taken.ru_stime, taken.ru_maxrss * 1024


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
def test_a_hostile_grammar_takes_two_seconds_and_200_mb_at_most(name: str) -> None:
    # In processes of their own, whose only children are those of the pool.
    with ProcessPoolExecutor(1, get_context("fork")) as alone:
        _, seconds, num_bytes = alone.submit(cost_of).result()
    with ProcessPoolExecutor(1, get_context("fork")) as alone:
        said, seconds_with, num_bytes_with = alone.submit(cost_of, name).result()
    assert said[0] == "compiled"
    assert seconds_with - seconds < 2.0, said
    assert num_bytes_with - num_bytes < 200 * 2**20, said
    is_schema = "guided_json" in ATTACKS[name]
    assert said[1] == "compiled" or not is_schema or "(at " in said[1] or "guided_json" in said[1]


def test_a_grammar_is_compiled_once_and_so_is_one_that_is_refused():
    good, bad = {"guided_choice": ["a"]}, {"guided_json": {"not": {}}}
    said, seconds = run(good, good, bad, bad)
    assert said[0] == said[1] == "compiled"
    assert said[2] == said[3] != "compiled"
    assert len(seconds) == 2


def test_a_schema_that_is_false_is_refused_with_the_reason():
    (said,), _ = run({"guided_json": False})
    assert "no text can match a schema that is false (at the top)" in said


def test_only_so_many_verdicts_are_kept(monkeypatch):
    monkeypatch.setattr(grammar_pool, "_MAX_VERDICTS", 2)
    requests = [{"guided_choice": [name]} for name in "abca"]
    assert len(run(*requests)[1]) == 4
