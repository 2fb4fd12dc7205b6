"""What a fitting plan could do better: each suggestion, pasted, still fits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exo_inference.planner import (
    EngineParameters,
    Gpu,
    Verdict,
    families,
    find_gpu,
    find_model,
    improve,
    load_models,
)
from exo_inference.planner.catalog_models import read_entry
from tests.planner.flags import settings_of
from tests.planner.test_advice import EXO_FLAGS, applied


def test_waste_speed_and_cheaper_gpus_are_named_when_it_fits() -> None:
    asked = EngineParameters(max_model_len=2048, max_num_seqs=4, enforce_eager=True)
    found = {
        each.kind: each for each in improve(find_model("Qwen/Qwen3-8B"), find_gpu("H100"), 1, asked)
    }
    assert found["wasted-memory"].flags[0].startswith("--max-num-seqs=")
    assert found["cuda-graphs"].flags == ("--no-enforce-eager",)
    # Launching kernels binds: neither smaller weights nor more GPUs would help.
    assert not {"quantization", "more-gpus"} & found.keys()
    graphs = improve(
        find_model("Qwen/Qwen3-8B"), find_gpu("H100"), 1, replace(asked, enforce_eager=None)
    )
    faster = {each.kind: each for each in graphs}
    assert faster["quantization"].flags == ("--quantization=fp8",)
    assert faster["more-gpus"].options == ("--gpu-count=2",)
    cheaper = found["cheaper-gpu"].plan
    assert cheaper is not None
    assert cheaper.usd_per_hour == pytest.approx(find_gpu("gpu3").price(1))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(load_models())),
    st.sampled_from([*families(), find_gpu("H100")]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from(["vllm", "exo"]),
)
def test_every_improvement_pasted_plans_as_fitting(
    name: str, gpu: Gpu, count: int, engine: str
) -> None:
    asked = settings_of(["--max-model-len=4096", "--max-num-seqs=8"], engine=engine)
    for each in improve(read_entry(name), gpu, count, asked):
        assert each.text
        if engine == "exo":
            assert {flag.partition("=")[0] for flag in each.flags} <= EXO_FLAGS
        if each.plan is not None:
            after = applied(name, gpu, count, asked, each.flags, each.options)
            assert after.verdict is Verdict.FITS
            assert after == each.plan


def test_what_does_not_fit_has_no_improvements() -> None:
    name = "mistralai/Ministral-3-8B-Instruct-2512"
    assert improve(find_model(name), find_gpu("gpua5000"), 1, EngineParameters()) == ()
