"""The objects that a release is looked after for are those that the chart makes."""

from __future__ import annotations

import pytest
import yaml

from exo_inference.platforms.kubernetes.release_parts import (
    API_GROUPS,
    ONLY_SERVICE,
    expected_parts,
)
from tests.charts.rendering import SCENARIOS, render, render_scenario, scenario_path

DEPLOYMENTS = [name for name in SCENARIOS if name.startswith("inference-deployment/")]


def parts(objects: tuple[dict[str, object], ...]) -> set[str]:
    plurals = {str(item["kind"]).lower().replace("policy", "policie") + "s" for item in objects}
    return plurals & API_GROUPS.keys()


@pytest.mark.parametrize("scenario", DEPLOYMENTS)
def test_the_chart_makes_what_is_expected(scenario: str) -> None:
    values = yaml.safe_load(scenario_path(scenario).read_text("utf-8"))
    assert parts(render_scenario(scenario)) == set(expected_parts(values))


def test_a_service_cannot_be_left_out() -> None:
    without = "podDisruptionBudget.enabled=false,networkPolicy.enabled=false"
    model = "model.source=exo/tiny-chat,model.claimName=tiny"
    rendered = render("inference-deployment", "--set", f"{model},{without}")
    assert parts(rendered) == set(expected_parts(ONLY_SERVICE)) == {"services"}
