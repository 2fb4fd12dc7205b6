"""A refused write is refused by every controller of a cluster, once the first two seconds are over."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest

from exo_inference.controller.cluster import refused_signatures
from exo_inference.controller.cluster.refused_signatures import SharedRefusals
from exo_inference.controller.http.replays import KEEP_SECONDS
from exo_inference.controller.stores.base import RecordedRequest, Recording
from exo_inference.controller.stores.kubernetes import records
from exo_inference.controller.stores.kubernetes import store as store_module
from exo_inference.errors import StoreUnreachable
from exo_inference.resources import InferenceDeployment
from tests.controller.stores.conftest import open_kubernetes_store
from tests.controller.stores.objects import deployment
from tests.kubernetes_api import KubernetesApi as Cluster

KEY = "signature:abc"


async def test_another_controller_finds_a_refusal_that_is_settled(cluster: Cluster) -> None:
    one, other = await open_kubernetes_store(cluster), await open_kubernetes_store(cluster)
    await one.add_refusal(KEY, time.time() + 60)
    assert await other.find_request(KEY) is None, "it may be meant anew"
    await one.add_refusal("signature:settled", time.time() - 0.1)
    found = await other.find_request("signature:settled")
    assert found is not None
    assert found.is_refused
    await one.close()
    await other.close()


async def test_what_is_judged_again_may_be_done_and_is_then_no_refusal(cluster: Cluster) -> None:
    store = await open_kubernetes_store(cluster)
    await store.add_refusal(KEY, time.time() + 60)
    await store.create(deployment(), Recording(request=RecordedRequest(KEY, "print", "op")))
    await store.add_refusal(KEY, time.time() - 60)
    found = await store.find_request(KEY)
    assert found == RecordedRequest(KEY, "print", "op")
    assert [each.metadata.name for each in await store.list(InferenceDeployment)] == ["chat"]
    await store.close()


async def test_refusals_go_when_their_signatures_have_ended(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_kubernetes_store(cluster)
    await store.add_refusal(KEY, 0.0)
    long_ago = datetime(2020, 1, 1, tzinfo=UTC)
    await store.prune(requests_before=long_ago, operations_before=long_ago)
    assert await store.find_request(KEY) is not None
    monkeypatch.setattr(store_module, "REPAIR_SECONDS", 0.0)
    monkeypatch.setattr(records, "REFUSALS_KEPT", timedelta(seconds=-60))
    store._next_repair = 0.0
    await store.prune(requests_before=long_ago, operations_before=long_ago)
    assert await store.find_request(KEY) is None
    await store.close()


class FakeStore:
    """Counts what is recorded."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.is_away = False

    async def add_refusal(self, key: str, judged_again_until: float) -> None:
        if self.is_away:
            raise StoreUnreachable("nobody answers")
        self.keys.append(key)


async def test_so_many_refusals_are_shared_and_no_more() -> None:
    store, now = FakeStore(), 1000.0
    shared = SharedRefusals(store.add_refusal, monotonic=lambda: now)
    count = refused_signatures.MAX_REFUSALS + 300
    await asyncio.gather(*(shared.add(str(number)) for number in range(count)))
    assert len(store.keys) == refused_signatures.MAX_REFUSALS == len(shared._times)
    assert store.keys[0] == "signature:0"
    now += KEEP_SECONDS
    await shared.add("later")
    assert store.keys[-1] == "signature:later"
    assert len(shared._times) == 1


async def test_a_store_that_is_away_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    store = FakeStore()
    store.is_away = True
    await SharedRefusals(store.add_refusal).add("a")
    assert "nobody answers" in caplog.text
