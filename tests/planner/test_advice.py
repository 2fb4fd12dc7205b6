"""Advice that works: every suggestion, pasted as it stands, plans as fitting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exo_inference.planner import (
    Advice,
    EngineParameters,
    Gpu,
    Plan,
    Verdict,
    advise,
    cpu_as_gpu,
    families,
    find_gpu,
    find_model,
    load_models,
    parse_gpu,
    plan,
)
from exo_inference.planner.catalog_models import quantized_siblings, read_entry
from exo_inference.planner.changes import round_length
from tests.planner.flags import settings_of

GIB = 2**30
MINISTRAL = "mistralai/Ministral-3-8B-Instruct-2512"
EXO_FLAGS = {
    "--max-model-len", "--max-num-seqs", "--max-num-batched-tokens", "--gpu-memory-utilization", "--kv-cache-dtype",
    "--quantization"}  # fmt: skip


def applied(
    name: str, gpu: Gpu, count: int, asked: EngineParameters, flags: Sequence[str],
    options: Sequence[str], *, free_bytes: int | None = None,
) -> Plan:  # fmt: skip
    """Plan what a user would have after pasting flags and options."""
    pasted = settings_of(
        [*asked.format(), *flags], engine=asked.engine, engine_version=asked.engine_version
    )
    chosen = dict(option.removeprefix("--").split("=", 1) for option in options)
    assert set(chosen) <= {"gpu-type", "gpu-count", "model-name"}
    other = find_gpu(chosen["gpu-type"]) if "gpu-type" in chosen else gpu
    number = int(chosen.get("gpu-count", count))
    free = free_bytes if other is gpu else None
    return plan(find_model(chosen.get("model-name", name)), other, number, pasted, free_bytes=free)


def guide_advice(version: str) -> tuple[Advice, ...]:
    parameters = EngineParameters(engine_version=version)
    refused = plan(find_model(MINISTRAL), find_gpu("gpua5000"), 1, parameters)
    assert refused.verdict is Verdict.REFUSED
    return advise(find_model(MINISTRAL), find_gpu("gpua5000"), 1, parameters)


@pytest.mark.parametrize("version", ["0.25.0", "0.28.0", "0.33.0"])
class TestTheGuidesThreeWaysOut:
    """Ministral-3-8B on one gpua5000 with defaults is refused; three things help."""

    def test_four_gpus(self, version: str) -> None:
        more = next(each for each in guide_advice(version) if each.kinds == ("gpu-count",))
        assert (more.flags, more.options) == ((), ("--gpu-count=4",))
        assert more.usd_per_hour_change == pytest.approx(4.55694 - 1.34028)
        assert more.inter_token_seconds_change is not None
        assert more.inter_token_seconds_change < 0
        assert more.max_concurrency_change > 1

    def test_a_context_of_about_60000(self, version: str) -> None:
        shorter = next(each for each in guide_advice(version) if each.kinds == ("max-model-len",))
        assert 60000 <= shorter.plan.max_model_len <= shorter.plan.safe_max_model_len
        assert shorter.flags == (f"--max-model-len={shorter.plan.max_model_len}",)
        assert shorter.plan.max_model_len % 1024 == 0
        parameters = EngineParameters(engine_version=version, max_model_len=60000)
        result = plan(find_model(MINISTRAL), find_gpu("gpua5000"), 1, parameters)
        assert result.verdict in (Verdict.FITS, Verdict.TIGHT)

    def test_an_fp8_cache_with_131072(self, version: str) -> None:
        both = next(each for each in guide_advice(version) if len(each.kinds) == 2)
        length = both.plan.max_model_len
        assert set(both.flags) == {"--kv-cache-dtype=fp8", f"--max-model-len={length}"}
        assert 131072 <= length <= both.plan.safe_max_model_len
        assert both.options == ()
        assert both.quality == "slightly less exact"


@pytest.mark.parametrize("examples", [20, pytest.param(80, marks=pytest.mark.slow)])
def test_every_piece_of_advice_pasted_plans_as_fitting(examples: int) -> None:
    settings(max_examples=examples)(
        given(
            st.sampled_from(sorted(load_models())),
            st.sampled_from([*families(), find_gpu("H100"), find_gpu("L4"), find_gpu("T4")]),
            st.sampled_from([1, 2, 3, 4]),
            st.sampled_from(["0.12.0", "0.21.0", "0.28.0", "0.33.0"]),
            st.sampled_from([(), ("--max-model-len=32768",), ("--kv-cache-dtype=fp8", "--enforce-eager")]),
        )(check_advice)
    )()  # fmt: skip


def check_advice(name: str, gpu: Gpu, count: int, version: str, flags: tuple[str, ...]) -> None:
    """Plan with each piece of advice, and find what was said of it."""
    parameters = settings_of(flags, engine_version=version)
    for each in advise(read_entry(name), gpu, count, parameters):
        assert each.flags or each.options
        assert each.effect
        assert "<" not in "".join((*each.flags, *each.options))
        after = applied(name, gpu, count, parameters, each.flags, each.options)
        is_sure = "not for sure" not in each.effect
        assert after.verdict is (Verdict.FITS if is_sure else Verdict.TIGHT)
        assert after == each.plan


@pytest.mark.parametrize(
    ("version", "offers"), [("0.18.0", False), ("0.19.0", True), ("0.33.0", True)]
)
def test_the_length_that_the_engine_finds_itself_is_offered_where_it_can(
    version: str, offers: bool
) -> None:
    flags = [each.flags for each in guide_advice(version)]
    assert (("--max-model-len=auto",) in flags) is offers


def test_a_length_that_the_engine_finds_itself_fits_for_sure() -> None:
    auto = EngineParameters(max_model_len="auto")
    result = plan(find_model(MINISTRAL), find_gpu("gpua5000"), 1, auto)
    assert result.verdict is Verdict.FITS
    assert result.safe_max_model_len < result.max_model_len < 262144


def test_no_way_out_leaves_fewer_than_1024_tokens() -> None:
    model, gpu = find_model("moonshotai/Kimi-K2-Instruct"), find_gpu("h200")
    found = advise(model, gpu, 8, settings_of([]))
    assert any("max-model-len" in each.kinds for each in found)
    assert all(each.plan.max_model_len >= 1024 for each in found)


def test_no_context_is_called_safe_where_graphs_may_find_no_room_at_any_length() -> None:
    model, gpu = find_model("TheBloke/Mistral-7B-Instruct-v0.2-GPTQ"), find_gpu("rtx-4060")
    asked = settings_of([], engine_version="0.28.0")
    refused = plan(model, gpu, 1, asked)
    assert "tokens fit at the middle" in refused.problems[0].detail
    assert "is safe" not in refused.problems[0].detail
    shorter = replace(asked, max_model_len=refused.safe_max_model_len)
    assert plan(model, gpu, 1, shorter).verdict is Verdict.TIGHT


def test_what_fits_only_at_the_middle_says_so() -> None:
    """Where nothing fits for sure, what likely fits is better than silence."""
    gpu = parse_gpu("mine", {"memory-gib": 7.5, "bandwidth-gbps": 600})
    unsure = replace(gpu, reported_error_bytes=2**30)
    model = find_model("Qwen/Qwen3-8B-AWQ")
    asked = EngineParameters(
        tensor_parallel_size=1, kv_cache_dtype="fp8", enforce_eager=True, max_num_seqs=1,
        max_num_batched_tokens=512, gpu_memory_utilization=0.95,
    )  # fmt: skip
    assert plan(model, unsure, 1, asked).verdict is Verdict.REFUSED
    ways = advise(model, unsure, 1, asked, other_gpus=())
    assert [each.flags for each in ways] == [("--max-model-len=11264",)]
    for each in ways:
        assert each.plan.verdict is Verdict.TIGHT
        assert each.plan.fits_nominally
        assert "not for sure" in each.effect


@pytest.mark.parametrize(
    ("tokens", "length"),
    [(85_500, 84_992), (65_536, 65_536), (4_100, 4_096), (1_000, 992), (15, 0)],
)
def test_lengths_step_by_1024(tokens: int, length: int) -> None:
    assert round_length(tokens) == length


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([n for n in sorted(load_models()) if n.startswith(("Qwen/Qwen3-", "meta"))]),
    st.sampled_from([*families(), find_gpu("T4")]),
    st.sampled_from([1, 2]),
)
def test_advice_for_exo_engine_uses_only_flags_that_it_has(name: str, gpu: Gpu, count: int) -> None:
    parameters = settings_of(["--max-model-len=16384"], engine="exo")
    for each in advise(read_entry(name), gpu, count, parameters):
        assert {flag.partition("=")[0] for flag in each.flags} <= EXO_FLAGS
        assert all(o == "--gpu-count=1" or o.startswith("--gpu-type=") for o in each.options)
        after = applied(name, gpu, count, parameters, each.flags, each.options)
        assert after.verdict is Verdict.FITS


@pytest.mark.parametrize(
    ("name", "gpu", "count", "flags", "kind"),
    [
        (MINISTRAL, "gpua5000", 1, (), "max-model-len"),
        ("Qwen/Qwen3-8B", "gpua5000", 1, (), "kv-cache-dtype"),
        ("Qwen/Qwen3-14B", "gpua5000", 1, ("--max-model-len=8192",), "quantization"),
        ("Qwen/Qwen3-32B", "gpu3", 1, ("--max-model-len=4096",), "checkpoint"),
        ("Qwen/Qwen3-8B", "gpu3080ti", 1, (), "gpu-count"),
        ("Qwen/Qwen3-8B", "gpu3080ti", 1, (), "gpu-type"),
        ("google/gemma-3-4b-it", "gpu3080ti", 1, (), "max-num-seqs"),
        ("Qwen/Qwen3-8B", "gpua5000", 1, (), "enforce-eager"),
    ],
)  # fmt: skip
def test_each_kind_of_change_is_advised_where_it_helps(
    name: str, gpu: str, count: int, flags: tuple[str, ...], kind: str
) -> None:
    advice = advise(find_model(name), find_gpu(gpu), count, settings_of(flags), limit=40)
    assert kind in {kind for each in advice for kind in each.kinds}


def test_a_published_quantized_checkpoint_is_named() -> None:
    model = find_model("Qwen/Qwen3-8B")
    asked = EngineParameters(max_model_len=16384)
    found = [
        each
        for each in advise(model, find_gpu("gpu3080ti"), 1, asked, limit=20)
        if "checkpoint" in each.kinds
    ]
    assert found[0].options == ("--model-name=Qwen/Qwen3-8B-AWQ",)
    assert found[0].quality == "less exact"


def test_siblings_are_the_same_model_in_fewer_bits() -> None:
    names = {each.name for each in quantized_siblings(find_model("Qwen/Qwen3-235B-A22B"))}
    assert names == {"Qwen/Qwen3-235B-A22B-FP8", "nvidia/Qwen3-235B-A22B-NVFP4"}
    fewer = quantized_siblings(find_model("Qwen/Qwen3-235B-A22B-FP8"))
    assert [each.name for each in fewer] == ["nvidia/Qwen3-235B-A22B-NVFP4"]
    assert quantized_siblings(find_model("Qwen/Qwen3-8B-AWQ")) == ()


def test_bitsandbytes_is_advised_only_where_the_engine_has_it() -> None:
    model, gpu = find_model("meta-llama/Llama-3.3-70B-Instruct"), find_gpu("L40S")
    for version, is_there in (("0.25.0", True), ("0.28.0", False)):
        asked = EngineParameters(engine_version=version, max_model_len=4096)
        flags = {flag for each in advise(model, gpu, 1, asked, limit=40) for flag in each.flags}
        assert ("--quantization=bitsandbytes" in flags) is is_there


def test_a_busy_gpu_is_advised_to_take_what_is_free() -> None:
    model, gpu, asked = find_model("Qwen/Qwen3-0.6B"), find_gpu("L4"), EngineParameters()
    advice = advise(model, gpu, 1, asked, free_bytes=10 * GIB)
    first = advice[0]
    assert first.kinds == ("gpu-memory-utilization",)
    assert float(first.flags[0].partition("=")[2]) * gpu.reported_bytes <= 10 * GIB
    again = applied(model.name, gpu, 1, asked, first.flags, (), free_bytes=10 * GIB)
    assert again.verdict is Verdict.FITS


def test_a_count_that_does_not_divide_the_heads_is_advised_away() -> None:
    advice = advise(find_model("Qwen/Qwen3-8B"), find_gpu("H100"), 3, EngineParameters())
    assert ("--gpu-count=4",) in [each.options for each in advice]
    assert ("--gpu-count=2",) in [each.options for each in advice]


def test_exo_engine_is_advised_to_take_one_gpu() -> None:
    parameters = settings_of([], engine="exo")
    advice = advise(find_model("Qwen/Qwen3-0.6B"), find_gpu("gpua5000"), 2, parameters)
    assert advice[0].options == ("--gpu-count=1",)


def test_fewer_requests_leave_room_for_the_largest_image() -> None:
    model = find_model("nvidia/Gemma-4-26B-A4B-NVFP4")
    asked = EngineParameters(max_model_len=8192)
    advice = advise(model, find_gpu("l4"), 1, asked, limit=20)
    flags = next(each.flags for each in advice if each.kinds == ("max-num-seqs",))
    assert not any("batched" in flag for flag in flags)


def test_a_draft_model_counts_in_advice_as_in_the_plan() -> None:
    config = '{"method":"draft_model","model":"me/draft","num_speculative_tokens":2}'
    asked = settings_of([f"--speculative-config={config}"])
    model, gpu = find_model("meta-llama/Llama-3.1-8B-Instruct"), find_gpu("gpua5000")
    draft = find_model("meta-llama/Llama-3.2-1B-Instruct")
    shorter = [
        next(
            each.plan.max_model_len
            for each in advise(model, gpu, 1, asked, draft=each_draft)
            if each.kinds == ("max-model-len",)
        )
        for each_draft in (draft, None)
    ]
    assert shorter[0] < shorter[1]


def test_only_the_gpus_that_are_there_are_advised() -> None:
    mine = parse_gpu("mine", {"memory-gib": 80, "bandwidth-gbps": 2000})
    advice = advise(
        find_model(MINISTRAL), find_gpu("gpua5000"), 1, EngineParameters(), other_gpus=(mine,)
    )
    types = {option for each in advice for option in each.options if "gpu-type" in option}
    assert types == {"--gpu-type=mine"}
    assert (
        advise(find_model(MINISTRAL), find_gpu("gpua5000"), 1, EngineParameters(), limit=2)[2:]
        == ()
    )


def test_what_fits_or_cannot_be_sized_gets_no_advice() -> None:
    assert advise(find_model("Qwen/Qwen3-0.6B"), find_gpu("H100"), 1, EngineParameters()) == ()
    parameters = settings_of([], engine="exo")
    assert advise(find_model("Qwen/Qwen3-0.6B"), cpu_as_gpu(16 * GIB), 1, parameters) == ()


def test_flags_that_mend_a_lack_of_states_go_before_another_gpu() -> None:
    model, asked = find_model("tiiuae/Falcon-H1-7B-Instruct"), EngineParameters()
    kinds = [bool(each.options) for each in advise(model, find_gpu("L4"), 1, asked)]
    assert kinds[0] is False
    assert kinds == sorted(kinds)


def test_as_much_of_the_gpu_as_is_enough_for_states_is_advised() -> None:
    asked = EngineParameters(engine_version="0.19.0", gpu_memory_utilization=0.7)
    found = advise(find_model("Zyphra/Zamba2-7B"), find_gpu("A10"), 1, asked)
    assert found[0].flags == ("--gpu-memory-utilization=0.8", "--max-num-seqs=16")


@pytest.mark.parametrize("others", [(), ("--no-allow-deprecated-quantization",)])
def test_a_deprecated_form_is_advised_to_be_allowed(others: tuple[str, ...]) -> None:
    model = find_model("meta-llama/Llama-3.1-405B-Instruct-FP8")
    asked = settings_of(others, engine_version="0.28.0")
    found = advise(model, find_gpu("H100"), 8, asked)
    assert found[0].flags == ("--allow-deprecated-quantization",)
    assert found[0].plan.verdict is Verdict.FITS
