"""`deployment plan --for`: a limit is judged at the load that there is, and a weaker demand never costs more."""

from __future__ import annotations

import functools
import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exo_inference.cli.plan.demand import Answer, Demand, answers
from exo_inference.cli.plan.planners import LocalPlanner
from exo_inference.cli.plan.times import TableTimes, Times
from exo_inference.planner import find_model
from exo_inference.resources.wanted import WantedDeployment
from exo_inference.wire import DeploymentPlan
from tests.cli.conftest import Exo

MODELS = ("Qwen/Qwen3-8B", "Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-0.6B")
GPUS = ("H100", "gpu3", "gpurtx6000pro", "cpu")


@functools.cache
def plans_of(name: str) -> tuple[tuple[DeploymentPlan, Times], ...]:
    found = []
    for gpu in GPUS:
        for count in (1,) if gpu == "cpu" else (1, 2, 8):
            wanted = WantedDeployment(engine_parameters=("--max-model-len=40960",))
            planner = LocalPlanner(find_model(name), wanted)
            plan = planner.plan(gpu, count, with_advice=False)
            if plan.speed is not None:
                found.append((plan, planner.times(plan)))
    return tuple(found)


def held(name: str, demand: Demand, *, by_table: bool = False) -> list[Answer]:
    known = plans_of(name)
    times = {id(plan): TableTimes(plan) if by_table else clock for plan, clock in known}
    return answers([plan for plan, _ in known], demand, lambda plan: times[id(plan)])


def least_costs(name: str, demand: Demand, *, by_table: bool = False) -> dict[str, float]:
    """Return the lowest price of each kind of GPU, or replicas where it has none."""
    costs: dict[str, float] = {}
    for each in held(name, demand, by_table=by_table):
        price = each.replicas if each.usd_per_hour is None else each.usd_per_hour
        costs[each.plan.gpu_type] = min(price, costs.get(each.plan.gpu_type, math.inf))
    return costs


LIMITS = st.one_of(st.just(math.inf), st.floats(0.003, 0.3))
DEMANDS = st.builds(
    Demand,
    st.floats(0.001, 300),
    st.sampled_from([1, 100, 1000, 8000, 30000]),
    st.sampled_from([1, 2, 3, 10, 300, 2000]),
    st.one_of(st.just(math.inf), st.floats(0.01, 20)),
    LIMITS,
)


EXAMPLES = pytest.mark.parametrize("examples", [40, pytest.param(150, marks=pytest.mark.slow)])


@EXAMPLES
def test_a_weaker_demand_never_costs_more(examples: int) -> None:
    changed = st.sampled_from(["requests", "ttft", "itl"])
    drawn = given(st.sampled_from(MODELS), DEMANDS, st.floats(1, 10), changed, st.booleans())
    settings(max_examples=examples)(drawn(check_weaker_demand))()


def check_weaker_demand(
    name: str, demand: Demand, factor: float, what: str, by_table: bool
) -> None:
    """Compare the costs of a demand with those of one that asks for less."""
    value = getattr(demand, what)
    weaker = replace(demand, **{what: value / factor if what == "requests" else value * factor})
    before, after = (least_costs(name, each, by_table=by_table) for each in (demand, weaker))
    assert before.keys() <= after.keys()
    assert all(after[gpu] <= before[gpu] * (1 + 1e-9) for gpu in before)


@EXAMPLES
def test_what_is_told_is_within_the_limits(examples: int) -> None:
    drawn = given(st.sampled_from(MODELS), DEMANDS)
    settings(max_examples=examples)(drawn(check_limits))()


def check_limits(name: str, demand: Demand) -> None:
    """Compare what is told of a demand with its limits."""
    for each in held(name, demand):
        assert each.ttft <= demand.ttft
        assert each.itl is None or each.itl <= demand.itl * (1 + 1e-9)
        assert each.replicas * each.requests >= demand.requests * (1 - 1e-9)


@pytest.mark.parametrize(
    ("name", "demand"),
    [
        ("Qwen/Qwen3-8B", "requests=1/s input=1000 output=2"),
        ("Qwen/Qwen3-30B-A3B", "requests=0.01/s input=30000 output=10"),
    ],
)
def test_a_limit_that_one_replica_keeps_changes_nothing(exo: Exo, name: str, demand: str) -> None:
    line = ("ai", "deployment", "plan", "--offline", "--model-name", name, "--gpu-type", "H100")
    free, limited = (
        json.loads(exo(*line, "-O", "json", "--for", text).out)[0]
        for text in (demand, f"{demand} itl<=30ms")
    )
    assert limited["inter_token_seconds"] == free["inter_token_seconds"] < 0.03
    assert (limited["replicas"], limited["gpu_count"]) == (free["replicas"], free["gpu_count"])


def test_more_replicas_are_tried_where_one_is_too_slow_with_all_prompts() -> None:
    """Prompts of 1,000 tokens between answers of a few: the load of each replica is what slows them."""
    demand = Demand(40, 1000, 20)
    loose, strict = (
        min(held("Qwen/Qwen3-8B", each), key=lambda found: found.replicas)
        for each in (demand, replace(demand, itl=0.012))
    )
    assert loose.itl is not None
    assert strict.itl is not None
    assert strict.itl <= 0.012 < loose.itl
    assert strict.replicas > loose.replicas


def simulated(times: Times, demand: Demand, rate: float) -> float:
    """Return the mean time between tokens of a rank to which requests come evenly; a prompt goes first."""
    ttft, steps = times.first_token(demand.input_tokens), demand.output_tokens - 1
    plain = functools.cache(lambda size: times.between_tokens(size, demand.context))
    now, came = 0.0, 0
    spent: list[float] = []
    running: list[tuple[float, int]] = []  # when the first token came, steps to do
    while len(spent) < 400:
        if came / rate <= now:
            now, came = now + ttft, came + 1
            running.append((now, steps))
        elif running:
            now += plain(len(running))
            spent += [(now - since) / steps for since, left in running if left == 1]
            running = [(since, left - 1) for since, left in running if left > 1]
        else:
            now = came / rate
    return sum(spent[200:]) / 200


@pytest.mark.parametrize("output", [2, 10, 300])
@pytest.mark.parametrize("share", [0.02, 0.2, 0.6, 0.9])
def test_requests_that_come_evenly_take_no_longer(output: int, share: float) -> None:
    """What is told counts the prompts that come meanwhile as a share; of whole ones that is at most one more."""
    demand = Demand(1, 1000, output)
    plan, times = plans_of("Qwen/Qwen3-8B")[0]
    [most] = (each.requests for each in answers([plan], demand, lambda _: times))
    rate = share * most
    [told] = (each.itl for each in answers([plan], replace(demand, requests=rate), lambda _: times))
    assert told is not None
    one_prompt = times.first_token(1000) / (output - 1)
    assert told / 1.1 - one_prompt < simulated(times, demand, rate) < 1.02 * told
