"""What the servers of one machine have counted: the gateway's usage, and everybody's metrics in one page.

`LocalMetrics` asks gateway and engines over their private sockets; `merge_metrics` (pure) makes one
exposition of what they answer, with `deployment_id` and `replica` on what engines say of themselves.
Called by `routes/metrics.py`. On a cluster Prometheus asks gateways and engines itself.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from pydantic import ValidationError

from exo_inference.controller.gateway_client import SocketGatewayClient
from exo_inference.platforms.local.health import read_metrics
from exo_inference.resources import InferenceDeployment
from exo_inference.resources.states import deployment_state, wanted_replicas
from exo_inference.state_dir import StateDir, read_file
from exo_inference.wire import KeyUsage

logger = logging.getLogger(__name__)

ENGINE_SECONDS = 2.0
MAX_AT_ONCE = 8
"""Engines that are asked at the same time."""
PAGE_SECONDS = 1.0
"""How long one page of metrics is given to all who ask."""

_OURS = ("exo_gateway_", "exo_deployment_", "exo_scrape_")
"""How names begin that engines cannot have: what they say of others counts for nothing."""

_TYPES = ("counter", "gauge", "summary", "histogram", "unknown")
"""What the text format has; of another type, `generate_latest` would change the name."""
_NAME = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*")
_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""Names that are written as they are; in others `generate_latest` puts `_`, which may make them somebody else's."""

MAX_PAGE_BYTES = 16 << 20
"""Of all that the servers answered and that is merged into one page; what is beyond is left out."""


@dataclass(frozen=True, slots=True)
class MetricsPage:
    """The metrics of one process, and the labels that tell it from others.

    Attributes:
        text: in Prometheus' text format; None where it did not answer.
        labels: to be added to every sample.
    """

    text: bytes | None
    labels: Mapping[str, str]


class LocalMetrics:
    """Asks the servers of one state directory."""

    def __init__(self, state: StateDir) -> None:
        self._state = state
        self._gateway = SocketGatewayClient(state.gateway_socket)

    async def usage(self) -> list[KeyUsage] | None:
        """Return what the gateway has counted, or wrote last where it does not answer.

        Returns:
            None where there is neither: nothing can be said.
        """
        body = await self._gateway.ask("/usage")
        if body is None:
            try:
                body = await asyncio.to_thread(read_file, self._state.usage_file)
            except FileNotFoundError:
                return []  # it has not counted anything yet
            except OSError:
                return None
        return read_usage(body)

    async def pages(self, deployments: Sequence[InferenceDeployment]) -> list[MetricsPage]:
        """Return the metrics of the gateway and of each replica that serves."""
        replicas = [
            (each.metadata.uid, replica.name)
            for each in deployments
            for replica in each.status.replicas
            if replica.state in ("ready", "draining")
        ]
        free = asyncio.Semaphore(MAX_AT_ONCE)

        async def ask(uid: str, name: str) -> MetricsPage:
            async with free:
                directory = self._state.replicas_dir / name
                text = await read_metrics(directory, ENGINE_SECONDS)
            return MetricsPage(text, {"deployment_id": uid, "replica": name})

        gateway = MetricsPage(await self._gateway.ask("/metrics"), {})
        return [gateway, *await asyncio.gather(*(ask(*replica) for replica in replicas))]


def read_usage(body: bytes) -> list[KeyUsage] | None:
    """Return the rows of the gateway's ledger; None where it is damaged."""
    try:
        return [KeyUsage.model_validate(row) for row in json.loads(body)["rows"]]
    except (ValueError, KeyError, TypeError, RecursionError, ValidationError) as exc:
        logger.warning("the counts of the gateway cannot be read: %s", type(exc).__name__)
        return None


def merge_metrics(
    deployments: Sequence[InferenceDeployment], pages: Iterable[MetricsPage]
) -> bytes:
    """Return one exposition of what the controller knows and the others answered.

    A page that cannot be read, or for which there is no room, counts as one that was not answered:
    `exo_scrape_up` is 0.
    """
    families: dict[str, Metric] = {}
    up = GaugeMetricFamily(
        "exo_scrape_up", "Whether a server answered.", labels=["deployment_id", "replica"]
    )
    left = MAX_PAGE_BYTES
    for page in pages:
        size = len(page.text or b"")
        found = _parse(page) if size <= left else None
        left -= size if found is not None else 0
        up.add_metric(
            [page.labels.get("deployment_id", ""), page.labels.get("replica", "gateway")],
            float(found is not None),
        )
        for family in found or ():
            name = _shown_name(family)
            present = families.setdefault(name, family)
            if present is not family:
                if present.type != family.type:  # so that no engine hides what another says
                    present.name, present.type = name, "unknown"
                present.samples += family.samples
    registry = CollectorRegistry()
    registry.register(_Collected([*_own(deployments), up, *families.values()]))
    return generate_latest(registry)


class _Collected(Collector):
    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def _parse(page: MetricsPage) -> list[Metric] | None:
    if page.text is None:
        return None
    seen: set[Hashable] = set()
    families = []
    try:
        for family in text_string_to_metric_families(page.text.decode()):
            if family.type not in _TYPES:
                family.type = "unknown"
            if _may_say(_shown_name(family), page):
                family.samples = list(_samples(family.samples, page, seen))
                families.append(family)
    except (ValueError, KeyError, IndexError, ArithmeticError):
        return None
    return families


def _shown_name(family: Metric) -> str:
    """Return the name that `generate_latest` writes for a family of `_TYPES`."""
    return f"{family.name}_total" if family.type == "counter" else family.name


def _may_say(name: str, page: MetricsPage) -> bool:
    """Say whether a name can be written as it is, and whether who said it may."""
    return bool(_NAME.fullmatch(name)) and not (page.labels and name.startswith(_OURS))


def _samples(samples: Iterable[Sample], page: MetricsPage, seen: set[Hashable]) -> Iterator[Sample]:
    """Yield samples with our labels and no time, each series once: readers refuse other pages as a whole.

    Raises:
        OverflowError: a whole number is larger than a float can be.
    """
    for sample in samples:
        labelled = {**sample.labels, **page.labels}
        series = (sample.name, *sorted(labelled.items()))
        if not _may_say(sample.name, page) or not all(map(_LABEL.fullmatch, labelled)):
            continue
        if series not in seen:
            seen.add(series)
            yield sample._replace(labels=labelled, value=float(sample.value), timestamp=None)


def _own(deployments: Sequence[InferenceDeployment]) -> list[Metric]:
    """Return what the controller itself knows: the state of each deployment, and its replicas."""
    labels = ["deployment_id", "deployment"]
    state = GaugeMetricFamily(
        "exo_deployment_state", "1 for the state it is in.", labels=[*labels, "state"]
    )
    wanted = GaugeMetricFamily(
        "exo_deployment_wanted_replicas", "Replicas that are asked for.", labels=labels
    )
    ready = GaugeMetricFamily(
        "exo_deployment_ready_replicas", "Replicas that are ready.", labels=labels
    )
    for each in deployments:
        named = [each.metadata.uid, each.metadata.name]
        state.add_metric([*named, str(deployment_state(each)[0])], 1)
        wanted.add_metric(named, wanted_replicas(each))
        ready.add_metric(named, each.status.ready_replicas)
    return [state, wanted, ready]
