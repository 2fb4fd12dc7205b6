"""Flags, model rules and memory, judged together: everything at once, and a way out that works."""

from __future__ import annotations

import pytest

from exo_inference.planner import (
    Verdict,
    find_gpu,
    find_model,
    load_models,
    planning,
    read_architecture,
)
from exo_inference.preflight import (
    Subject,
    judge,
    judgement,
    locate,
    locate_code,
    read_flags,
    to_wire,
    written_flags,
)
from tests.planner.flags import settings_of

MINISTRAL = "mistralai/Ministral-3-8B-Instruct-2512"
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


def subject(
    *flags: str,
    model: str = LLAMA,
    gpu: str = "gpua5000",
    count: int = 1,
    engine: str = "vllm",
    version: str | None = None,
) -> Subject:
    return Subject(
        find_model(model), find_gpu(gpu), count, flags, engine=engine, engine_version=version
    )


MISUSES = [
    pytest.param(
        subject("--max-modle-len=4096"),
        ("--max-modle-len", "is not a flag of vLLM", "expected", "did you mean --max-model-len?"),
        id="misspelt flag",
    ),
    pytest.param(
        subject("--swap-space=4", version="0.28.0"),
        ("--swap-space", "0.28.0", "leave"),
        id="removed flag",
    ),
    pytest.param(
        subject("--max-num-seqs=many"),
        ("--max-num-seqs", "'many'", "expected a whole number", "leave --max-num-seqs out"),
        id="wrong type",
    ),
    pytest.param(
        subject("--quantization=fp9"),
        ("--quantization", "'fp9'", "expected one of", "did you mean fp8?"),
        id="bad choice",
    ),
    pytest.param(
        subject("--speculative-config={method: ngram"),
        ("--speculative-config", "'{method: ngram'", "expected a JSON object", "put single quotes"),
        id="broken JSON",
    ),
    pytest.param(
        subject("--tensor-parallel-size=3", count=3),
        ("--tensor-parallel-size", "of 3 does not divide", "expected one of: 1, 2, 4", "write"),
        id="TP that does not divide the heads",
    ),
    pytest.param(
        subject("--quantization=fp8", "--max-model-len=1024", gpu="V100"),
        ("--quantization", "fp8 does not run on", "expected 7.5 or later", "use a newer GPU"),
        id="FP8 on a GPU without it",
    ),
    pytest.param(
        subject("--max-num-seqs=many", engine="exo"),
        ("--max-num-seqs", "'many'", "expected", "change it"),
        id="wrong type for exo-engine",
    ),
]


@pytest.mark.parametrize(("misused", "words"), MISUSES)
def test_each_misuse_names_flag_finding_expectation_and_next_step(
    misused: Subject, words: tuple[str, ...]
) -> None:
    judgement = judge(misused, with_advice=False)
    assert judgement.verdict is Verdict.REFUSED
    (problem,) = judgement.flag_problems
    assert problem.flag == words[0]
    assert [word for word in words if word not in problem.detail] == []


def test_all_misuses_are_reported_at_once_in_their_order() -> None:
    flags = (
        "--max-modle-len=4096",
        "--max-num-seqs=many",
        "--quantization=fp8",
        "--speculative-config={x",
        "--tensor-parallel-size=3",
    )
    judgement = judge(subject(*flags, gpu="V100", count=3))
    assert [problem.index for problem in judgement.flag_problems] == [0, 1, 2, 3, 4]
    assert judgement.plan is None


def test_a_flag_that_is_wrong_by_itself_is_not_judged_against_the_gpu() -> None:
    (problem,) = judge(subject("--dtype=bfloat17", gpu="V100")).flag_problems
    assert problem.reason == "choice"


def test_heads_that_do_not_divide_point_at_the_gpu_count_where_no_flag_sets_them() -> None:
    judged = judge(subject("--seed=1", "--max-model-len=4096", count=3), with_advice=False)
    (problem,) = judged.flag_problems
    assert locate(problem, judged.reading) == "$['gpu-count']"
    asked = judge(subject("--seed=1", "--tensor-parallel-size=3", count=3), with_advice=False)
    (problem,) = asked.flag_problems
    assert locate(problem, asked.reading) == "$['inference-engine-parameters'][1]"


def test_a_checkpoint_the_gpu_cannot_run_points_at_the_gpu_type() -> None:
    judged = judge(subject(model=MINISTRAL, gpu="V100"), with_advice=False)
    places = {locate(problem, judged.reading) for problem in judged.flag_problems}
    assert places == {"$['gpu-type']"}


def test_a_value_that_only_the_planner_reads_keeps_its_place() -> None:
    judged = judge(subject("--seed=1", "--gpu-memory-utilization=3"), with_advice=False)
    (problem,) = judged.flag_problems
    assert (problem.index, problem.flag) == (1, "--gpu-memory-utilization")


