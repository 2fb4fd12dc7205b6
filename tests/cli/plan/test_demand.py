"""`deployment plan --for`: what a demand may say, and how replicas are reckoned from a plan's speeds."""

from __future__ import annotations

import json
import math

import pytest

from exo_inference.cli.plan.demand import Answer, Demand, answer, answers, parse_demand
from exo_inference.errors import UsageError
from exo_inference.planner import find_gpu, find_model
from exo_inference.preflight import Subject, judge, to_wire
from exo_inference.wire import DeploymentPlan
from tests.cli.conftest import Exo

WHOLE = "requests=20/s input=1000 output=300 ttft<=500ms itl<=0.04s"


def planned(gpu: str, count: int = 1, *flags: str) -> DeploymentPlan:
    subject = Subject(find_model("Qwen/Qwen3-8B"), find_gpu(gpu), count, flags)
    return to_wire(judge(subject, with_advice=False))


def held(plan: DeploymentPlan, demand: Demand) -> Answer:
    found = answer(plan, demand)
    assert found is not None
    return found


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
    assert found.itl <= demand.itl
    assert found.ttft <= demand.ttft
    assert found.usd_per_hour == pytest.approx(found.replicas * find_gpu("H100").usd_per_hour[1])


def test_time_goes_to_prompts_or_to_decoding_and_never_to_both() -> None:
    """`r` requests a second of `o` tokens in batches of `b`: all tokens are decoded in the time that is left."""
    demand = parse_demand("requests=20/s input=1000 output=300")
    found = held(planned("H100", 1, "--max-model-len=2048"), demand)
    assert found.requests * demand.output_tokens * found.itl == pytest.approx(found.batch)
    assert found.requests * found.ttft < 1


def test_stricter_limits_take_more_replicas() -> None:
    plan = planned("H100", 1, "--max-model-len=2048")
    loose, strict = (
        held(plan, Demand(100, 1000, 300, itl=limit)).replicas for limit in (0.1, 0.02)
    )
    assert strict > loose


def test_what_no_replica_holds_has_no_answer() -> None:
    plan = planned("H100", 1, "--max-model-len=2048")
    assert answer(plan, Demand(1, 1000, 300, itl=1e-6)) is None
    assert answer(plan, Demand(1, 1000, 300, ttft=1e-6)) is None
    assert answer(planned("T4"), Demand(1, 1000, 300)) is None  # does not fit


def test_no_more_requests_run_at_once_than_the_cache_holds() -> None:
    plan = planned("gpua5000", 1, "--max-model-len=8192")
    found = held(plan, Demand(1, 7000, 1000))
    assert found.batch * 8000 <= plan.kv_capacity_tokens


def test_the_cheapest_is_first_and_what_has_no_price_last() -> None:
    plans = [
        planned(gpu, 1, "--max-model-len=2048") for gpu in ("gpub300", "H100", "gpurtx6000pro")
    ]
    found = answers(plans, parse_demand("requests=20/s input=1000 output=300"))
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
