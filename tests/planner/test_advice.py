"""Advice that works: every suggestion, applied, fits."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exo_inference.planner import (
    EngineParameters,
    Verdict,
    advise,
    families,
    find_gpu,
    find_model,
    improve,
    load_models,
    plan,
)
from exo_inference.planner.catalog_models import read_entry

MINISTRAL = "mistralai/Ministral-3-8B-Instruct-2512"


def test_the_guides_three_ways_out_are_among_the_advice() -> None:
    advice = advise(find_model(MINISTRAL), find_gpu("gpua5000"), 1, EngineParameters())
    kinds = [each.kinds for each in advice]
    assert ("max-model-len",) in kinds
    assert ("gpu-count",) in kinds
    assert any(set(each) == {"kv-cache-dtype", "max-model-len"} for each in kinds)
    longer = next(each for each in advice if set(each.kinds) == {"kv-cache-dtype", "max-model-len"})
    assert "--kv-cache-dtype=fp8" in longer.flags
    assert longer.plan.max_model_len >= 131072
    more = next(each for each in advice if each.kinds == ("gpu-count",))
    assert more.options == ("--gpu-count=4",)
    assert more.usd_per_hour_change == pytest.approx(4.55694 - 1.34028)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(load_models())),
    st.sampled_from([*families(), find_gpu("H100"), find_gpu("L4")]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from(["0.12.0", "0.21.0", "0.33.0"]),
)
def test_every_piece_of_advice_plans_as_fitting(
    name: str, gpu: object, count: int, version: str
) -> None:
    parameters = EngineParameters(engine_version=version)
    for each in advise(read_entry(name), gpu, count, parameters):  # type: ignore[arg-type]
        assert each.plan.verdict is Verdict.FITS
        assert each.flags or each.options
        assert each.effect
        if any(option.startswith("--model=") for option in each.options):
            continue
        # What is pasted is what was planned.
        pasted = EngineParameters.parse(
            [*parameters.format(), *each.flags], engine=parameters.engine, engine_version=version
        )
        chosen = dict(option.removeprefix("--").split("=", 1) for option in each.options)
        other = find_gpu(chosen["gpu-type"]) if "gpu-type" in chosen else gpu
        number = int(chosen.get("gpu-count", count))
        assert plan(read_entry(name), other, number, pasted).verdict is Verdict.FITS  # type: ignore[arg-type]


def test_what_fits_needs_no_advice() -> None:
    assert advise(find_model("Qwen/Qwen3-0.6B"), find_gpu("H100"), 1, EngineParameters()) == ()


def test_waste_and_cheaper_gpus_are_named_when_it_fits() -> None:
    asked = EngineParameters(max_model_len=2048, max_num_seqs=4)
    found = {
        each.kind: each for each in improve(find_model("Qwen/Qwen3-8B"), find_gpu("H100"), 1, asked)
    }
    assert "wasted-memory" in found
    assert found["quantization"].flags == ("--quantization=fp8",)
    cheaper = found["cheaper-gpu"]
    assert cheaper.plan is not None
    assert cheaper.plan.verdict is Verdict.FITS


def test_what_does_not_fit_has_no_improvements() -> None:
    assert improve(find_model(MINISTRAL), find_gpu("gpua5000"), 1, EngineParameters()) == ()
