"""values.yaml, its schema, the templates and the reference page say the same."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from scripts.generate_chart_pages import read_values
from tests.charts.rendering import (
    CHARTS,
    MINORS,
    NAMES,
    ROOT,
    SCENARIOS,
    Refused,
    problems,
    render,
    scenario_path,
    template,
)
from tests.charts.test_every_scenario import restrictions_broken

every_chart = pytest.mark.parametrize("chart", NAMES)


def schema_of(chart: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((CHARTS / chart / "values.schema.json").read_text())
    return found


def values_of(chart: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CHARTS / chart / "values.yaml").read_text())
    return found


def described(schema: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Return the dotted paths of all values that a schema describes one by one."""
    for name, child in schema.get("properties", {}).items():
        if prefix or name != "global":
            yield f"{prefix}{name}"
            yield from described(child, f"{prefix}{name}.")


@every_chart
def test_every_value_is_explained(chart: str) -> None:
    values = read_values((CHARTS / chart / "values.yaml").read_text())
    assert [value.path for value in values if not value.comment] == []


@every_chart
def test_schema_describes_exactly_the_values_there_are(chart: str) -> None:
    listed = {value.path for value in read_values((CHARTS / chart / "values.yaml").read_text())}
    engines = {f"platform.engineValues.{name}" for name in ENGINES}
    assert {path for path in described(schema_of(chart)) if path not in engines} == listed


ENGINES = schema_of("inference-deployment")["properties"]["engine"]["properties"]["name"]["enum"]


def test_every_engine_of_the_chart_may_have_values_of_its_own() -> None:
    platform = schema_of("exo-inference")["properties"]["platform"]["properties"]
    assert sorted(platform["engineValues"]["properties"]) == sorted(ENGINES)


@every_chart
def test_schema_is_closed_everywhere(chart: str) -> None:
    """An object either refuses unknown keys or is a map from names to one type."""

    def open_objects(schema: Any, path: str) -> Iterator[str]:
        if isinstance(schema, dict):
            is_object = schema.get("type") == "object" or "properties" in schema
            if is_object and "additionalProperties" not in schema and path != "/global":
                yield path
            for key, child in schema.items():
                if key in ("properties", "definitions"):
                    for name, value in child.items():
                        yield from open_objects(value, f"{path}/{name}")
                elif key in ("items", "additionalProperties"):
                    yield from open_objects(child, path)

    assert list(open_objects(schema_of(chart), "")) == []


@every_chart
def test_unknown_keys_are_refused_at_every_level(chart: str, tmp_path: Any) -> None:
    values = values_of(chart)
    levels = []
    for value in read_values((CHARTS / chart / "values.yaml").read_text()):
        node = values
        *parents, last = value.path.split(".")
        for name in parents:
            node = node[name]
        if value.default is None:
            node[last]["unknownKey"] = 1
            levels.append(value.path)
    path = tmp_path / "values.yaml"
    path.write_text(yaml.safe_dump({**values, "unknownKey": 1}))
    with pytest.raises(Refused) as refused:
        template(chart, "--values", str(path))
    said = str(refused.value)
    for level in ["(root)", *levels]:
        assert f"{level}: Additional property unknownKey is not allowed" in said


@every_chart
def test_every_value_is_used(chart: str) -> None:
    text = "".join(p.read_text() for p in (CHARTS / chart / "templates").iterdir())
    leaves = {
        value.path.rpartition(".")[2]
        for value in read_values((CHARTS / chart / "values.yaml").read_text())
        if value.default is not None
    }
    whole = {"deploymentValues", "modelValues", "engineValues", "gpuValues"}  # passed on as one
    parts = {"requests", "limits"} if chart != "inference-deployment" else set()
    unused = [leaf for leaf in leaves - whole - parts if not re.search(rf"\.{leaf}\b", text)]
    assert unused == []


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario_says_what_it_is_for(scenario: str) -> None:
    assert re.match(r"# [A-Z].*\.\n", scenario_path(scenario).read_text())


def test_generated_parts_are_up_to_date() -> None:
    command = [sys.executable, "-m", "scripts.generate_chart_pages", "--check"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@every_chart
def test_chart_and_distribution_have_one_version(chart: str) -> None:
    from exo_inference import __version__

    found = yaml.safe_load((CHARTS / chart / "Chart.yaml").read_text())
    assert (found["version"], found["appVersion"]) == (__version__, __version__)


@pytest.mark.parametrize("minor", MINORS)
def test_schemas_of_kubernetes_find_mistakes(minor: str) -> None:
    """The checks of all scenarios are worth nothing if they cannot fail."""
    (found,) = [item for item in render("exo-inference") if item["kind"] == "PodDisruptionBudget"][
        :1
    ]
    assert problems(found, minor) == []
    unknown = {**found, "spec": {**found["spec"], "maxUnavailble": 1}}
    assert "maxUnavailble" in problems(unknown, minor)[0]
    wrong = {**found, "spec": {**found["spec"], "selector": "all"}}
    assert "is not of type 'object'" in problems(wrong, minor)[0]


def test_the_restricted_standard_finds_mistakes() -> None:
    broken = restrictions_broken({"containers": [{"name": "a"}], "hostNetwork": True})
    assert {"hostNetwork", "a: runAsNonRoot", "a: capabilities", "a: seccompProfile"} <= set(broken)
