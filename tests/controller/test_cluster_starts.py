"""Real starts of a cluster: one ConfigMap, which the leader writes and both controllers read."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from exo_inference.controller.cluster import recorded_starts as cluster_starts
from exo_inference.controller.cluster.recorded_starts import NAME, ClusterStarts
from exo_inference.kubernetes_api.client import KubernetesApi, object_path
from tests.charts.service_accounts import kubeconfig_of
from tests.controller.test_plan_starts import make_start
from tests.kubernetes_api import KubernetesApi as Server

pytestmark = pytest.mark.kubernetes


@pytest.fixture
async def api(kubernetes_api: Server) -> AsyncIterator[KubernetesApi]:
    """With the rights of a controller."""
    kubeconfig = kubeconfig_of("controller", kubernetes_api)
    found = await KubernetesApi.connect(kubeconfig)
    yield found
    await found.close()


async def ids(starts: ClusterStarts) -> list[str]:
    return [start.id for start in await starts.read()]


async def test_what_one_controller_records_another_reads(api: KubernetesApi) -> None:
    leader, other = ClusterStarts(api), ClusterStarts(api)
    assert await other.read() == []
    for number in range(3):
        await leader.append(make_start(number))
    assert await ids(other) == ["0", "1", "2"]
    await other.append(make_start(3))  # the leader now
    assert await ids(leader) == ["0", "1", "2", "3"]


async def test_the_oldest_go_by_number_and_by_size(
    api: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = ClusterStarts(api)
    monkeypatch.setattr(cluster_starts, "MAX_STARTS", 3)
    for number in range(5):
        await starts.append(make_start(number))
    assert await ids(starts) == ["2", "3", "4"]
    monkeypatch.setattr(cluster_starts, "MAX_BYTES", 600)
    large = make_start(5).model_copy(update={"flags": ["--x"] * 50})
    await starts.append(large)
    assert (await ids(starts))[-1] == "5"
    assert len(await ids(starts)) < 3


async def test_a_line_that_is_no_start_hides_no_other(api: KubernetesApi) -> None:
    starts = ClusterStarts(api)
    await starts.append(make_start(1))
    path = object_path(api, "configmaps", NAME)
    text = (await api.get(path))["data"]["plan-starts.jsonl"]
    await api.merge(path, {"data": {"plan-starts.jsonl": f"{{broken\n{text}"}})
    assert await ids(starts) == ["1"]
    await api.merge(path, {"data": None})
    assert await ids(starts) == []
