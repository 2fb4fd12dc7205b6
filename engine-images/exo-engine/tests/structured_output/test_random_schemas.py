"""Random schemas at temperature 1: every answer is complete and valid, alone and among free ones."""

from __future__ import annotations

import functools
import json
import random
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from exo_engine.llm import LLM
from exo_engine.sampling_params import SamplingParams
from exo_engine.structured_output import grammars
from exo_engine.structured_output.schema_check import check
from exo_engine.tokenizer import Tokenizer

pytest.importorskip("llguidance", reason="the engine has no grammars without it")

MODEL = Path(__file__).parents[4] / "exo_inference/hub/builtin_models/tiny-chat"
PATTERNS = ("^[a-c]{2,5}$", "^[A-Z][a-z]{0,4}-[0-9]{2}$", "^(x|yz){1,3}$", r"^\d{4}/\d{2}$")
FORMATS = ("date", "date-time", "time", "ipv4", "uuid")
CHECKED = jsonschema.FormatChecker(("date", "ipv4", "uuid"))  # its times are those of draft 3
NUM_AT_ONCE = 16
MAX_TOKENS = 1500


class Schemas:
    """Random schemas whose texts are short enough to be finished."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._num_shared = 0

    def make(self) -> dict[str, Any]:
        """Return a schema with definitions that it refers to, one of them to another, one to itself."""
        self._num_shared = self._random.randint(1, 3)
        shared = {f"s{n}": self._plain() for n in range(self._num_shared)}
        shared["pair"] = self._linked({"anyOf": [{"$ref": "#/$defs/s0"}, {"type": "null"}]})
        # A list of any length, which is the model's will; `params_of` sees to an end.
        shared["chain"] = self._linked({"anyOf": [{"type": "null"}, {"$ref": "#/$defs/chain"}]})
        return {**self._object(0), "$defs": shared}

    def _linked(self, following: dict[str, Any]) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {"value": self._plain(), "next": following},
            "required": ["value", "next"],
            "additionalProperties": False,
        }

    def _any(self, depth: int) -> dict[str, Any]:
        kinds = [self._plain, self._plain, self._reference]
        if depth < 3:
            kinds += [lambda: self._object(depth), lambda: self._array(depth)]
            kinds += [lambda: {"anyOf": [self._any(depth + 1), self._plain()]}]
        return self._random.choice(kinds)()

    def _object(self, depth: int) -> dict[str, Any]:
        names = self._random.sample(string.ascii_lowercase, self._random.randint(1, 4 - depth))
        properties = {name * self._random.randint(1, 3): self._any(depth + 1) for name in names}
        required = self._random.sample(sorted(properties), self._random.randint(0, len(properties)))
        return {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        }

    def _array(self, depth: int) -> dict[str, Any]:
        least = self._random.randint(0, 2)
        most = least + self._random.randint(0, 2)
        return {"type": "array", "items": self._any(depth + 1), "minItems": least, "maxItems": most}

    def _reference(self) -> dict[str, Any]:
        names = [f"s{n}" for n in range(self._num_shared)] + ["pair", "chain"]
        return {"$ref": f"#/$defs/{self._random.choice(names)}"}

    def _plain(self) -> dict[str, Any]:
        least = self._random.randint(-1000, 1000)
        most = least + self._random.randint(0, 1000)
        choices: list[dict[str, Any]] = [
            {"type": "string", "minLength": self._random.randint(0, 3), "maxLength": 8},
            {"type": "string", "pattern": self._random.choice(PATTERNS)},
            {"type": "string", "format": self._random.choice(FORMATS)},
            {"type": "integer", "minimum": least, "maximum": most},
            {"type": "number", "minimum": least, "exclusiveMaximum": most + 1, "multipleOf": 0.25},
            {"type": ["boolean", "null"]},
            {"enum": [1, "two", None, [3, {"four": 5}], 'quo"te', "größe"]},
            {"const": self._random.choice(["only", 7, False])},
        ]
        return self._random.choice(choices)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    found = LLM(MODEL, device="cpu", dtype="float32", max_num_seqs=2 * NUM_AT_ONCE)
    yield found
    found.close()


@functools.cache
def openings() -> dict[int, float]:
    """Return a bias against tokens that begin an object."""
    tokenizer = Tokenizer(MODEL)
    texts = {each: tokenizer.token_text(each).lstrip() for each in range(tokenizer.vocabulary_size)}
    return {token_id: -6.0 for token_id, text in texts.items() if text.startswith("{")}


def params_of(seed: int, schema: dict[str, Any], room: int) -> SamplingParams:
    """Return how to answer; where a list could go on, going on is made less likely than its end."""
    has_chain = json.dumps(schema).count("#/$defs/chain") > 1
    return SamplingParams(
        seed=seed,
        max_tokens=min(MAX_TOKENS, room),
        logit_bias=openings() if has_chain else None,
        structured_outputs=grammars.grammar(grammars.json_rule(schema)),
    )


def run(llm: LLM, seeds: range, *, has_free: bool) -> None:
    schemas = [Schemas(seed).make() for seed in seeds]
    for schema in schemas:
        check(schema)
    room = llm.core.config.max_model_len - 16
    params = [params_of(seed, schema, room) for seed, schema in zip(seeds, schemas, strict=True)]
    free = [SamplingParams(seed=seed, max_tokens=30) for seed in seeds] if has_free else []
    answers = llm.generate(["Write JSON:"] * (len(params) + len(free)), [*params, *free])
    for seed, schema, answer in zip(seeds, schemas, answers, strict=False):
        assert answer.finish_reason == "stop", (seed, schema, answer.text)
        value = json.loads(answer.text or "")
        jsonschema.validate(value, schema, format_checker=CHECKED)


def test_random_schemas_give_valid_answers(llm: LLM) -> None:
    run(llm, range(NUM_AT_ONCE // 4), has_free=True)


@pytest.mark.slow
@pytest.mark.parametrize("has_free", [False, True], ids=["alone", "among free ones"])
@pytest.mark.parametrize("first", range(0, 500, 4 * NUM_AT_ONCE))
def test_five_hundred_random_schemas_give_valid_answers(
    llm: LLM, first: int, has_free: bool
) -> None:
    run(llm, range(first, min(500, first + 4 * NUM_AT_ONCE)), has_free=has_free)
