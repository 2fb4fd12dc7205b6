"""Files of starts: what is no such file is refused with the place that is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest

from exo_inference.errors import UsageError
from exo_inference.planner import cpu_as_gpu, find_gpu
from exo_inference.planner.accuracy.cases import parse_cases, stated_gpu, used_by_others
from exo_inference.planner.accuracy.grading import grade

CASE: dict[str, Any] = {
    "id": "qwen-cpu", "engine": "exo", "engine_version": "0.1.0", "model": "Qwen/Qwen3-0.6B",
    "gpu": "cpu", "gpu_vram_gib": 16, "gpu_count": 1, "tp": 1, "flags": {"max_num_seqs": 64},
    "observed": {"weights_gib_per_gpu": 2.2204, "available_kv_gib": 1.0, "kv_tokens": 4672,
                 "outcome": "fits"},
}  # fmt: skip


@pytest.mark.parametrize(
    "document", [[CASE], {"note": "x", "cases": [CASE]}], ids=["list", "object"]
)
def test_a_file_is_read_as_it_is(document: object) -> None:
    assert parse_cases(json.dumps(document), "cases.json") == [CASE]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("7", "expected a list, found no list"),
        ('{"starts": []}', "without the list `cases`"),
        ('{"cases": {}}', "without the list `cases`"),
    ],
    ids=["empty", "torn", "deep", "number", "other object", "object of cases"],
)
def test_what_is_no_file_of_cases_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        parse_cases(text, "cases.json")
    assert caught.value.message.startswith("cases.json ")
    assert caught.value.hint


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"id": None}, "cases[1].id is missing, expected a text"),
        ({"model": 7}, "cases[1].model is 7, expected a text"),
        ({"engine_version": 0.12}, "cases[1].engine_version is 0.12, expected a text"),
        ({"gpu_count": "2"}, 'cases[1].gpu_count is "2", expected a number from 1 to 1024'),
        ({"gpu_count": 0}, "cases[1].gpu_count is 0"),
        ({"tp": 1.5}, "cases[1].tp is 1.5"),
        ({"pp": True}, "cases[1].pp is true"),
        ({"gpu_vram_gib": 0}, "cases[1].gpu_vram_gib is 0, expected a number above 0"),
        ({"gpu_vram_gib": float("nan")}, "cases[1].gpu_vram_gib is NaN"),
        ({"flags": ["--tp=2"]}, "cases[1].flags is a list, expected an object"),
        ({"environment": ["A=1"]}, "cases[1].environment is a list, expected an object"),
        ({"gpus_differ": "yes"}, 'cases[1].gpus_differ is "yes", expected true or false'),
        ({"observed": None}, "cases[1].observed is missing, expected an object"),
        ({"observed": {"kv_tokens": "4K"}}, 'cases[1].observed.kv_tokens is "4K", expected a number'),
        ({"observed": {"kv_tokens": 1e30}}, "cases[1].observed.kv_tokens is 1e+30"),
        ({"observed": {"available_kv_gib": {}}}, "cases[1].observed.available_kv_gib is an object"),
    ],
)  # fmt: skip
def test_a_case_of_another_form_is_refused_with_its_index(
    change: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError) as caught:
        parse_cases(json.dumps([CASE, {**CASE, **change}]), "cases.json")
    assert caught.value.message.startswith(f"cases.json: {said}")


def test_a_case_that_is_no_object_is_refused() -> None:
    with pytest.raises(UsageError, match=r"cases\[0\] is \"x\", expected an object"):
        parse_cases('["x"]', "cases.json")


def test_a_start_of_exo_engine_on_a_cpu_is_graded() -> None:
    grades = grade([CASE])
    assert stated_gpu(CASE) == cpu_as_gpu(16 * 2**30)
    assert [each.quantity for each in grades.graded] == [
        "weights, known checkpoint",
        "available KV memory",
        "KV capacity in tokens",
    ]
    assert max(abs(each.error) for each in grades.graded) < 0.005
    assert [each.is_right for each in grades.fits] == [True]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"gpu_vram_gib": None}, "its GPU is not stated"),
        ({"flags": {"max_model_len": "long"}}, "--max-model-len is 'long'"),
        ({"flags": {"speculative_config": "{"}}, "not valid JSON"),
    ],
)
def test_what_cannot_be_planned_is_not_graded(changes: dict[str, Any], reason: str) -> None:
    grades = grade([{**CASE, **changes}])
    assert (grades.graded, grades.fits) == ([], [])
    ((_, what, why),) = grades.not_graded
    assert what == "everything"
    assert reason in why


def test_a_flag_without_a_value_counts_as_not_given() -> None:
    assert grade([{**CASE, "flags": {"max_model_len": None}}]).fits[0].is_right


def test_of_gpus_that_differ_no_tokens_are_graded() -> None:
    """The printed memory is one GPU's, and the blocks are the fewest of all."""
    grades = grade([{**CASE, "gpus_differ": True}])
    assert [each.quantity for each in grades.graded] == [
        "weights, known checkpoint",
        "available KV memory",
    ]
    assert {what for _, what, why in grades.not_graded if "its GPUs differ" in why} == {
        "KV capacity in tokens"
    }


@pytest.mark.parametrize(
    ("environment", "verdicts"),
    [({"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}, 0), ({"HF_HUB_OFFLINE": "1"}, 1), (None, 1)],
)
def test_a_verdict_does_not_stand_for_a_start_whose_environment_lifts_a_check(
    environment: dict[str, str] | None, verdicts: int
) -> None:
    """Deployments cannot set it, so what a plan refuses is refused here."""
    grades = grade([{**CASE, "environment": environment}])
    assert len(grades.fits) == verdicts
    assert len(grades.graded) == 3
    assert [what for _, what, _ in grades.not_graded] == ["fit"] * (1 - verdicts)


@pytest.mark.parametrize(("free", "others"), [(19.81, True), (60.0, False), (None, False)])
def test_what_other_processes_held_follows_from_what_was_free_after_the_weights(
    free: float | None, others: bool
) -> None:
    """A board of 61 GiB, of which a start printed 19.81 GiB as free after 2 GiB of weights."""
    gpu = find_gpu("Jetson AGX Orin 64GB")
    told = used_by_others({"free_after_weights_gib": free}, 2 * 2**30, gpu)
    assert bool(told) == others
    assert "22 of 61 GiB" in told or not others
