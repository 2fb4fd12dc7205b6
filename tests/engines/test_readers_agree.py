"""What the catalogue's check takes, admission takes as well, and every way to write a flag means the same.

Every flag of every engine is written in every form its engine has: valid, negated, misspelt,
repeated, with `_` for `-`, with blanks, as JSON, and one key of a JSON object at a time. What `Engine.check`
says of it, `preflight.judge` must say too; and what was written must be what is planned.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import fields

import pytest

from exo_inference.engines import DEFAULT_VERSION, ENGINES, VERSIONS, get_engine
from exo_inference.engines.flags.catalogue import flags_of, listed_releases
from exo_inference.planner import EngineParameters, find_gpu, find_model
from exo_inference.preflight import Subject, judge
from exo_inference.wire import EngineParameter

CASES = [(engine, None) for engine in ENGINES if engine != "vllm"]
CASES += [("vllm", release) for release in (listed_releases()[0], DEFAULT_VERSION, VERSIONS[-1])]
WORDS = ("true", "false", "1", "0", "yes", "no", "on", "off", "True", "OFF", "perhaps", "")
NUMBERS = ("8", "+8", " 8", "08", "8k", "8K", "1.5k", "1.5K", "1.5", "1e3", "auto", "None", "", "x")
TEXTS = {
    "float": ("0.5", ".5", "5e-1", " 0.5", "1_0", "nan", "inf", "None", "", "x"),
    "json": ("{}", '{ "a": [1, 2] }', "{'a': 1}", "{", "[]", "7", "None", ""),
    "string": ("text", "two words", "a=b", "-", "{{ x }}\n\ty", "None", "", "a\x00b"),
}
TEXTS |= {"number": TEXTS["float"], "enum": TEXTS["string"]}


def values_of(parameter: EngineParameter) -> tuple[str, ...]:
    """Return good and bad values of a flag."""
    if parameter.allowed_values:
        first = parameter.allowed_values[0]
        return (*parameter.allowed_values, first.upper(), f" {first}", "no-such-choice", "")
    return NUMBERS if parameter.type == "integer" else TEXTS[parameter.type]


def forms(parameter: EngineParameter) -> Iterator[tuple[str, ...]]:
    """Write a flag in every way, right and wrong."""
    for flag in parameter.flags:
        swapped = "--" + flag.removeprefix("--").replace("-", "_")
        yield (flag,)
        if parameter.type == "boolean":
            yield (f"--no-{flag.lstrip('-')}",)
            yield from ((f"{flag}={word}",) for word in WORDS)
            yield from ((flag, word) for word in WORDS)
            yield (swapped,)
            yield (flag, flag)
            continue
        yield from ((f"{flag}={value}",) for value in values_of(parameter))
        yield from ((flag, value) for value in values_of(parameter))
        value = (parameter.allowed_values or ["8" if parameter.type == "integer" else "{}"])[0]
        yield (f"{swapped}={value}",)
        yield (flag, value, flag, value)
        yield (f"{flag} {value}",)
        yield (f"{flag}.some.key={value}",)
        yield (f"{flag}.some_key", value)


def misspelt(parameter: EngineParameter) -> str:
    """Return the flag without its third letter."""
    name = parameter.name
    return f"--{name[:2]}{name[3:]}"


@pytest.mark.parametrize(
    ("name", "release", "share"),
    [
        pytest.param(*each, share, marks=pytest.mark.slow if is_slow else [])
        for each in CASES
        for share, is_slow in ((4, each[1] not in (None, DEFAULT_VERSION)), (1, True))
        if share == 1 or not is_slow
    ],
)
def test_admission_says_of_every_form_what_the_check_says(
    name: str, release: str | None, share: int
) -> None:
    """One of four flags, drawn by the hash of its name; as a slow test each."""
    engine, differences = get_engine(name), []
    for parameter in engine.parameters(release):
        if zlib.crc32(parameter.name.encode()) % share:
            continue
        for items in forms(parameter):
            checked = list(engine.read(items, release).problems)
            judged = judge(Subject(None, None, 1, items, engine=name, engine_version=release))
            found = [p for p in judged.flag_problems if p.reason not in ("model", "policy")]
            if found != checked:
                differences.append((items, checked, found))
    assert differences == []


@pytest.mark.parametrize("name", ENGINES)
def test_a_misspelt_flag_is_refused_with_the_same_words(name: str) -> None:
    engine = get_engine(name)
    for parameter in engine.parameters():
        items = (misspelt(parameter),)
        judged = judge(Subject(None, None, 1, items, engine=name))
        assert list(judged.flag_problems) == list(engine.read(items).problems)


MODEL, GPU = find_model("meta-llama/Llama-3.2-1B-Instruct"), find_gpu("H200")
PLANNED = [each.name for each in fields(EngineParameters)]


def planned(engine: str, release: str | None, *flags: str) -> EngineParameters:
    subject = Subject(MODEL, GPU, 1, flags, engine=engine, engine_version=release)
    plan = judge(subject, with_advice=False).plan
    assert plan is not None, flags
    return plan.parameters


SAME = [
    pytest.param("vllm", ["--max-model-len", "32k"], ["--max_model_len=32000"], id="suffix"),
    pytest.param("vllm", ["--max-model-len= 8192"], ["--max-model-len=8192"], id="blank"),
    pytest.param("vllm", ["--max-model-len=-1"], ["--max-model-len", "auto"], id="auto"),
    pytest.param("vllm", ["--block-size=None"], [], id="None is not given"),
    pytest.param("vllm", ["--kv-cache-memory-bytes="], [], id="empty is not given"),
    pytest.param("vllm", ["-q", "fp8"], ["--quantization=fp8"], id="short"),
    pytest.param("vllm", ["-tp=1"], ["--tensor-parallel-size", "1"], id="short, with ="),
    pytest.param("vllm", ["--no_enforce_eager"], ["--no-enforce-eager"], id="negated with _"),
    pytest.param(
        "vllm",
        ["--speculative-config.method=ngram", "--speculative-config.num_speculative_tokens", "4"],
        ["-sc", '{ "num_speculative_tokens": 4, "method": "ngram" }'],
        id="keys one by one",
    ),
    pytest.param(
        "vllm",
        ["--speculative-config", '{"method": "ngram", "max_model_len": 8k}'],
        ["--speculative-config", '{"method": "ngram", "max_model_len": 8000}'],
        id="a suffix in JSON",
    ),
    pytest.param(
        "vllm",
        ["--limit-mm-per-prompt.image=0", "--limit-mm-per-prompt.video", "0"],
        ['--limit-mm-per-prompt={"image":0, "video":0}'],
        id="another object",
    ),
    pytest.param("exo", ["--enable-prefix-caching=off"], ["--no-enable-prefix-caching"], id="off"),
    pytest.param("exo", ["--enable_prefix_caching=YES"], ["--enable-prefix-caching"], id="yes"),
    pytest.param("exo", ["--enforce-eager=on"], ["--enforce-eager"], id="on"),
    pytest.param(
        "exo",
        ["--device-memory-utilization=0.5"],
        ["--gpu-memory-utilization=0.5"],
        id="another name",
    ),
]


@pytest.mark.parametrize(("engine", "written", "plainly"), SAME)
def test_what_was_written_is_what_is_planned(
    engine: str, written: list[str], plainly: list[str]
) -> None:
    found, expected = (planned(engine, None, *flags) for flags in (written, plainly))
    assert [(n, getattr(found, n)) for n in PLANNED] == [(n, getattr(expected, n)) for n in PLANNED]


@pytest.mark.parametrize("release", listed_releases())
def test_every_flag_that_is_planned_is_read_in_each_of_its_forms(release: str) -> None:
    """By every spelling, in one item and in two."""
    known = {flag.name.replace("-", "_"): flag for flag in flags_of(release).flags}
    for name in PLANNED:
        flag = known.get(name)
        if flag is None or name in ("tensor_parallel_size", "pipeline_parallel_size"):
            continue
        if name.endswith("parallel_size") or name in ("speculative_config", "quantization"):
            continue  # they do not go with any model and one GPU
        by_type = {"integer": "8", "number": "0.5", "json": json.dumps({"image": 1})}
        value = (flag.choices or [by_type.get(flag.type, "auto")])[0]
        for spelling in flag.spellings:
            swapped = spelling[:2] + spelling[2:].replace("-", "_")
            if flag.type == "boolean":
                written = [(spelling,), (swapped,)]
            else:
                written = [(f"{spelling}={value}",), (spelling, value), (f"{swapped}={value}",)]
            read = [getattr(planned("vllm", release, *items), name) for items in written]
            assert read == read[:1] * len(read), (name, written)
            assert read[0] is not None, (name, written)
