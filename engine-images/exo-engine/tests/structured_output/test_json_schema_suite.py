"""Every schema of the JSON Schema Test Suite is honoured, or refused by name.

The suite is that of jsonschema 4.26.0's source distribution, all drafts, beside its licence in `data/`.
"""

from __future__ import annotations

import itertools
import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from exo_engine.errors import InvalidSamplingParams
from exo_engine.structured_output import grammars
from exo_engine.structured_output.compiler import Compiler
from exo_engine.structured_output.schema_check import SchemaRefused, check
from exo_engine.structured_output.vocabulary import Vocabulary

pytest.importorskip("llguidance", reason="the engine has no grammars without it")

SUITE: dict[str, list[dict[str, Any]]] = json.loads(
    lzma.decompress((Path(__file__).parent / "data/json-schema-test-suite.json.xz").read_bytes())
)
DRAFTS = {
    "draft3": "http://json-schema.org/draft-03/schema#",
    "draft4": "http://json-schema.org/draft-04/schema#",
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft7": "http://json-schema.org/draft-07/schema#",
}
"""Schemas of these do not say so in the suite; in a request they must."""

NARROWER = {
    "format.json": "formats are kept to, and not only notes",
    "format/date-time.json": "a leap second comes at no time but 23:59:60Z",
    "format/time.json": "a leap second comes at no time but 23:59:60Z; in draft 3 a time has no zone",
    "format/email.json": "no quoted local parts, no addresses in brackets",
    "format/ipv6.json": "no IPv4 address inside",
    "ecmascript-regex.json": "U+FEFF is no blank",
}
"""Where an answer keeps to the schema, and some that would keep to it, too, never come."""
WIDER = {
    ("optional/content.json", "contentMediaType and contentEncoding are notes, as since draft 2019-09"),
    ("optional/ecmascript-regex.json", "U+FEFF is no blank"),
}  # fmt: skip


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    found = Compiler(256, max_entries=1)
    found.use(Vocabulary(tuple(bytes([each]) for each in range(256)), (), ()))
    return found


def texts(value: Any) -> Iterator[str]:
    """Yield a value as JSON, properties in any order."""
    if isinstance(value, dict):
        orders = (
            itertools.permutations(value)
            if len(value) <= 4
            else [tuple(value), tuple(sorted(value))]
        )
        for names in orders:
            for parts in itertools.product(*(tuple(texts(value[name])) for name in names)):
                pairs = (
                    f"{json.dumps(n, ensure_ascii=False)}:{part}"
                    for n, part in zip(names, parts, strict=True)
                )
                yield f"{{{','.join(pairs)}}}"
    elif isinstance(value, list):
        for parts in itertools.islice(itertools.product(*(tuple(texts(e)) for e in value)), 50):
            yield f"[{','.join(parts)}]"
    else:
        yield json.dumps(value, ensure_ascii=False)


def plain(value: Any) -> Any:
    """Return a value with whole numbers in the form that they are written in."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return int(value) if isinstance(value, float) and value == int(value) else value


def accepts(matcher: Any, value: Any) -> bool:
    """Whether the answer may be this value, in some order of its properties."""
    for text in itertools.islice(texts(value), 2000):
        each, tokens = matcher.deep_copy(), list(text.encode())
        if each.try_consume_tokens(tokens) == len(tokens) and each.is_accepting():
            return True
    return False


def with_draft(draft: str, schema: Any) -> Any:
    named = DRAFTS.get(draft)
    return {"$schema": named, **schema} if named and isinstance(schema, dict) else schema


def wrong(matcher: Any, tests: list[dict[str, Any]]) -> tuple[bool, bool]:
    """Return whether a valid value is refused, and whether an invalid one is accepted."""
    refused = any(not accepts(matcher, plain(each["data"])) for each in tests if each["valid"])
    return refused, any(accepts(matcher, each["data"]) for each in tests if not each["valid"])


@pytest.mark.parametrize(
    "draft",
    [
        "draft3",
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in ("draft4", "draft6", "draft2019-09")
        ),
        "draft7",
        "draft2020-12",
    ],
)
def test_every_schema_is_honoured_or_refused_by_name(draft: str, compiler: Compiler) -> None:
    num_honoured, faults = 0, []
    for file, groups in SUITE.items():
        if not file.startswith(f"{draft}/"):
            continue
        for group in groups:
            schema = with_draft(draft, group["schema"])
            try:
                check(schema)
                matcher = compiler.matcher(grammars.grammar(grammars.json_rule(schema)))
            except (SchemaRefused, InvalidSamplingParams):
                continue
            is_narrow, is_wide = wrong(matcher, group["tests"])
            is_known_narrow = any(file.endswith(end) for end in NARROWER)
            is_known_wide = any(file.endswith(end) for end, _ in WIDER)
            if (is_narrow and not is_known_narrow) or (is_wide and not is_known_wide):
                faults.append((file, group["description"], is_narrow, is_wide))
            else:
                num_honoured += 1
    assert not faults
    assert num_honoured >= (0 if draft == "draft3" else 90)