def test_memory_that_is_not_there_is_refused_with_ways_out_that_fit() -> None:
    judgement = judge(subject(model=MINISTRAL))
    assert judgement.verdict is Verdict.REFUSED
    assert [problem.code for problem in judgement.plan_problems] == ["memory"]
    kinds = {advice.kinds for advice in judgement.advice}
    assert {("max-model-len",), ("gpu-count",), ("max-model-len", "kv-cache-dtype")} <= kinds
    assert all(advice.plan.verdict is Verdict.FITS for advice in judgement.advice)


@pytest.mark.parametrize(
    "way_out",
    [
        pytest.param(subject(model=MINISTRAL, count=4), id="4 GPUs"),
        pytest.param(subject("--max-model-len=60000", model=MINISTRAL), id="shorter context"),
        pytest.param(
            subject("--max-model-len=131072", "--kv-cache-dtype=fp8", model=MINISTRAL),
            id="FP8 cache",
        ),
    ],
)
def test_the_three_known_ways_out_fit(way_out: Subject) -> None:
    judgement = judge(way_out, with_advice=False)
    assert judgement.verdict is Verdict.FITS
    assert not judgement.flag_problems


def test_advice_keeps_to_the_gpus_that_are_offered() -> None:
    offered = judge(subject(model=MINISTRAL), other_gpus=(find_gpu("gpua30"),))
    options = {option for advice in offered.advice for option in advice.options}
    assert not [each for each in options if each.startswith("--gpu-type") and "gpua30" not in each]


def test_without_model_or_gpu_the_flags_are_judged_and_the_rest_is_unknown() -> None:
    judgement = judge(Subject(None, None, 1, ("--max-model-len=4096",)))
    assert judgement.verdict is Verdict.UNKNOWN
    assert "model and the GPU" in judgement.notes[0]
    wrong = judge(Subject(None, find_gpu("gpua5000"), 1, ("--max-modle-len=4096",)))
    assert wrong.verdict is Verdict.REFUSED


def test_a_plan_reads_back_to_the_same_plan() -> None:
    flags = ("--max-model-len=32K", "--enforce-eager", "--seed=7")
    plan = judge(subject(*flags), with_advice=False).plan
    assert plan is not None
    again = plan.parameters.format()
    parsed = settings_of(
        again, engine=plan.parameters.engine, engine_version=plan.parameters.engine_version
    )
    assert parsed == plan.parameters
    assert judge(subject(*again), with_advice=False).plan == plan


def test_the_wire_form_carries_flags_places_and_the_plan() -> None:
    refused = to_wire(judge(subject("--nope", count=3)))
    assert [(p.flag, p.location) for p in refused.problems] == [
        ("--nope", "$['inference-engine-parameters'][0]"),
        ("--tensor-parallel-size", "$['gpu-count']"),
    ]
    assert (refused.verdict, refused.gpu_type, refused.total_bytes_per_gpu) == (
        "refused",
        "gpua5000",
        0,
    )
    fits = to_wire(judge(subject("--max-model-len=8192")))
    assert fits.verdict == "fits"
    assert fits.weights_bytes_per_gpu > 14 * 2**30
    assert sum(each.num_bytes for each in fits.components) > fits.weights_bytes_per_gpu
    assert fits.parameters == ["--max-model-len=8192"]
    assert fits.speed is not None


def test_a_rule_hides_only_the_planners_problem_of_the_same_flag() -> None:
    judged = judge(
        subject("--kv-cache-dtype=nvfp4", "--tensor-parallel-size=2", gpu="V100", count=2),
        with_advice=False,
    )
    assert {problem.flag for problem in judged.flag_problems} == {"--kv-cache-dtype"}
    codes = {problem.code for problem in judged.plan_problems}
    assert "kv-cache-dtype" not in codes
    whole = {problem.code for problem in judged.plan.problems} if judged.plan is not None else set()
    assert codes == whole - {"kv-cache-dtype"}


def test_an_unrelated_problem_of_the_planner_stays_beside_a_rule() -> None:
    flags = ("--kv-cache-dtype=nvfp4", "--quantization=gptq")
    plan = to_wire(judge(subject(*flags, gpu="gpua5000"), with_advice=False))
    found = {problem.code: problem.location for problem in plan.problems}
    assert found["model"] == "$['inference-engine-parameters'][0]"
    assert found["quantization"] == "$['inference-engine-parameters'][1]"


