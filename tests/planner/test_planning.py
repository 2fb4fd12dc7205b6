"""`plan`: the guide's stories, refusals, and properties that hold for every model and GPU."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exo_inference.planner import (
    EngineParameters,
    Gpu,
    Plan,
    Verdict,
    cpu_as_gpu,
    explain,
    families,
    find_gpu,
    find_model,
    load_gpus,
    load_models,
    plan,
    read_architecture,
)
from exo_inference.planner.catalog_models import read_entry
from exo_inference.planner.memory import page_bytes
from exo_inference.planner.speed.constants import load_speed_constants
from tests.planner.flags import settings_of

GIB = 2**30
MINISTRAL = "mistralai/Ministral-3-8B-Instruct-2512"
VERSIONS = ["0.12.0", "0.19.1", "0.21.0", "0.25.1", "0.33.0"]


def plan_named(
    name: str, gpu: str, count: int, *flags: str, version: str = "0.33.0", engine: str = "vllm"
) -> Plan:
    parameters = settings_of(flags, engine=engine, engine_version=version)
    return plan(find_model(name), find_gpu(gpu), count, parameters)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_guides_model_is_refused_with_defaults_and_deploys_in_three_ways(version: str) -> None:
    refused = plan_named(MINISTRAL, "gpua5000", 1, version=version)
    assert refused.verdict is Verdict.REFUSED
    assert "262144 tokens" in refused.problems[0].detail
    for count, flags in (
        (4, ()),
        (1, ("--max-model-len=60000",)),
        (1, ("--kv-cache-dtype=fp8", "--max-model-len=131072")),
    ):
        assert (
            plan_named(MINISTRAL, "gpua5000", count, *flags, version=version).verdict
            is Verdict.FITS
        )


def test_components_and_cache_fill_the_gpu() -> None:
    result = plan_named(
        "meta-llama/Llama-3.1-8B-Instruct", "L40S", 1, "--enable-lora", "--max-loras=4"
    )
    assert {each.name for each in result.components} == {
        "weights", "activations", "cuda_graphs", "non_torch", "lora", "kv_cache", "reserve",
    }  # fmt: skip
    total = sum(each.num_bytes for each in result.components)
    assert total == pytest.approx(result.total_bytes_per_gpu, abs=8)
    assert all(each.low <= each.num_bytes <= each.high for each in result.components)


def test_graphs_leave_the_budget_since_0_20() -> None:
    old, new = (
        plan_named(MINISTRAL, "L40S", 1, version=v).component("cuda_graphs")
        for v in ("0.19.1", "0.20.0")
    )
    assert old is not None
    assert new is not None
    assert (old.is_in_budget, new.is_in_budget) == (False, True)


def test_eager_mode_captures_nothing() -> None:
    graphs = plan_named(MINISTRAL, "L40S", 1, "--enforce-eager").component("cuda_graphs")
    assert graphs is not None
    assert graphs.num_bytes == 0


@pytest.mark.parametrize(
    ("name", "gpu", "count", "flags", "code"),
    [
        ("Qwen/Qwen3-32B", "H100", 3, (), "tensor-parallel"),
        ("Qwen/Qwen3-8B-AWQ", "gpu2", 1, (), "quantization"),
        ("openai/gpt-oss-20b", "T4", 1, (), "quantization"),
        ("Qwen/Qwen3-0.6B", "T4", 1, ("--dtype=bfloat16",), "dtype"),
        ("Qwen/Qwen3-0.6B", "L4", 1, ("--max-model-len=50000",), "max-model-len"),
        ("Qwen/Qwen3-0.6B", "L4", 1, ("-tp=2",), "parallel-size"),
        ("Qwen/Qwen3-0.6B", "L4", 1, ("--max-num-seqs=9", "--max-num-batched-tokens=8"), "max-num-batched-tokens"),
        ("meta-llama/Llama-3.1-70B-Instruct", "H100", 1, (), "memory"),
        ("Qwen/Qwen3-8B", "H100", 1, ('--speculative-config={"method":"mtp"}',), "speculative-config"),
    ],
)  # fmt: skip
def test_what_an_engine_refuses_is_refused(
    name: str, gpu: str, count: int, flags: tuple[str, ...], code: str
) -> None:
    result = plan_named(name, gpu, count, *flags)
    assert result.verdict is Verdict.REFUSED
    assert code in {problem.code for problem in result.problems if problem.refuses}


@pytest.mark.parametrize(
    ("method", "bits"),
    [("fp8", 8), ("fp8_per_block", 8), ("int8_per_channel_weight_only", 8), ("bitsandbytes", 4.5)],
)
def test_weights_quantized_while_loading_are_planned_so(method: str, bits: float) -> None:
    name = "meta-llama/Llama-3.1-8B-Instruct"
    result = plan_named(name, "H100", 1, f"--quantization={method}")
    kept = 2 * 128_256 * 4096  # embeddings and head stay in 16 bit
    linear = find_model(name).num_parameters - kept
    assert result.basis is not None
    rests = page_bytes(result.basis.setting.model, result.ranks, 0, 2, None)
    expected = kept * 2 + linear * bits / 8 + rests
    assert result.weights_bytes_per_gpu == pytest.approx(expected, rel=0.01)


def test_a_quantization_that_is_not_planned_says_so() -> None:
    result = plan_named("Qwen/Qwen3-8B", "H100", 1, "--quantization=torchao")
    assert result.verdict is Verdict.FITS
    assert "not planned" in next(p.detail for p in result.problems if p.code == "quantization")


@pytest.mark.parametrize(
    ("flag", "engine"),
    [
        ("fp8", "vllm"),
        ("mxfp8", "vllm"),
        ("int8", "exo"),
        *((name, "exo") for name in ("int4", "int4_per_group_64", "int4_per_group_128")),
        ("fp8", "exo"),
        ("fp8_per_tensor", "exo"),
        ("fp8_per_block", "exo"),
    ],
)
def test_weights_quantized_while_loading_are_counted_so_and_not_called_unplanned(
    flag: str, engine: str
) -> None:
    model, gpu = find_model("meta-llama/Llama-3.2-1B-Instruct"), find_gpu("H200")
    plain = plan(model, gpu, 1, settings_of([], engine=engine))
    found = plan(model, gpu, 1, settings_of([f"--quantization={flag}"], engine=engine))
    assert found.weights_bytes_per_gpu < 0.7 * plain.weights_bytes_per_gpu
    assert found.problems == ()


def test_an_unknown_model_gets_an_honest_verdict() -> None:
    model = read_architecture({"model_type": "mystery"}, name="org/mystery")
    result = plan(model, find_gpu("H100"), 1, EngineParameters())
    assert result.verdict is Verdict.UNKNOWN
    assert result.problems[0].detail.startswith("cannot size org/mystery, because ")


def test_free_memory_that_is_less_than_wanted_is_a_refusal() -> None:
    model, gpu = find_model("Qwen/Qwen3-0.6B"), find_gpu("L4")
    result = plan(model, gpu, 1, EngineParameters(), free_bytes=10 * GIB)
    assert [problem.code for problem in result.problems] == ["free-memory"]


def test_auto_length_takes_what_fits() -> None:
    result = plan_named(MINISTRAL, "gpua5000", 1, "--max-model-len=auto")
    assert result.verdict is not Verdict.REFUSED
    assert result.max_model_len == result.largest_max_model_len < 262144


def test_exo_engine_shrinks_the_context_and_says_what_it_does_not_serve() -> None:
    result = plan_named("Qwen/Qwen3-4B", "gpu3080ti", 1, engine="exo")
    assert result.verdict in (Verdict.FITS, Verdict.TIGHT)
    assert result.max_model_len < 40960
    other = plan_named("XiaomiMiMo/MiMo-V2-Flash", "H100", 1, engine="exo")
    assert {"engine", "quantization"} <= {problem.code for problem in other.problems}


def test_exo_engine_on_a_cpu_has_one_gib_of_cache() -> None:
    parameters = settings_of([], engine="exo")
    result = plan(find_model("Qwen/Qwen3-0.6B"), cpu_as_gpu(16 * GIB), 1, parameters)
    assert result.available_kv_bytes_per_gpu == GIB
    assert result.weights_bytes_per_gpu == 4 * 596_049_920  # float32
    small = plan(find_model("Qwen/Qwen3-0.6B"), cpu_as_gpu(2 * GIB), 1, parameters)
    assert small.verdict is Verdict.REFUSED


def test_drafts_cost_memory_and_ngrams_do_not() -> None:
    name, gpu = "meta-llama/Llama-3.1-8B-Instruct", "L40S"
    without = plan_named(name, gpu, 1)
    ngram = plan_named(
        name, gpu, 1, '--speculative-config={"method":"ngram","num_speculative_tokens":4}'
    )
    assert ngram.available_kv_bytes_per_gpu == without.available_kv_bytes_per_gpu
    flag = '--speculative-config={"model":"meta-llama/Llama-3.2-1B-Instruct","num_speculative_tokens":4}'
    drafted = plan_named(name, gpu, 1, flag)
    draft = drafted.component("draft_model")
    assert draft is not None
    assert draft.num_bytes == pytest.approx(2 * 1_235_814_400, rel=0.01)
    assert drafted.kv_bytes_per_token > without.kv_bytes_per_token
    eagle = plan_named(
        name, gpu, 1, '--speculative-config={"method":"eagle3","num_speculative_tokens":4}'
    )
    assert eagle.component("draft_model") is not None
    unknown = plan_named(
        name, gpu, 1, '--speculative-config={"model":"no/such","num_speculative_tokens":4}'
    )
    assert unknown.verdict is not Verdict.UNKNOWN
    assert any("not counted" in problem.detail for problem in unknown.problems)


def test_offload_moves_layers_and_not_embeddings() -> None:
    result = plan_named("meta-llama/Llama-3.1-8B-Instruct", "L4", 1, "--cpu-offload-gb=30")
    embeddings = 2 * 2 * 128_256 * 4096
    assert result.weights_bytes_per_gpu == pytest.approx(embeddings, rel=0.05)


def test_pipeline_stages_are_planned_each() -> None:
    result = plan_named("Qwen/Qwen3-235B-A22B-FP8", "RTX PRO 6000", 4, "-pp=4")
    assert [stage.num_layers for stage in result.stages] == [23, 24, 24, 23]
    assert result.num_kv_blocks == min(stage.num_kv_blocks for stage in result.stages)


def test_expert_parallel_takes_whole_experts() -> None:
    split = plan_named("Qwen/Qwen3-30B-A3B", "H100", 8)
    whole = plan_named("Qwen/Qwen3-30B-A3B", "H100", 8, "--enable-expert-parallel")
    assert whole.weights_bytes_per_gpu == split.weights_bytes_per_gpu


def test_experts_in_fp8_blocks_need_whole_blocks_per_gpu() -> None:
    refused = plan_named("MiniMaxAI/MiniMax-M2", "H200", 8)
    assert "--enable-expert-parallel" in refused.problems[0].detail
    assert (
        plan_named("MiniMaxAI/MiniMax-M2", "H200", 8, "--enable-expert-parallel").verdict
        is Verdict.FITS
    )
    assert plan_named("MiniMaxAI/MiniMax-M2", "H200", 4).verdict is Verdict.FITS


def test_speed_is_bound_by_what_it_should_be() -> None:
    result = plan_named("meta-llama/Llama-3.1-8B-Instruct", "H100", 1)
    assert result.speed is not None
    one = result.speed.batches[0]
    floor = result.weights_bytes_per_gpu / find_gpu("H100").bandwidth
    assert floor < one.inter_token_seconds < 3 * floor
    assert one.bound_by == "weights read"
    rates = [each.tokens_per_second for each in result.speed.batches]
    assert rates == sorted(rates)
    times = [each.ttft_seconds for each in result.speed.prompts]
    assert times == sorted(times)
    assert one.usd_per_million_tokens is not None


def seconds_per_token(result: Plan) -> float:
    assert result.speed is not None
    return result.speed.batches[0].inter_token_seconds


def test_offloaded_weights_are_read_over_the_hosts_link_in_every_step() -> None:
    name = "meta-llama/Llama-3.1-8B-Instruct"
    here = plan_named(name, "H100", 1)
    away = plan_named(name, "H100", 1, "--cpu-offload-gb=5")
    share = load_speed_constants().memory_share
    moved = 5 * GIB / (64e9 * share) - 5 * GIB / (find_gpu("H100").bandwidth * share)
    assert seconds_per_token(away) - seconds_per_token(here) == pytest.approx(moved, rel=0.01)
    assert away.speed is not None
    assert away.speed.batches[0].bound_by == "offloaded weights"
    assert f"GB/s x {share:.0%}" in next(
        s.formula for s in explain(away) if s.title.startswith("Between")
    )


@pytest.mark.parametrize("gpu", sorted(load_gpus()))
def test_every_gpu_has_a_link_to_the_host(gpu: str) -> None:
    assert 16e9 <= find_gpu(gpu).host_bandwidth <= find_gpu(gpu).bandwidth


def test_eager_mode_waits_for_kernel_launches() -> None:
    name = "meta-llama/Llama-3.1-8B-Instruct"
    graphs, eager = plan_named(name, "H100", 1), plan_named(name, "H100", 1, "--enforce-eager")
    assert seconds_per_token(eager) > 1.5 * seconds_per_token(graphs)
    assert eager.speed is not None
    assert eager.speed.batches[0].bound_by == "kernel launches"
    assert eager.speed.batches[-1].bound_by == "cache read"  # the GPU has enough to do meanwhile


@pytest.mark.parametrize("gpu", ["H100", "H200", "gpub300"])
def test_what_is_outside_torch_does_not_fall_when_a_replica_spans_machines(gpu: str) -> None:
    sizes = []
    for count in (1, 2, 4, 8, 16, 32):
        result = plan_named("meta-llama/Llama-3.1-405B-Instruct", gpu, count)
        part = result.component("non_torch")
        assert part is not None
        sizes.append(part.num_bytes)
        spans = [p for p in result.problems if p.code == "gpu-count" and not p.refuses]
        assert bool(spans) is (count > find_gpu(gpu).max_count)
    assert sizes == sorted(sizes)


def test_the_safe_context_that_a_refusal_names_fits() -> None:
    refused = plan_named(MINISTRAL, "gpua5000", 1)
    assert 0 < refused.safe_max_model_len < refused.largest_max_model_len
    detail = refused.problems[0].detail
    assert f"about {refused.largest_max_model_len} tokens fit at the middle" in detail
    assert f"--max-model-len={refused.safe_max_model_len} is safe" in detail
    safe = f"--max-model-len={refused.safe_max_model_len}"
    assert plan_named(MINISTRAL, "gpua5000", 1, safe).verdict is Verdict.FITS
    longer = f"--max-model-len={refused.safe_max_model_len + 16}"
    assert plan_named(MINISTRAL, "gpua5000", 1, longer).verdict is Verdict.TIGHT


def test_the_longest_context_is_one_that_the_model_allows() -> None:
    result = plan_named("Qwen/Qwen3-0.6B", "H100", 1, "--max-model-len=200000")
    assert result.largest_max_model_len == 40960


@pytest.mark.parametrize(
    ("size", "engine"), [(2**30, "vllm"), (70 * 2**30, "vllm"), (None, "exo"), (2**40, "vllm")]
)
def test_components_add_up_however_the_cache_is_sized(size: int | None, engine: str) -> None:
    flags = ["--max-model-len=4096", *([f"--kv-cache-memory-bytes={size}"] if size else [])]
    result = plan_named("Qwen/Qwen3-0.6B", "H100", 1, *flags, engine=engine)
    total = sum(each.num_bytes for each in result.components)
    assert total == pytest.approx(result.total_bytes_per_gpu, abs=8)


def test_a_cache_that_is_asked_for_and_too_large_is_named() -> None:
    result = plan_named("Qwen/Qwen3-0.6B", "L4", 1, "--kv-cache-memory-bytes=40G")
    assert result.verdict is Verdict.REFUSED
    (problem,) = result.problems
    assert "--kv-cache-memory-bytes is 42949672960" in problem.detail
    step = re.search(r"set (--kv-cache-memory-bytes=\d+) or less", problem.detail)
    assert step is not None
    assert plan_named("Qwen/Qwen3-0.6B", "L4", 1, step.group(1)).verdict is Verdict.FITS


def test_concurrency_counts_all_data_parallel_engines() -> None:
    one = plan_named("Qwen/Qwen3-8B", "H100", 1)
    two = plan_named("Qwen/Qwen3-8B", "H100", 2, "--data-parallel-size=2")
    assert two.max_concurrency == pytest.approx(2 * one.max_concurrency, rel=0.01)
    assert two.kv_capacity_tokens == pytest.approx(one.kv_capacity_tokens, rel=0.01)


@pytest.mark.parametrize("num_plans", [300, pytest.param(1000, marks=pytest.mark.slow)])
def test_plans_over_everything_never_raise(num_plans: int) -> None:
    chooser = random.Random(4)
    names, gpus = sorted(load_models()), list(load_gpus().values())
    flags = [
        "--max-model-len=4096", "--max-model-len=auto", "--kv-cache-dtype=fp8", "--enforce-eager", "--max-num-seqs=1",
        "--enable-expert-parallel", "--enable-lora", "-pp=2", "-tp=7", "-dp=2", "--quantization=fp8",
        "--cpu-offload-gb=8", '--speculative-config={"method":"mtp"}', '--speculative-config={"method":"eagle"}',
        "--gpu-memory-utilization=0.01", "--max-num-batched-tokens=100000", "--block-size=128", "--dtype=float32",
        "--kv-cache-memory-bytes=1G", "--num-gpu-blocks-override=10", "--decode-context-parallel-size=3",
        '--limit-mm-per-prompt={"image":0,"video":0}', "--runner=pooling", "--enable-chunked-prefill=false",
    ]  # fmt: skip
    unknown = read_architecture({"model_type": "bart", "is_encoder_decoder": True})
    verdicts = set()
    for _ in range(num_plans):
        chosen = chooser.sample(flags, chooser.randrange(4))
        engine = chooser.choice(["vllm", "vllm", "vllm", "exo"])
        parameters = settings_of(
            chosen,
            engine=engine,
            engine_version=chooser.choice([*VERSIONS, "0.7.3", "0.8.5", "nonsense"]),
        )
        result = plan(
            unknown if chooser.random() < 0.02 else read_entry(chooser.choice(names)),
            chooser.choice(gpus),
            chooser.choice([0, 1, 2, 3, 4, 8]),
            parameters,
        )
        verdicts.add(result.verdict)
        assert result.kv_capacity_tokens >= 0
        if result.verdict is Verdict.FITS and (engine, parameters.runner) != ("exo", "pooling"):
            assert result.max_concurrency >= 1
    assert verdicts == set(Verdict)


models = (
    st.deferred(  # reading them all takes a moment, which each process would spend on collecting
        lambda: st.sampled_from(
            sorted(n for n in load_models() if read_entry(n).cannot_size is None)
        )
    )
)
gpus = st.sampled_from([*families(), find_gpu("H100"), find_gpu("L4"), find_gpu("A100-80GB")])
versions = st.sampled_from(VERSIONS)


def _plan(name: str, gpu: Gpu, count: int, parameters: EngineParameters) -> Plan:
    return plan(read_entry(name), gpu, count, parameters)


@settings(max_examples=150, deadline=None)
@given(models, gpus, versions, st.sampled_from([1, 2, 4]))
def test_more_gpus_never_shrink_capacity_but_for_what_communication_takes(
    name: str, gpu: Gpu, version: str, count: int
) -> None:
    """A cache that cannot be split (one KV head, a latent) gains only what the weights give back."""
    parameters = EngineParameters(engine_version=version, max_model_len=None)
    few, many = (_plan(name, gpu, n, parameters) for n in (count, 2 * count))
    if any(p.code == "tensor-parallel" for p in (*few.problems, *many.problems)):
        return
    is_split = many.kv_bytes_per_token <= 0.5 * few.kv_bytes_per_token
    if is_split or few.available_kv_bytes_per_gpu <= 0:
        assert many.kv_capacity_tokens >= few.kv_capacity_tokens
    else:
        overhead = [each.component("non_torch") for each in (few, many)]
        assert overhead[0] is not None
        assert overhead[1] is not None
        lost = few.available_kv_bytes_per_gpu - many.available_kv_bytes_per_gpu
        assert lost <= overhead[1].num_bytes - overhead[0].num_bytes


@settings(max_examples=150, deadline=None)
@given(models, gpus, versions, st.sampled_from([1, 2, 4]))
def test_a_smaller_cache_type_never_shrinks_capacity(
    name: str, gpu: Gpu, version: str, count: int
) -> None:
    base = EngineParameters(engine_version=version, kv_cache_dtype="bfloat16")
    wide, narrow = (
        _plan(name, gpu, count, replace(base, kv_cache_dtype=d)) for d in ("bfloat16", "fp8")
    )
    assert narrow.max_concurrency >= wide.max_concurrency
    assert narrow.largest_max_model_len >= wide.largest_max_model_len


@settings(max_examples=150, deadline=None)
@given(models, gpus, versions, st.integers(256, 131072), st.integers(256, 131072))
def test_a_shorter_context_never_shrinks_concurrency(
    name: str, gpu: Gpu, version: str, first: int, second: int
) -> None:
    short, long = sorted((first, second))
    base = EngineParameters(engine_version=version)
    a, b = (_plan(name, gpu, 2, replace(base, max_model_len=n)) for n in (short, long))
    assert a.max_concurrency >= b.max_concurrency
    order = [Verdict.REFUSED, Verdict.TIGHT, Verdict.FITS]
    assert order.index(a.verdict) >= order.index(b.verdict)


@settings(max_examples=100, deadline=None)
@given(models, gpus, versions)
def test_smaller_weights_never_shrink_capacity(name: str, gpu: Gpu, version: str) -> None:
    base = EngineParameters(engine_version=version)
    if read_entry(name).quantization is not None:
        return
    wide, narrow = (_plan(name, gpu, 1, replace(base, quantization=q)) for q in (None, "fp8"))
    assert narrow.available_kv_bytes_per_gpu >= wide.available_kv_bytes_per_gpu
