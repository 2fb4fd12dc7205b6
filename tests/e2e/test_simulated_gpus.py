"""The guide's story on a machine without a GPU: Ministral on an RTX A5000, refused, then three ways out.

Everything is real but the GPUs: the command line, admission, the engine's process, the gateway. The
figures that are compared with the planner's come from the engine's log and from a client's clock.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median

import openai
import pytest

from exo_inference.planner import Plan, find_gpu, find_model, plan
from exo_inference.platforms.local.health import read_metrics
from tests.planner.flags import settings_of

from .conftest import Stack, processes_of, run_exo, start_stack

pytestmark = pytest.mark.slow

MINISTRAL = "mistralai/Ministral-3-8B-Instruct-2512"
GIB = 2**30


@contextmanager
def simulated_stack(state_dir: Path, speedup: int) -> Iterator[Stack]:
    """Run a control plane with simulated GPUs that has the model."""
    gpus = ("--simulate-gpus", "gpua5000=4,gpurtx6000pro=8")
    running = start_stack(state_dir, *gpus, "--simulate-speedup", str(speedup))
    try:
        running.exo("model", "create", MINISTRAL, "--wait")
        yield running
    finally:
        run_exo(state_dir, "down", check=False)
        assert processes_of(state_dir) == {}


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with simulated_stack(tmp_path_factory.mktemp("fast") / "state", 200) as stack:
        yield stack


@pytest.fixture(scope="module")
def real_time(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with simulated_stack(tmp_path_factory.mktemp("real") / "state", 1) as stack:
        yield stack


def create(
    stack: Stack, count: int, flags: str = "", *more: str, check: bool = True
) -> subprocess.CompletedProcess[str]:
    parameters = ("--inference-engine-params", flags) if flags else ()
    return stack.exo(
        *("deployment", "create", "chat", "--model-name", MINISTRAL),
        *("--gpu-type", "gpua5000", "--gpu-count", str(count), *parameters, *more),
        check=check,
        timeout=400,
    )


@contextmanager
def deployed(
    stack: Stack, count: int, flags: str = ""
) -> Iterator[tuple[dict[str, object], openai.OpenAI]]:
    create(stack, count, flags, "--wait")
    shown = json.loads(stack.exo("deployment", "show", "chat", "-O", "json").stdout)
    key = json.loads(stack.exo("deployment", "reveal-api-key", "chat", "-O", "json").stdout)
    try:
        with openai.OpenAI(
            base_url=shown["deployment_url"], api_key=key["api_key"], max_retries=0
        ) as client:
            yield shown, client
    finally:
        stack.exo("deployment", "delete", "chat", "--force")
        until_gone(stack)


def until_gone(stack: Stack) -> None:
    end = time.monotonic() + 60
    while json.loads(stack.exo("deployment", "list", "-O", "json").stdout):
        assert time.monotonic() < end
        time.sleep(0.1)


def planned(count: int, flags: str) -> Plan:
    parameters = settings_of(flags.split(), engine_version="0.28.0")
    return plan(find_model(MINISTRAL), find_gpu("gpua5000"), count, parameters)


def ask(client: openai.OpenAI, content: str = "What is a KV cache?", max_tokens: int = 40) -> str:
    answer = client.chat.completions.create(
        model=MINISTRAL,
        messages=[{"role": "user", "content": content}],
        temperature=0,
        max_tokens=max_tokens,
    )
    assert answer.model == MINISTRAL
    return answer.choices[0].message.content or ""


def test_the_model_is_ready_without_its_weights(fast: Stack) -> None:
    (model,) = json.loads(fast.exo("model", "list", "-O", "json").stdout)
    assert (model["name"], model["state"]) == (MINISTRAL, "ready")
    files = [path for path in fast.state_dir.rglob("*") if path.is_file()]
    assert not [path for path in files if path.suffix == ".safetensors"]


def test_one_gpu_with_defaults_is_refused_with_the_ways_out(fast: Stack) -> None:
    refused = create(fast, 1, check=False)
    assert refused.returncode != 0
    text = refused.stderr
    assert "Precondition Failed" in text
    assert "34.00 GiB of KV cache" in text
    assert "--gpu-type gpua5000 --gpu-count 4" in text
    assert "'--max-model-len=156672 --kv-cache-dtype=fp8'" in text
    assert "'--max-model-len=77824'" in text
    assert json.loads(fast.exo("deployment", "list", "-O", "json").stdout) == []


@pytest.mark.parametrize(
    ("count", "flags"),
    [
        (4, ""),
        (1, "--max-model-len=60000"),
        (1, "--max-model-len=131072 --kv-cache-dtype=fp8"),
    ],
    ids=["four GPUs", "shorter context", "FP8 cache"],
)
def test_each_way_out_deploys_answers_and_logs_the_planners_figures(
    fast: Stack, count: int, flags: str
) -> None:
    wanted = planned(count, flags)
    with deployed(fast, count, flags) as (shown, client):
        assert shown["state_details"] == "runs on simulated GPUs"
        assert [model.id for model in client.models.list()] == [MINISTRAL]
        assert "key" in ask(client).lower()
        log = fast.exo("deployment", "logs", "chat", "--tail", "200").stdout
    assert f"available KV cache memory: {wanted.available_kv_bytes_per_gpu / GIB:.2f} GiB" in log
    assert f"KV cache size: {wanted.kv_capacity_tokens:,} tokens" in log
    assert f"{wanted.max_concurrency:.2f}x" in log
    assert f"weights: {wanted.weights_bytes_per_gpu / GIB:.2f} GiB" in log


def test_a_start_that_was_forced_fails_with_the_figures_and_the_next_step(fast: Stack) -> None:
    failed = create(fast, 1, "", "--force", "--wait", check=False)
    assert failed.returncode != 0
    shown = json.loads(fast.exo("deployment", "show", "chat", "-O", "json").stdout)
    wanted = planned(1, "")
    assert shown["state"] == "error"
    assert "out of GPU memory: one request of 262144 tokens" in shown["state_details"]
    assert f"--max-model-len={wanted.safe_max_model_len} or less" in shown["state_details"]
    log = fast.exo("deployment", "logs", "chat", "--tail", "200").stdout
    assert f"available KV cache memory: {wanted.available_kv_bytes_per_gpu / GIB:.2f} GiB" in log
    # What the details say mends it.
    flags = f"--max-model-len={wanted.safe_max_model_len}"
    fast.exo("deployment", "update", "chat", "--inference-engine-params", flags, "--wait")
    fast.exo("deployment", "delete", "chat", "--force")
    until_gone(fast)


def test_a_simulated_model_does_not_run_on_the_cpu(fast: Stack) -> None:
    refused = fast.exo(
        *("deployment", "create", "chat", "--model-name", MINISTRAL),
        *("--gpu-type", "cpu", "--gpu-count", "1"),
        check=False,
    )
    assert refused.returncode != 0
    assert "is simulated, without its weights, and cpu is real" in refused.stderr


def test_a_model_outside_the_catalogue_is_refused(fast: Stack) -> None:
    refused = fast.exo("model", "create", "mistralai/Ministral-9-8B", check=False)
    assert refused.returncode != 0
    assert "nothing is downloaded" in refused.stderr


def stream(client: openai.OpenAI, prompt: str, max_tokens: int) -> tuple[float, list[float]]:
    """Return when the first token of an answer came, and the times between the others."""
    start = time.monotonic()
    moments = []
    for event in client.completions.create(
        model=MINISTRAL,
        prompt=prompt,
        max_tokens=max_tokens,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True},
    ):
        if event.choices:
            moments.append(time.monotonic())
    return moments[0] - start, [b - a for a, b in pairwise(moments)]


MAX_ANSWERS = 20


@pytest.mark.timeout(300)
def test_a_client_measures_the_planned_speed(real_time: Stack) -> None:
    """At real durations: a prompt of 4,000 tokens and a short answer, the least disturbed of some.

    Other work on the machine only ever makes an answer later, so the first one that nothing disturbed is what
    the engine does; one that comes sooner than planned is as wrong. Weights that are read from the host's memory make
    tokens of 160 ms, beside which what a busy machine takes for each is little.
    """
    flags = "--max-model-len=60000 --cpu-offload-gb=4 --enforce-eager"  # the shortest start
    wanted = planned(1, flags)
    assert wanted.speed is not None
    ttfts, itls = [], []
    with deployed(real_time, 1, flags) as (_, client):
        stream(client, "warm-up", 4)
        prompts = [f"{number} " + "what is a key " * 1000 for number in range(MAX_ANSWERS)]
        used = client.completions.create(model=MINISTRAL, prompt=prompts[0], max_tokens=1).usage
        assert used is not None
        planned_ttft = seconds_of_prompt(wanted, used.prompt_tokens)
        planned_itl = wanted.speed.batches[0].inter_token_seconds
        for prompt in prompts[1:]:
            ttft, gaps = stream(client, prompt, 8)
            ttfts.append(ttft)
            itls.append(median(gaps))
            if min(ttfts) <= planned_ttft * 1.2 and min(itls) <= planned_itl * 1.2:
                break
    print(f"TTFT {min(ttfts):.3f} s, ITL {min(itls) * 1000:.1f} ms, of {len(ttfts)} answers")
    assert min(ttfts) == pytest.approx(planned_ttft, rel=0.2)
    assert min(itls) == pytest.approx(planned_itl, rel=0.2)


def seconds_of_prompt(wanted: Plan, num_tokens: int) -> float:
    """Return the planned time to first token, between the lengths that the plan lists."""
    assert wanted.speed is not None
    points = [(each.num_tokens, each.ttft_seconds) for each in wanted.speed.prompts]
    (x0, y0), (x1, y1) = next(pair for pair in pairwise(points) if pair[1][0] >= num_tokens)
    return y0 + (y1 - y0) * (num_tokens - x0) / (x1 - x0)


@pytest.mark.timeout(300)
def test_requests_beyond_the_capacity_wait_for_their_turn(fast: Stack) -> None:
    """The cache holds 1.3 requests of full length: of three that need most of it, one runs at a time."""
    flags = "--max-model-len=60000"
    assert planned(1, flags).max_concurrency < 2
    with deployed(fast, 1, flags) as (_, client):
        prompts = [f"{number} " + "what is a key " * 12000 for number in range(3)]
        counted = "counted " + "what is a key " * 12000
        tokens = client.completions.create(model=MINISTRAL, prompt=counted, max_tokens=1).usage
        assert tokens is not None
        assert planned(1, flags).kv_capacity_tokens / 2 < tokens.prompt_tokens < 60000
        before = num_steps(fast)
        stream(client, "alone " + "what is a key " * 12000, 32)
        alone = num_steps(fast) - before
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda prompt: stream(client, prompt, 32), prompts))
        together = num_steps(fast) - before - alone
    # Two that ran at once would share their steps; the last one of each may be the first of the next.
    assert 3 * alone - 2 <= together <= 3 * alone


def num_steps(stack: Stack) -> float:
    """Return how many steps the only engine has made; `exo metrics` keeps a page for a second."""
    (directory,) = {
        path.parent for path in (stack.state_dir / "replicas").glob("[!.]*/process.json")
    }
    page = asyncio.run(read_metrics(directory, 10))
    assert page is not None
    (count,) = re.findall(rb"^vllm:iteration_tokens_total_count\{.*\} (\S+)$", page, re.MULTILINE)
    return float(count)
