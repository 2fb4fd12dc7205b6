"""What /metrics shows, under vLLM's names, so that its dashboards and alerts fit; `exo:` is what vLLM has not.

Counts of the engine core arrive as growing totals and are applied as differences. A registry of its
own for each server, so that several can live in one process (tests do).
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from exo_engine.core.request import PREEMPTION_CAUSES, EngineStats
from exo_engine.server.messages import CoreInfo
from exo_engine.server.telemetry.times import Times

if TYPE_CHECKING or importlib.util.find_spec("prometheus_client"):
    from prometheus_client import (
        CONTENT_TYPE_LATEST,
        CollectorRegistry,
        Counter,
        Gauge,
        Histogram,
        PlatformCollector,
        ProcessCollector,
        generate_latest,
    )
else:
    from exo_engine.server.telemetry.no_metrics import (
        CONTENT_TYPE_LATEST,
        CollectorRegistry,
        Counter,
        Gauge,
        Histogram,
        PlatformCollector,
        ProcessCollector,
        generate_latest,
    )

CONTENT_TYPE = CONTENT_TYPE_LATEST
_LABELS = ("model_name", "engine")
_ENGINE = "0"
FINISH_REASONS = ("stop", "length", "abort", "error")
_FIRST_TOKEN_SECONDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
_TOKEN_SECONDS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
)  # fmt: skip
_REQUEST_SECONDS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
_GRAMMAR_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_COUNTS_1_2_5 = tuple(mantissa * 10**power for power in range(6) for mantissa in (1, 2, 5))


class Metrics:
    """Counters, gauges and histograms of one server."""

    def __init__(self, model_name: str) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self._model_name = model_name
        self._last = EngineStats()
        self._running = self._gauge("num_requests_running", "Requests in the running batch.")
        self._waiting = self._gauge("num_requests_waiting", "Requests waiting for their turn.")
        self._usage = self._gauge("kv_cache_usage_perc", "Share of KV blocks in use, 1 is all.")
        self._preemptions = self._counter("num_preemptions", "Requests pushed out of the batch.")
        by_cause = Counter(
            "exo:num_preemptions_by_cause",
            "The same by cause: cache, priority, failed_step.",
            (*_LABELS, "cause"),
            registry=self.registry,
        )
        self._preemptions_by_cause = [
            by_cause.labels(model_name, _ENGINE, cause) for cause in PREEMPTION_CAUSES
        ]
        self._prompt = self._counter("prompt_tokens", "Prompt tokens processed.")
        self._generation = self._counter("generation_tokens", "Tokens generated.")
        self._queries = self._counter(
            "prefix_cache_queries", "Prompt tokens looked up in the prefix cache."
        )
        self._hits = self._counter("prefix_cache_hits", "Prompt tokens found there.")
        # vLLM's newer name for the same, caches outside of the engine included.
        self._cached = self._counter("prompt_tokens_cached", "Prompt tokens that were cached.")
        self._broken = self._counter(
            "corrupted_requests", "Requests for which the model gave no numbers (NaN)."
        )
        self._late_compilations = Counter(
            "exo:late_kernel_compilations",
            "GPU kernels compiled while requests were served, which waited for it.",
            _LABELS,
            registry=self.registry,
        ).labels(model_name, _ENGINE)
        success = Counter(
            "vllm:request_success",
            "Requests that ended, by reason.",
            (*_LABELS, "finished_reason"),
            registry=self.registry,
        )
        self._success = {
            reason: success.labels(model_name, _ENGINE, reason) for reason in FINISH_REASONS
        }
        self._init_histograms()

    def _init_histograms(self) -> None:
        self._first_token = self._histogram(
            "time_to_first_token_seconds", "From arrival to the first token.", _FIRST_TOKEN_SECONDS
        )
        self._grammar = self._histogram(
            "grammar_compilation_time_seconds",
            "To compile an unseen grammar.",
            _GRAMMAR_SECONDS,
            prefix="exo",
        )
        self._inter_token = self._histogram(
            "inter_token_latency_seconds", "Between two tokens.", _TOKEN_SECONDS
        )
        # vLLM's older name for the same; dashboards know one or the other.
        self._per_token = self._histogram(
            "time_per_output_token_seconds", "Between two tokens (older name).", _TOKEN_SECONDS
        )
        self._end_to_end = self._histogram(
            "e2e_request_latency_seconds", "From arrival to the last token.", _REQUEST_SECONDS
        )
        self._phases = {
            name: self._histogram(f"request_{name}_time_seconds", text, _REQUEST_SECONDS)
            for name, text in (
                ("queue", "From arrival to the first step."),
                ("prefill", "From the first step to the first token."),
                ("decode", "From the first token to the last one."),
                ("inference", "From the first step to the last token."),
            )
        }
        self._mean_per_token = self._histogram(
            "request_time_per_output_token_seconds",
            "Decode time by the tokens behind the first, per request.",
            _TOKEN_SECONDS,
        )
        self._step_tokens = self._histogram(
            "iteration_tokens_total", "Tokens computed per step.", _STEP_TOKENS
        )
        self._prompt_sizes = self._histogram(
            "request_prompt_tokens", "Prompt tokens per request.", _COUNTS_1_2_5
        )
        self._answer_sizes = self._histogram(
            "request_generation_tokens", "Tokens generated per request.", _COUNTS_1_2_5
        )
        self._computed_sizes = self._histogram(
            "request_prefill_kv_computed_tokens",
            "Prompt tokens per request that were not cached.",
            _COUNTS_1_2_5,
        )
        self._preemptions_each = self._histogram(
            "request_num_preemptions", "How often a request started over.", (1, 2, 3, 4, 5, 10, 20)
        )
        self._max_tokens = self._histogram(
            "request_params_max_tokens", "The limit that requests set.", _COUNTS_1_2_5
        )
        self._choices = self._histogram(
            "request_params_n", "Choices that requests ask for.", (1, 2, 5, 10, 20)
        )

    def set_info(self, info: CoreInfo) -> None:
        """Publish what the core turned out to be."""
        labels = {
            "engine": _ENGINE,
            "block_size": str(info.block_size),
            "num_gpu_blocks": str(info.num_blocks),
            "cache_dtype": info.dtype,
            "gpu_memory_utilization": str(info.gpu_memory_utilization),
            "enable_prefix_caching": str(info.is_prefix_caching_on),
        }
        Gauge(
            "vllm:cache_config_info",
            "How the KV cache is set up.",
            tuple(labels),
            registry=self.registry,
        ).labels(**labels).set(1)

    def apply_stats(self, stats: EngineStats) -> None:
        """Take the core's counters after a step."""
        last, self._last = self._last, stats
        self._running.set(stats.num_running)
        self._usage.set(stats.kv_cache_usage)
        self._preemptions.inc(stats.num_preemptions_total - last.num_preemptions_total)
        by_cause = zip(
            self._preemptions_by_cause,
            stats.preemptions_total,
            last.preemptions_total,
            strict=True,
        )
        for counter, now, before in by_cause:
            counter.inc(now - before)
        num_prompt = stats.prompt_tokens_total - last.prompt_tokens_total
        num_generated = stats.generation_tokens_total - last.generation_tokens_total
        self._prompt.inc(num_prompt)
        self._generation.inc(num_generated)
        self._queries.inc(stats.prefix_cache_queries_total - last.prefix_cache_queries_total)
        num_hits = stats.prefix_cache_hits_total - last.prefix_cache_hits_total
        self._hits.inc(num_hits)
        self._cached.inc(num_hits)
        self._late_compilations.inc(stats.late_compilations_total - last.late_compilations_total)
        if stats.num_steps_total > last.num_steps_total:
            self._step_tokens.observe(stats.computed_tokens_total - last.computed_tokens_total)

    def set_unfinished(self, number: int) -> None:
        """Tell how many requests run or wait; those that the core did not take yet wait, too."""
        self._waiting.set(max(0, number - self._last.num_running))

    def observe_request(self, num_choices: int) -> None:
        """Count a request as it comes in."""
        self._choices.observe(num_choices)

    def observe_broken_output(self) -> None:
        """Count a request for which the model gave no numbers."""
        self._broken.inc()

    def observe_grammar(self, seconds: float) -> None:
        """Record how long a grammar took that was not known."""
        self._grammar.observe(seconds)

    def observe_first_token(self, seconds: float) -> None:
        """Record the time to a sequence's first token."""
        self._first_token.observe(seconds)

    def observe_inter_token(self, seconds: float) -> None:
        """Record the time between two tokens of a sequence."""
        self._inter_token.observe(seconds)
        self._per_token.observe(seconds)

    def observe_end(
        self,
        *,
        reason: str,
        seconds: float,
        times: Times,
        num_prompt_tokens: int,
        num_cached_tokens: int,
        num_generation_tokens: int,
        num_preemptions: int,
        max_tokens: int | None,
    ) -> None:
        """Record that a sequence has ended, and how."""
        self._success[reason].inc()
        self._end_to_end.observe(seconds)
        for name, histogram in self._phases.items():
            if (span := getattr(times, name)) is not None:
                histogram.observe(span[1] - span[0])
        if times.decode is not None and num_generation_tokens > 1:
            first, last = times.decode
            self._mean_per_token.observe((last - first) / (num_generation_tokens - 1))
        self._prompt_sizes.observe(num_prompt_tokens)
        self._computed_sizes.observe(num_prompt_tokens - num_cached_tokens)
        self._preemptions_each.observe(num_preemptions)
        self._answer_sizes.observe(num_generation_tokens)
        if max_tokens is not None:
            self._max_tokens.observe(max_tokens)

    def render(self) -> bytes:
        """Return the page in Prometheus' text format.

        Raises:
            ApiError: prometheus-client is not installed.
        """
        return generate_latest(self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        metric = Gauge(f"vllm:{name}", text, _LABELS, registry=self.registry)
        return metric.labels(self._model_name, _ENGINE)

    def _counter(self, name: str, text: str) -> Counter:
        metric = Counter(f"vllm:{name}", text, _LABELS, registry=self.registry)
        return metric.labels(self._model_name, _ENGINE)

    def _histogram(
        self, name: str, text: str, buckets: tuple[float, ...], prefix: str = "vllm"
    ) -> Histogram:
        name = f"{prefix}:{name}"
        metric = Histogram(name, text, _LABELS, registry=self.registry, buckets=buckets)
        return metric.labels(self._model_name, _ENGINE)
