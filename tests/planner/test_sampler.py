"""Who samples, PyTorch or FlashInfer, where a release of vLLM takes what is installed."""

from __future__ import annotations

import pytest

from exo_inference.planner.accuracy.cases import stated_parameters
from exo_inference.planner.catalog_models import find_model
from exo_inference.planner.gpu_catalog import GIB, find_gpu
from exo_inference.planner.parameters import EngineParameters
from exo_inference.planner.planning import plan
from exo_inference.planner.verdict import Plan, Verdict
from tests.planner.flags import settings_of

MODEL = "openai/gpt-oss-120b"


def planned(version: str, has_flashinfer: bool | None = None, length: int = 32768) -> Plan:
    parameters = EngineParameters(
        engine_version=version, max_model_len=length, has_flashinfer_sampler=has_flashinfer
    )
    return plan(find_model(MODEL), find_gpu("H100"), 1, parameters)


def test_gpt_oss_on_one_h100_with_0_10_2_is_not_said_to_be_impossible() -> None:
    """It ran: github.com/gpustack/gpustack, docs/performance-lab/gpt-oss-120b/h100.md @47277d79."""
    assert planned("0.10.2").verdict is Verdict.TIGHT
    assert planned("0.10.2", has_flashinfer=True).verdict is Verdict.FITS


def test_without_flashinfer_it_is_refused_as_it_was() -> None:
    """vllm-project/vllm#23278: -2.14 GiB were left, under miniconda's site-packages."""
    found = planned("0.10.1", has_flashinfer=False, length=131072)
    assert found.verdict is Verdict.REFUSED
    assert found.available_kv_bytes_per_gpu / GIB == pytest.approx(-2.14, abs=0.05)


def test_flashinfers_kernels_hold_14_bytes_of_a_logit_and_the_sort_38() -> None:
    lean, sort, unsaid = (
        planned("0.10.2", each).component("activations") for each in (True, False, None)
    )
    assert lean is not None
    assert sort is not None
    assert unsaid is not None
    logits = 1024 * find_model(MODEL).vocab_size
    assert (lean.num_bytes, sort.num_bytes) == (14 * logits, 38 * logits)
    # Where nobody says, the middle is the sort and the band reaches down to FlashInfer.
    assert unsaid.num_bytes == sort.num_bytes
    assert unsaid.low == sort.low - (38 - 14) * logits
    assert "with FlashInfer installed" in unsaid.source


@pytest.mark.parametrize("version", ["0.11.1", "0.12.0", "0.16.0"])
def test_flashinfer_is_asked_for_by_hand_from_0_11_1_on(version: str) -> None:
    part = planned(version).component("activations")
    assert part is not None
    assert part.alternative == 0


@pytest.mark.parametrize(
    ("case", "has_flashinfer"),
    [
        ({}, None),
        ({"installed": "package"}, False),
        ({"installed": "image"}, True),
        ({"defaults_in_effect": {"sampler": "flashinfer"}}, True),
        ({"installed": "package", "defaults_in_effect": {"sampler": "flashinfer"}}, True),
    ],
)
def test_a_start_says_who_samples_or_how_it_was_installed(
    case: dict[str, object], has_flashinfer: bool | None
) -> None:
    found = stated_parameters({"engine": "vllm", **case}, "0.10.2")
    assert found.has_flashinfer_sampler is has_flashinfer


def test_what_no_flag_sets_is_not_written_as_a_flag() -> None:
    found = settings_of(["--async-scheduling"])
    assert found.schedules_ahead is True
    assert found.format() == ["--async-scheduling"]
