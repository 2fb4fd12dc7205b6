"""`deployment plan --for`: what a demand may say, and how replicas are reckoned from a plan's speeds."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, cast

import pytest

from exo_inference.cli.plan import command, planners
from exo_inference.cli.plan.demand import Answer, Demand, answer, answers, parse_demand
from exo_inference.cli.plan.options import PlanOptions
from exo_inference.cli.plan.planners import LocalPlanner, RemotePlanner
from exo_inference.cli.plan.times import LEAST_LENGTH, TableTimes
from exo_inference.errors import UsageError
from exo_inference.planner import find_gpu, find_model
from exo_inference.preflight import Judgement, Subject, judge
from exo_inference.resources.wanted import WantedDeployment
from exo_inference.wire import DeploymentPlan
from tests.cli.conftest import Exo

if TYPE_CHECKING:
    from exo_inference.cli.session import Session

WHOLE = "requests=20/s input=1000 output=300 ttft<=500ms itl<=0.04s"


def planner_of(*flags: str) -> LocalPlanner:
    return LocalPlanner(find_model("Qwen/Qwen3-8B"), WantedDeployment(engine_parameters=flags))


def planned(gpu: str, count: int = 1, *flags: str) -> DeploymentPlan:
    return planner_of(*flags).plan(gpu, count, with_advice=False)


def answered(plan: DeploymentPlan, demand: Demand) -> Answer | None:
    return answer(plan, demand, planner_of(*plan.parameters).times(plan))


def held(plan: DeploymentPlan, demand: Demand) -> Answer:
    found = answered(plan, demand)
    assert found is not None
    return found


def test_each_row_is_planned_once(exo: Exo, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []

    def counted(subject: Subject, *, with_advice: bool) -> Judgement:
        assert subject.gpu is not None
        asked.append((subject.gpu.key, subject.gpu_count))
        return judge(subject, with_advice=with_advice)

    monkeypatch.setattr(planners, "judge", counted)
    base = ("ai", "deployment", "plan", "--offline", "--model-name", "Qwen/Qwen3-8B")
    assert exo(*base, "--for", WHOLE).code == 0
    assert len(asked) == len(set(asked)) > 10
    asked.clear()
    assert exo(*base, "--gpu-type", "H100", "--explain").code == 0
    assert len(asked) == 1


def test_a_demand_is_read() -> None:
    assert parse_demand(WHOLE) == Demand(20, 1000, 300, 0.5, 0.04)
    assert parse_demand("output=1 input=2 requests=0.5/s") == Demand(0.5, 2, 1, math.inf, math.inf)
    assert Demand(1, 1000, 300).length == 2048


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "lacks requests and input and output"),
        ("requests=1/s input=10", "lacks output"),
        ("requests=1 input=10 output=1", "requests are per second"),
        ("requests=1/s input=10/s output=1", "requests are per second"),
        ("requests=1/s input=10 input=20 output=1", "says input twice"),
        ("requests=1/s input=0 output=1", "outside of"),
        ("requests=1/s input=99999999 output=1", "outside of"),
        ("requests=0/s input=1 output=1", "outside of"),
        ("requests=1e9/s input=1 output=1", "no part of a demand"),
        (f"requests={'9' * 4000}/s input=1 output=1", "no part of a demand"),
        ("requests=1/s input=1 output=1 itl<40ms", "no part of a demand"),
        ("requests=1/s input=1 output=1 itl<=40", "no part of a demand"),
        ("please", "no part of a demand"),
        ("requests=1/s input=1000.5 output=1", "input=1000.5, expected a whole number"),
        ("requests=1/s input=10 output=1.5", "output=1.5, expected a whole number"),
    ],
)
def test_what_is_no_demand_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        parse_demand(text)
    assert caught.value.hint


def test_replicas_hold_the_requests_within_the_limits() -> None:
    demand = parse_demand(WHOLE)
    found = held(planned("H100", 1, "--max-model-len=2048"), demand)
    assert found.replicas * found.requests >= demand.requests
    assert (found.replicas - 1) * found.requests < demand.requests
    assert found.itl is not None
    assert found.itl <= demand.itl
    assert found.ttft <= demand.ttft
    assert found.usd_per_hour == pytest.approx(found.replicas * find_gpu("H100").usd_per_hour[1])


def test_time_goes_to_prompts_or_to_decoding_and_never_to_both() -> None:
    """`r` requests a second of `o` tokens in batches of `b`: all tokens are decoded in the time that is left."""
    demand = parse_demand("requests=20/s input=1000 output=300")
    found = held(planned("H100", 1, "--max-model-len=2048"), demand)
    share = demand.requests / found.replicas
    assert found.itl is not None
    at_once = share * (demand.output_tokens - 1) * found.itl
    assert found.batch - 1 < at_once <= found.batch
    assert share * found.ttft < found.requests * found.ttft < 1


def test_stricter_limits_take_more_replicas() -> None:
    plan = planned("H100", 1, "--max-model-len=2048")
    loose, strict = (
        held(plan, Demand(100, 1000, 300, itl=limit)).replicas for limit in (0.1, 0.02)
    )
    assert strict > loose


def test_what_no_replica_holds_has_no_answer() -> None:
    plan = planned("H100", 1, "--max-model-len=2048")
    assert answered(plan, Demand(1, 1000, 300, itl=1e-6)) is None
    assert answered(plan, Demand(1, 1000, 300, ttft=1e-6)) is None
    assert answered(planned("T4"), Demand(1, 1000, 300)) is None  # does not fit


def test_no_more_requests_run_at_once_than_the_cache_holds() -> None:
    plan = planned("gpua5000", 1, "--max-model-len=8192")
    found = held(plan, Demand(1, 7000, 1000))
    assert found.batch * 8000 <= plan.kv_capacity_tokens


def test_the_cheapest_is_first_and_what_has_no_price_last() -> None:
    plans = [
        planned(gpu, 1, "--max-model-len=2048") for gpu in ("gpub300", "H100", "gpurtx6000pro")
    ]
    times_of = planner_of("--max-model-len=2048").times
    found = answers(plans, parse_demand("requests=20/s input=1000 output=300"), times_of)
    prices = [each.usd_per_hour for each in found]
    known = [price for price in prices if price is not None]
    assert known == sorted(known)
    assert prices[-1] is None


def test_the_command_answers(exo: Exo) -> None:
    result = exo(
        "ai", "deployment", "plan", "--offline", "--model-name", "Qwen/Qwen3-8B", "--for", WHOLE,
    )  # fmt: skip
    assert (result.code, result.err) == (0, "")
    assert "for 20 requests per second of 1,000 + 300 tokens" in result.out
    assert "gpurtx6000pro" in result.out


def test_the_command_answers_a_script(exo: Exo) -> None:
    result = exo(
        "ai", "deployment", "plan", "--offline", "--model-name", "Qwen/Qwen3-8B", "--gpu-type", "H100",
        "--for", WHOLE, "-O", "json",
    )  # fmt: skip
    first = json.loads(result.out)[0]
    assert first["gpu_type"] == "h100-sxm"
    assert first["replicas"] * first["requests_per_second_per_replica"] >= 20
    assert first["parameters"] == ["--max-model-len=2048"]


def test_what_cannot_be_held_ends_with_1(exo: Exo) -> None:
    result = exo(
        "ai", "deployment", "plan", "--offline", "--model-name", "Qwen/Qwen3-8B",
        "--for", "requests=1/s input=10 output=10 itl<=0.001ms",
    )  # fmt: skip
    assert result.code == 1
    assert "nothing holds that" in result.out


def test_what_has_no_speed_is_not_said_not_to_hold_it(exo: Exo) -> None:
    result = exo(
        "ai", "deployment", "plan", "--offline", "--model-name", "Qwen/Qwen2.5-0.5B-Instruct", "--gpu-type",
        "cpu", "--inference-engine-params", "--dtype float32", "--for", "requests=1/s input=10 output=10",
    )  # fmt: skip
    assert result.code == 1
    told = " ".join(result.out.split())
    assert "nothing is known to hold that: it fits cpu, whose speed is not estimated" in told


def asked(exo: Exo, name: str, demand: str, *others: str) -> tuple[int, str]:
    line = ("ai", "deployment", "plan", "--offline", "--model-name", name, "--for", demand, *others)
    result = exo(*line)
    return result.code, " ".join((result.out + result.err).split())


def test_an_answer_of_one_token_has_no_time_between_tokens(exo: Exo) -> None:
    demand = parse_demand("requests=20/s input=1000 output=1 itl<=1ms")
    found = held(planned("H100", 1, "--max-model-len=2048"), demand)
    assert found.itl is None
    assert found.requests == pytest.approx(1 / found.ttft)
    code, said = asked(exo, "Qwen/Qwen3-8B", "requests=1/s input=1000 output=1")
    assert code == 0
    assert "An answer of one token has no time between tokens." in said
    code, said = asked(
        exo, "Qwen/Qwen3-8B", "requests=1/s input=9 output=1", "--gpu-type", "H100", "-O", "json"
    )
    assert json.loads(said)[0]["inter_token_seconds"] is None


@pytest.mark.parametrize(
    ("name", "demand", "others", "reason"),
    [
        ("Qwen/Qwen3-8B", "requests=1/s input=50000 output=300", (), "longer than the model's context: --max-model-len is"),
        ("Qwen/Qwen3-8B", "requests=1/s input=9 output=9 ttft<=1ms", (), "slower than the limits of ttft and itl"),
        ("Qwen/Qwen3-8B", "requests=1/s input=3000 output=9", ("--inference-engine-params", "--max-model-len=1024"),
         "longer than the 1,024 of --max-model-len"),
        ("Qwen/Qwen3-235B-A22B", "requests=1/s input=9 output=9", ("--gpu-type", "gpua5000"), "nothing holds that: "),
        ("google/flan-t5-xl", "requests=1/s input=500 output=3", (), "has no class for t5"),
        ("deepseek-ai/DeepSeek-V4-Flash", "requests=1/s input=500 output=3", ("--gpu-type", "H200"), "set --kv-cache-dtype=fp8"),
        ("Qwen/Qwen3-8B", "requests=1/s input=500 output=3", ("--gpu-type", "cpu", "--inference-engine", "vllm"),
         "not sized for vLLM on a CPU"),
    ],
)  # fmt: skip
def test_why_nothing_holds_a_demand_is_said(
    exo: Exo, name: str, demand: str, others: tuple[str, ...], reason: str
) -> None:
    code, said = asked(exo, name, demand, *others)
    assert code == 1
    assert reason in said


@pytest.mark.parametrize("name", ["BAAI/bge-m3", "Qwen/Qwen3-Embedding-8B"])
def test_what_generates_nothing_holds_no_demand(exo: Exo, name: str) -> None:
    code, said = asked(exo, name, "requests=1/s input=500 output=3")
    assert code == 2
    assert f"--for asks what generates texts; {name} embeds or scores them" in said


def test_a_demand_that_the_context_just_holds_is_planned(exo: Exo) -> None:
    """The context is no multiple of 1,024: 500,000 tokens."""
    name = "CohereLabs/North-Mini-Code-1.0"
    demand = "requests=0.01/s input=499000 output=900"
    code, said = asked(exo, name, demand, "--gpu-type", "H200", "-O", "json")
    assert code == 0
    assert "--max-model-len=499900" in json.loads(said)[0]["parameters"]


def test_a_prompt_takes_its_own_time_whatever_the_context() -> None:
    """A context of 1,024 tokens lists a prompt of 128 alone; one of 40,960 nothing between 8,192 and 32,768."""
    short, long = (planned("H100", 1, f"--max-model-len={n}") for n in (1024, 2048))
    first, second = (held(p, Demand(20, 500, 200, ttft=0.15, itl=0.04)) for p in (short, long))
    assert first.ttft == pytest.approx(second.ttft)
    plan = planned("H100", 1, "--max-model-len=40960")
    assert plan.speed is not None
    known = {each.num_tokens: each.ttft_seconds_high or 0.0 for each in plan.speed.prompts}
    times = planner_of(*plan.parameters).times(plan)
    assert all(times.first_token(n) == pytest.approx(seconds) for n, seconds in known.items())
    assert 2.6 < times.first_token(30000) < known[32768]


@pytest.mark.parametrize("output", [24, 25])
def test_the_replicas_do_not_jump_where_the_context_does(exo: Exo, output: int) -> None:
    demand = f"requests=20/s input=1000 output={output}"
    _, said = asked(exo, "Qwen/Qwen3-8B", demand, "--compare=H100,gpua30", "-O", "json")
    assert [(each["gpu_type"], each["replicas"]) for each in json.loads(said)][:2] == [
        ("h100-sxm", 2), ("gpua30", 4),
    ]  # fmt: skip


@pytest.mark.parametrize("gpu", ["gpu3", "H100", "cpu"])
@pytest.mark.parametrize("itl", [0.02, 0.04, 0.4, math.inf])
def test_no_other_batch_holds_more(gpu: str, itl: float) -> None:
    plan = planned(gpu, 1 if gpu == "cpu" else 2, "--max-model-len=2048")
    times, demand = planner_of("--max-model-len=2048").times(plan), Demand(20, 1000, 300, itl=itl)
    ttft = times.first_token(1000)

    def rate(batch: int) -> float:
        plain = times.between_tokens(batch, 1150)
        return min(batch / (299 * plain + batch * ttft), (1 - plain / itl) / ttft)

    most = min(plan.max_num_seqs, plan.kv_capacity_tokens // 1300)
    best = max(0.0, *map(rate, range(1, most + 1)))
    found = answered(plan, demand)
    assert (0.0 if found is None else found.requests) == pytest.approx(best)


def test_few_requests_are_not_told_the_times_of_many(exo: Exo) -> None:
    demand = "requests=0.001/s input=1000 output=300"
    _, said = asked(exo, "Qwen/Qwen3-8B", demand, "--gpu-type", "H100", "-O", "json")
    first = json.loads(said)[0]
    assert (first["replicas"], first["requests_at_once_per_replica"]) == (1, 1)
    plan = planned("H100", 1, "--max-model-len=2048")
    alone = planner_of("--max-model-len=2048").times(plan).between_tokens(1, 1150)
    assert first["inter_token_seconds"] == pytest.approx(alone, rel=0.01)
    assert first["requests_per_second_per_replica"] > 5


def test_more_gpus_are_tried_where_two_counts_are_too_slow(exo: Exo) -> None:
    demand = "requests=1/s input=8000 output=100 ttft<=250ms"
    _, said = asked(exo, "Qwen/Qwen3-8B", demand, "--gpu-type", "H100", "-O", "json")
    assert [each["gpu_count"] for each in json.loads(said)] == [4, 8]


@pytest.mark.parametrize(
    ("others", "reason"),
    [
        (("--replicas", "5"), "--for finds how many replicas hold the demand"),
        (("--replicas", "1"), "--for finds how many replicas hold the demand"),
        (("--compare=H100", "--gpu-type", "L4"), "from --gpu-type or from --compare, not from both"),
    ],
)  # fmt: skip
def test_what_a_demand_leaves_no_room_for_is_refused(
    exo: Exo, others: tuple[str, ...], reason: str
) -> None:
    code, said = asked(exo, "Qwen/Qwen3-8B", "requests=1/s input=10 output=10", *others)
    assert code == 2
    assert reason in said


def test_a_gpu_that_is_named_twice_has_its_rows_once(exo: Exo) -> None:
    rows = []
    for gpus in ("H100", "H100,H100", "H100,h100-sxm"):
        demand = "requests=1/s input=10 output=10"
        rows.append(asked(exo, "Qwen/Qwen3-8B", demand, f"--compare={gpus}"))
    assert rows[0] == rows[1] == rows[2]


def test_each_data_rank_holds_requests_of_its_own() -> None:
    one, two = planned("H100"), planned("H100", 2, "--data-parallel-size=2")
    demand = Demand(1000, 1000, 300)
    assert held(two, demand).requests == pytest.approx(2 * held(one, demand).requests, rel=0.05)


def test_a_plan_of_a_control_plane_is_read_by_its_table() -> None:
    plan = planned("H100", 1, "--max-model-len=2048")
    table, times = TableTimes(plan), planner_of("--max-model-len=2048").times(plan)
    for length in (128, 500, 1024):
        assert table.first_token(length) == pytest.approx(times.first_token(length), rel=0.1)
    assert table.first_token(2048) == pytest.approx(2 * table.first_token(1024))
    for size in (1, 8, 24):
        assert table.between_tokens(size, 2048) == pytest.approx(
            times.between_tokens(size, 2048), rel=0.05
        )


def test_a_control_plane_is_asked_for_a_table_that_tells_something(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = cast("Session", None)
    remote = RemotePlanner(session, WantedDeployment())
    monkeypatch.setattr(command, "_measured_planner", lambda *_: remote)
    for flags, length, expected in (
        ((), 1024, "--max-model-len=2048"),
        ((), 4096, "--max-model-len=4096"),
        (("--max-model-len=900",), 1024, "--max-model-len=900"),
    ):
        options = PlanOptions(WantedDeployment(engine_parameters=flags))
        planner = command._planner_of_length(session, options, length, LEAST_LENGTH)
        assert isinstance(planner, RemotePlanner)
        assert planner.wanted.engine_parameters == (expected,)
