"""Every flag of every listed release: right use is accepted, each misuse refused for its reason.

The cases are made from the catalogue file itself, by this file's own reading of it.
"""

import json
from collections.abc import Iterator, Sequence
from importlib import resources
from typing import Any

import pytest

from exo_inference.engines import DEFAULT_VERSION, vllm
from exo_inference.engines.flags.problems import ParameterProblem
from exo_inference.engines.vllm import PLATFORM_OWNED

Record = dict[str, Any]

CATALOGUE = json.loads(
    (resources.files("exo_inference.engines") / "catalog" / "vllm.json").read_text("utf-8")
)
RELEASES = CATALOGUE["versions"]
every_release = pytest.mark.parametrize(
    "release",
    [
        pytest.param(
            each,
            marks=[] if each in (RELEASES[0], DEFAULT_VERSION, RELEASES[-1]) else pytest.mark.slow,
        )
        for each in RELEASES
    ],
)


def check(items: Sequence[str], release: str) -> list[ParameterProblem]:
    return list(vllm.ENGINE.read(items, release).problems)


def order(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def exists(record: Record, release: str) -> bool:
    last = record.get("until") or RELEASES[-1]
    return order(record["since"]) <= order(release) <= order(last)


def settable(release: str) -> Iterator[Record]:
    """Flags of a release that are the user's, with choices of that release as `now`."""
    for record in CATALOGUE["flags"]:
        if exists(record, release) and record["name"] not in PLATFORM_OWNED:
            known = [v for v in record.get("choices", {}) if order(v) <= order(release)]
            now = record["choices"][max(known, key=order)] if known else []
            yield {**record, "now": now}


def spellings(record: Record, release: str) -> list[str]:
    later = record.get("later", {})
    return [f for f in record["flags"] if order(later.get(f, "0.0.0")) <= order(release)]


def in_bounds(record: Record) -> str:
    bounds = {name: float(limit) for name, limit in record.get("bounds", {}).items()}
    if record["type"] == "number":
        return str(min(bounds.get("le", 1.0), bounds.get("lt", 2.0) / 2))
    return str(int(max(bounds.get("ge", 1), bounds.get("gt", 0) + 1, 1)))


def right_value(record: Record) -> str:
    if record["now"]:
        return str(record["now"][-1])
    if record["type"] == "json":
        return '["a"]' if record.get("defaults", {}) and "[" in str(record["defaults"]) else "{}"
    return in_bounds(record) if record["type"] in ("integer", "number") else "some-text"


def reasons(items: list[str], release: str) -> list[tuple[int, str]]:
    return [(problem.index, problem.reason) for problem in check(items, release)]


@every_release
def test_right_use_of_every_flag_is_accepted(release: str) -> None:
    for record in settable(release):
        for flag in spellings(record, release):
            value = right_value(record)
            if record["type"] == "boolean":
                uses = [[flag], *([[record["no"]]] if "no" in record else [])]
            else:
                uses = [[flag, value], [f"{flag}={value}"]]
                uses += [[flag, value, value]] if record.get("several") else []
            if flag.startswith("--"):
                head, _, tail = uses[0][0].removeprefix("--").partition("=")
                uses.append(["--" + head.replace("-", "_"), *([tail] if tail else uses[0][1:])])
            for items in uses:
                assert reasons(items, release) == [], items


@every_release
def test_every_choice_and_every_default_is_accepted(release: str) -> None:
    for record in settable(release):
        values = list(record["now"])
        known = [v for v in record.get("defaults", {}) if order(v) <= order(release)]
        if known and record["type"] != "boolean":
            values.append(record["defaults"][max(known, key=order)])
        for value in values:
            if value:
                assert reasons([f"--{record['name']}={value}"], release) == [], record["name"]


@every_release
def test_wrong_choice_is_refused_and_the_choices_are_told(release: str) -> None:
    for record in settable(release):
        if record["now"]:
            (problem,) = check([f"--{record['name']}=no-such-choice"], release)
            assert problem.reason == "choice", record["name"]
            assert str(record["now"][0]) in problem.detail


@every_release
def test_wrong_type_is_refused(release: str) -> None:
    for record in settable(release):
        name = f"--{record['name']}"
        if record["type"] in ("integer", "number") and not record["now"]:
            assert reasons([name, "many"], release) == [(1, "type")], name
            assert reasons([f"{name}=1.5.2"], release) == [(0, "type")], name
        if record["type"] == "json":
            for text in ("{", '{"a": }', "{'a': 1}", "[1", "7", '"text"'):
                assert reasons([name, text], release) == [(1, "json")], (name, text)


@every_release
def test_value_out_of_range_is_refused(release: str) -> None:
    beyond = {
        "gt": lambda limit: limit,
        "ge": lambda limit: limit - 1,
        "lt": lambda limit: limit,
        "le": lambda limit: limit + 1,
    }
    for record in settable(release):
        for bound, limit in record.get("bounds", {}).items():
            if not record["now"]:
                value = beyond[bound](float(limit))
                text = str(int(value)) if record["type"] == "integer" else str(value)
                assert reasons([f"--{record['name']}={text}"], release) == [(0, "range")], record


@every_release
def test_missing_value_is_refused(release: str) -> None:
    for record in settable(release):
        if record["type"] != "boolean":
            name = f"--{record['name']}"
            assert reasons([name], release) == [(0, "missing")]
            assert reasons([name, "--enforce-eager"], release) == [(0, "missing")]


@every_release
def test_value_for_a_boolean_is_refused_with_the_right_form(release: str) -> None:
    for record in settable(release):
        if record["type"] == "boolean":
            name = f"--{record['name']}"
            for items in ([f"{name}=true"], [name, "true"]):
                (problem,) = check(items, release)
                assert (problem.index, problem.reason) == (0, "boolean")
                assert problem.detail.endswith(f"write {name}")
            (problem,) = check([f"{name}=false"], release)
            assert problem.detail.endswith(record.get("no") or "leave it out")


@every_release
def test_no_form_of_other_flags_is_refused(release: str) -> None:
    for record in settable(release):
        if "no" not in record:
            assert reasons([f"--no-{record['name']}"], release) == [(0, "no-form")], record["name"]


@every_release
def test_second_use_is_refused(release: str) -> None:
    for record in settable(release):
        name, value = f"--{record['name']}", right_value(record)
        if not record.get("repeatable"):
            once = [name] if record["type"] == "boolean" else [f"{name}={value}"]
            again = len(once)
            assert reasons(once * 2, release) == [(again, "duplicate")], name


@every_release
def test_unknown_key_of_an_object_is_refused(release: str) -> None:
    for record in settable(release):
        keys = record.get("keys", {})
        present = [
            k
            for k, (_, *life) in keys.items()
            if exists(dict(zip(("since", "until"), life, strict=True)), release)
        ]
        name = f"--{record['name']}"
        for key in present:
            assert reasons([f"{name}={json.dumps({key: None})}"], release) == [], (name, key)
        if present:
            assert reasons([f'{name}={{"no_such_key": 1}}'], release) == [(0, "key")], name
            assert reasons([f"{name}.no_such_key=1"], release) == [(0, "key")], name
        for key in keys.keys() - present:
            assert reasons([f"{name}.{key}=1"], release) == [(0, "key")], (name, key)


@every_release
def test_flag_of_another_release_is_refused_with_that_release(release: str) -> None:
    for record in CATALOGUE["flags"]:
        if exists(record, release) or record["name"] in PLATFORM_OWNED:
            continue
        is_later = order(record["since"]) > order(release)
        (problem,) = check([record["flags"][0]], release)
        assert problem.reason == ("not-yet" if is_later else "removed"), record["name"]
        assert f"vLLM {record['since'] if is_later else record['until']}" in problem.detail


@every_release
def test_flags_of_the_platform_are_refused_with_the_reason(release: str) -> None:
    for record in CATALOGUE["flags"]:
        if exists(record, release) and record["name"] in PLATFORM_OWNED:
            for flag in spellings(record, release):
                (problem,) = check([flag, "1"], release)[:1]
                assert problem.reason == "owned"
                assert PLATFORM_OWNED[record["name"]] in problem.detail


@every_release
def test_misspelt_flag_is_refused_and_the_right_one_is_told(release: str) -> None:
    wrong = 0
    flags = [record for record in settable(release) if len(record["name"]) > 5]
    for record in flags:
        name = record["name"]
        (problem,) = check([f"--{name[:4]}{name[5:]}"], release)  # a letter is missing
        assert problem.reason == "unknown", name
        wrong += not problem.detail.endswith(f"did you mean --{name}?")
    assert wrong <= len(flags) // 50  # names that differ by one letter from another one


@every_release
def test_help_lists_every_flag_of_the_user_with_text_defaults(release: str) -> None:
    listed = {parameter.name: parameter for parameter in vllm.ENGINE.parameters(release)}
    expected = {record["name"]: record for record in settable(release)}
    assert listed.keys() == expected.keys()
    for name, parameter in listed.items():
        wire = parameter.model_dump(mode="json", by_alias=True)
        assert isinstance(wire["default"], str)
        assert wire["allowed-values"] == expected[name]["now"]
        assert parameter.type in {"integer", "float", "string", "boolean", "enum", "json"}
        assert set(parameter.flags) >= set(spellings(expected[name], release))
