"""The models that come with the project can be planned offline, as they are."""

from __future__ import annotations

import json

import pytest

from exo_inference.hub.builtin import builtin_directory, builtin_names
from exo_inference.planner import (
    Verdict,
    find_gpu,
    find_model,
    plan,
    read_architecture,
)
from tests.planner.flags import settings_of


@pytest.mark.parametrize("name", builtin_names())
def test_a_built_in_model_is_planned_by_name_as_by_its_files(name: str) -> None:
    known, served = (
        find_model(name),
        read_architecture(json.loads((builtin_directory(name) / "config.json").read_bytes())),
    )
    assert (known.num_parameters, known.kv_elements_per_token, known.max_model_len, known.dtype) == (
        served.num_parameters, served.kv_elements_per_token, served.max_model_len, served.dtype,
    )  # fmt: skip
    parameters = settings_of([], engine="exo")
    assert plan(known, find_gpu("gpua5000"), 1, parameters).verdict is Verdict.FITS
