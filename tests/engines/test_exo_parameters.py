"""Every parameter of exo-engine: right use is accepted, each misuse refused for its reason."""

from exo_inference.engines import get_engine
from exo_inference.engines.exo import PLATFORM_OWNED
from exo_inference.engines.flags.problems import REASONS
from exo_inference.wire import EngineParameter

ENGINE = get_engine("exo")
PARAMETERS = ENGINE.parameters()


def right_value(parameter: EngineParameter) -> str:
    by_type = {
        "integer": "256" if parameter.name == "cpu-threads" else "1024",
        "float": "0.5",
        "number": "0.5",
        "json": "{}",
    }
    return (parameter.allowed_values or [by_type.get(parameter.type, "text")])[0]


def reasons(*items: str) -> list[str]:
    problems = ENGINE.read(items).problems
    assert all(problem.reason in REASONS and problem.detail for problem in problems)
    return [problem.reason for problem in problems]


def test_right_use_of_every_parameter_is_accepted() -> None:
    for parameter in PARAMETERS:
        for flag in parameter.flags:
            value = right_value(parameter)
            uses = (
                [(flag,)] if parameter.type == "boolean" else [(f"{flag}={value}",), (flag, value)]
            )
            for items in uses:
                assert reasons(*items) == [], items


def test_misuse_of_every_parameter_is_refused_for_its_reason() -> None:
    for parameter in PARAMETERS:
        flag, value = parameter.flags[0], right_value(parameter)
        if parameter.type == "boolean":
            assert reasons(f"{flag}=perhaps") == ["boolean"]
            continue
        assert reasons(flag) == ["missing"]
        assert reasons(f"{flag}={value}", flag, value) == ["duplicate"]
        if parameter.allowed_values:
            assert reasons(flag, "no-such-choice") == ["choice"]
        elif parameter.type in ("integer", "float", "number"):
            assert reasons(flag, "many") == ["type"]
        elif parameter.type == "json":
            assert reasons(flag, "{") == ["json"]


def test_other_items_are_refused_for_their_reason() -> None:
    for name in PLATFORM_OWNED:
        assert reasons(f"--{name}=1") == ["owned"], name
    assert reasons("text") == ["stray"]
    assert reasons("--seed=1\x00") == ["type"]
    assert reasons("--no-such-flag") == ["unknown"]


def test_flags_are_found_by_meaning() -> None:
    (problem,) = ENGINE.read(["--max-tokens=5"]).problems
    assert problem.detail.endswith("did you mean --max-model-len?")
    assert problem.flag == "--max-tokens"