@pytest.mark.parametrize(
    ("code", "flags", "location"),
    [
        ("max-model-len", ("--max-model-len=9",), "$['inference-engine-parameters'][0]"),
        ("max-model-len", ("--seed=1", "--max_model_len", "9"), "$['inference-engine-parameters'][1]"),
        ("tensor-parallel", ("--seed=1", "-tp", "2"), "$['inference-engine-parameters'][1]"),
        ("tensor-parallel", (), "$['gpu-count']"),
        ("max-model-len", (), "$['model']"),
        ("max-model-len", ("--served-model-name", "--max-model-len"), "$['inference-engine-parameters'][1]"),
        ("quantization", ("--limit-mm-per-prompt.image=0", "-q", "fp8"), "$['inference-engine-parameters'][1]"),
        ("memory", ("--max-model-len=9",), None),
    ],
)  # fmt: skip
def test_problems_of_the_planner_say_where(
    code: str, flags: tuple[str, ...], location: str | None
) -> None:
    assert locate_code(code, written_flags(read_flags(flags))) == location


def test_a_split_that_does_not_go_with_gpus_and_heads_gets_one_next_step() -> None:
    judged = judge(subject("-tp=3"), with_advice=False)
    (problem,) = judged.flag_problems
    assert "uses 3 GPUs" in problem.detail
    assert "does not divide" in problem.detail
    assert problem.detail.endswith("; write --tensor-parallel-size=1")


def test_flags_of_exo_engine_are_judged_for_any_release() -> None:
    judged = judge(subject("--max-model-len=1024", engine="exo", version="9.9.9"))
    assert judged.flag_problems == ()
    assert judged.verdict is Verdict.FITS


@pytest.mark.parametrize("size", [81, 2**20, 2**31 - 1])
@pytest.mark.parametrize(
    ("engine", "flag"),
    [
        ("vllm", "--pipeline-parallel-size"),
        ("sglang", "--pp-size"),
        ("tensorrt-llm", "--pp_size"),
    ],
)
def test_stages_that_nobody_has_cost_nothing(
    engine: str, flag: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list with a place for each took 8 GB, and the control plane with it."""
    planned: list[int] = []
    plan_stage = planning._plan_stage

    def counted(setting: planning.Setting, index: int) -> planning.Stage:
        assert setting.ranks.pipeline <= 64
        planned.append(index)
        return plan_stage(setting, index)

    monkeypatch.setattr(planning, "_plan_stage", counted)
    found = judge(subject(f"{flag}={size}", engine=engine, model=LLAMA, count=4))
    assert len(planned) < 1000
    if engine != "tensorrt-llm":
        assert found.verdict is Verdict.REFUSED
        assert found.plan is not None
        assert str(size) in "\n".join(each.detail for each in found.plan.problems)
    else:
        assert any("not sized" in note for note in found.notes)
    to_wire(found)


def test_the_flags_after_an_improvement_are_admitted_as_they_are() -> None:
    """`--no-enforce-eager` beside `--enforce-eager` would set it a second time."""
    asked = subject("--enforce-eager", "--max-model-len=8192", gpu="H100")
    found = {each.kind: each for each in to_wire(judge(asked)).improvements}
    graphs = found["cuda-graphs"]
    assert graphs.flags == ["--no-enforce-eager"]
    assert graphs.parameters == ["--max-model-len=8192"]
    for each in found.values():
        again = judge(subject(*each.parameters, gpu="H100"), with_advice=False)
        assert again.verdict is Verdict.FITS
        assert not each.flags or each.parameters


@pytest.mark.parametrize(("gpu", "notes"), [("A100", 1), ("A100 80GB", 0), ("a100-80gb-sxm", 0)])
def test_a_plan_says_which_size_of_a_gpu_was_taken(gpu: str, notes: int) -> None:
    for flags in ((), ("--no-such-flag",)):
        plan = to_wire(judge(subject(*flags, gpu=gpu), with_advice=False))
        assert sum("is taken for a100-80gb-sxm" in note for note in plan.notes) == notes


@pytest.mark.parametrize("count", [judgement.MOST_LAYERS, judgement.MOST_LAYERS + 1])
def test_ways_out_are_looked_for_of_so_many_different_layers_alone(count: int) -> None:
    """A way is planned anew, and a plan takes as long as a stranger's config has different layers."""
    config = {
        **load_models()["nvidia/Llama-3_3-Nemotron-Super-49B-v1"]["config"],
        "num_hidden_layers": count,
        "block_configs": [
            {"attention": {"n_heads_in_group": 8}, "ffn": {"ffn_mult": 0.5 + number / 64}}
            for number in range(count)
        ],
    }
    model = read_architecture(config, name="me/many")
    assert len(model.layer_counts) == count
    found = judge(Subject(model, find_gpu("gpua5000"), 1))
    assert found.verdict is Verdict.REFUSED
    assert found.plan is not None
    assert bool(found.advice) == (count == judgement.MOST_LAYERS)
    assert (count > judgement.MOST_LAYERS) == any("ways out" in note for note in found.plan.notes)
