"""The gateway's Prometheus metrics, served on the admin socket.

Counts come from the usage ledger at the moment of a scrape, so they survive restarts as the ledger
does; times are histograms of this process. Labels are ids: names change, and prompts never show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from exo_inference.gateway.exchange import Exchange
from exo_inference.gateway.replicas.balancer import Balancer
from exo_inference.gateway.table import Tables
from exo_inference.gateway.usage_ledger import UsageLedger

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class GatewayMetrics:
    """Everything that `/metrics` shows."""

    def __init__(
        self,
        ledger: UsageLedger,
        balancer: Balancer,
        tables: Tables,
        count_held: Callable[[], int] = lambda: 0,
    ) -> None:
        self._registry = CollectorRegistry()
        held = Gauge(
            "exo_gateway_held_requests",
            "Requests that wait now for a replica that is on its way.",
            registry=self._registry,
        )
        held.set_function(count_held)
        self._registry.register(_Snapshot(ledger, balancer, tables))
        labels = ["deployment_id"]
        self._duration = Histogram(
            "exo_gateway_request_duration_seconds",
            "From the request's head to the end of its answer.",
            labels,
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._first_byte = Histogram(
            "exo_gateway_first_byte_seconds",
            "From the request's head to the first byte of its answer.",
            labels,
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._retries = Counter(
            "exo_gateway_retries",
            "Further replicas that were tried for a request.",
            labels,
            registry=self._registry,
        )
        self._broken = Counter(
            "exo_gateway_broken_answers",
            "Answers whose replica broke off in their middle.",
            labels,
            registry=self._registry,
        )

    def observe(self, exchange: Exchange, seconds: float) -> None:
        """Take one request that has ended."""
        name = exchange.deployment_id
        if not name:
            return
        self._duration.labels(name).observe(seconds)
        if exchange.first_byte_seconds is not None:
            self._first_byte.labels(name).observe(exchange.first_byte_seconds)
        if exchange.retries:
            self._retries.labels(name).inc(exchange.retries)
        if exchange.broken:
            self._broken.labels(name).inc()

    def render(self) -> bytes:
        """Return the text exposition format."""
        return generate_latest(self._registry)


class _Snapshot(Collector):
    """What is counted elsewhere, read when asked for."""

    def __init__(self, ledger: UsageLedger, balancer: Balancer, tables: Tables) -> None:
        self._ledger = ledger
        self._balancer = balancer
        self._tables = tables

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "exo_gateway_requests",
            "Requests by status; 499 is a client that hung up.",
            labels=["deployment_id", "key_id", "status"],
        )
        tokens = CounterMetricFamily(
            "exo_gateway_tokens",
            "Tokens as the engines counted them.",
            labels=["deployment_id", "key_id", "kind"],
        )
        for row in self._ledger:
            for status, count in row.requests.items():
                requests.add_metric([row.deployment_id, row.key_id, str(status)], count)
            ids = [row.deployment_id, row.key_id]
            tokens.add_metric([*ids, "prompt"], row.prompt_tokens)
            tokens.add_metric([*ids, "completion"], row.completion_tokens)
        yield requests
        yield tokens
        yield from self._routing()

    def _routing(self) -> Iterator[Metric]:
        table = self._tables.table
        pending = GaugeMetricFamily(
            "exo_gateway_pending_requests",
            "Requests that a replica has now.",
            labels=["deployment_id", "replica"],
        )
        ready = GaugeMetricFamily(
            "exo_gateway_ready_replicas",
            "Replicas that may get requests.",
            labels=["deployment_id", "deployment"],
        )
        for deployment in table.by_id.values() if table else ():
            ready.add_metric([deployment.id, deployment.name], len(deployment.replicas))
            for replica in deployment.replicas:
                count = self._balancer.pending.get(replica.name, 0)
                pending.add_metric([deployment.id, replica.name], count)
        yield pending
        yield ready
        version = GaugeMetricFamily(
            "exo_gateway_table_version", "Version of the routing table in force."
        )
        version.add_metric([], table.version if table else 0)
        yield version
