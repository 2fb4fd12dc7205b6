"""A plan for programs: the whole of it as JSON, and its main figures for templates and text.

The names are public: those of `wire.DeploymentPlan`, in snake_case.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from exo_inference.cli.rendering.views import Column, View
from exo_inference.planner import Step
from exo_inference.wire import DeploymentPlan, PromptSpeed


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def first_prompt(plan: DeploymentPlan) -> PromptSpeed | None:
    """Return the longest prompt of the plan's table of up to 1,024 tokens."""
    prompts = plan.speed.prompts if plan.speed is not None else []
    near = [each for each in prompts if each.num_tokens <= 1024]
    return near[-1] if near else None


def first_token_seconds(plan: DeploymentPlan) -> float | None:
    """Return how long a prompt of about 1,000 tokens waits for its first token."""
    prompt = first_prompt(plan)
    return None if prompt is None else prompt.ttft_seconds


def inter_token_seconds(plan: DeploymentPlan) -> float | None:
    """Return the time between tokens of a single request."""
    batches = plan.speed.batches if plan.speed is not None else []
    return batches[0].inter_token_seconds if batches else None


def tokens_per_second(plan: DeploymentPlan) -> float | None:
    """Return the throughput of one replica under full load."""
    batches = plan.speed.batches if plan.speed is not None else []
    return max((each.tokens_per_second for each in batches), default=None)


def usd_per_million_tokens(plan: DeploymentPlan) -> float | None:
    """Return what generated tokens cost under full load."""
    batches = plan.speed.batches if plan.speed is not None else []
    prices = [each.usd_per_million_tokens for each in batches]
    return min((price for price in prices if price is not None), default=None)


PLAN: View[DeploymentPlan] = View(
    (
        Column("verdict", "Verdict", "Verdict", lambda p: str(p.verdict)),
        Column("model", "Model", "Model", lambda p: p.model),
        Column("gpu_type", "GPUType", "GPU Type", lambda p: p.gpu_type),
        Column("gpu_count", "GPUCount", "GPU Count", lambda p: p.gpu_count),
        Column("engine", "Engine", "Engine", lambda p: p.engine),
        Column("engine_version", "EngineVersion", "Engine Version", lambda p: p.engine_version),
        Column("weights", "Weights", "Weights", lambda p: p.weights_bytes_per_gpu),
        Column("available_kv", "AvailableKV", "KV Cache", lambda p: p.available_kv_bytes_per_gpu),
        Column(
            "kv_per_token", "KVPerToken", "KV per Token", lambda p: _number(p.kv_bytes_per_token)
        ),
        Column("kv_capacity", "KVCapacity", "KV Capacity", lambda p: p.kv_capacity_tokens),
        Column("concurrency", "Concurrency", "Concurrency", lambda p: _number(p.max_concurrency)),
        Column("max_model_len", "MaxModelLen", "Context", lambda p: p.max_model_len),
        Column(
            "largest_max_model_len",
            "LargestMaxModelLen",
            "Longest (middle)",
            lambda p: p.largest_max_model_len,
        ),
        Column("safe_max_model_len", "SafeMaxModelLen", "Longest", lambda p: p.safe_max_model_len),
        Column("ttft", "TTFT", "TTFT", lambda p: _number(first_token_seconds(p))),
        Column("itl", "ITL", "ITL", lambda p: _number(inter_token_seconds(p))),
        Column("throughput", "Throughput", "Tokens/s", lambda p: _number(tokens_per_second(p))),
        Column("usd_per_hour", "USDPerHour", "USD/h", lambda p: _number(p.usd_per_hour)),
        Column(
            "usd_per_million",
            "USDPerMTokens",
            "USD/M",
            lambda p: _number(usd_per_million_tokens(p)),
        ),
    )
)
"""Sizes in bytes, times in seconds: for `-O text` and `--output-template`."""


def as_json(plan: DeploymentPlan, steps: Sequence[Step] | None = None) -> dict[str, Any]:
    """Return everything about a plan; with `steps` the arithmetic as well."""
    value = _snake(plan.model_dump(mode="json", by_alias=True))
    assert isinstance(value, dict), "a plan is an object"
    if steps is not None:
        fields = ("title", "formula", "result", "source")
        value["steps"] = [{name: getattr(step, name) for name in fields} for step in steps]
    return value


def _snake(value: Any) -> Any:
    """Return data with the wire's kebab-case names in snake_case."""
    if isinstance(value, dict):
        return {key.replace("-", "_"): _snake(each) for key, each in value.items()}
    return [_snake(each) for each in value] if isinstance(value, list) else value
