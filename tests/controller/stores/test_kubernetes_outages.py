"""What happens to the API server does not happen to the store: restarts, outages, expired watches."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from exo_inference.controller.stores.base import (
    ChangeType,
    NameTaken,
    ObjectRefused,
    StoreDamaged,
    StoreTooNew,
    StoreUnreachable,
    VersionConflict,
)
from exo_inference.controller.stores.kubernetes import KubernetesApi, KubernetesStore
from exo_inference.controller.stores.kubernetes.cache import Cache
from exo_inference.errors import ConfigurationError
from exo_inference.kubernetes_api import client
from exo_inference.kubernetes_api.client import ApiRefusal, object_path
from exo_inference.kubernetes_api.follower import Follower
from exo_inference.resources import (
    API_VERSION,
    InferenceDeployment,
    InferenceModel,
    ModelSpec,
    ObjectMeta,
)
from exo_inference.resources.model import model_object_name
from tests.charts.service_accounts import kubeconfig_of
from tests.controller.stores.conftest import open_kubernetes_store
from tests.controller.stores.objects import deployment, with_replicas, with_status
from tests.kubernetes_api import KubernetesApi as Cluster

KIND = InferenceDeployment
OpenStore = Callable[[], Awaitable[KubernetesStore]]


@pytest.fixture
async def open_one(cluster: Cluster) -> AsyncIterator[OpenStore]:
    opened: list[KubernetesStore] = []

    async def open_store() -> KubernetesStore:
        opened.append(await open_kubernetes_store(cluster))
        return opened[-1]

    yield open_store
    for store in opened:
        await store.close()
    # Requests that were given up leave connections whose end the server has to agree to.
    await until(no_connection_is_open)


async def no_connection_is_open() -> bool:
    gc.collect()
    # type(): some objects of other libraries warn when their __class__ is read.
    transports = [o for o in gc.get_objects() if issubclass(type(o), asyncio.Transport)]
    return all(t.get_extra_info("socket") is None or _is_closed(t) for t in transports)


def _is_closed(transport: asyncio.Transport) -> bool:
    return transport.get_extra_info("socket").fileno() == -1


async def until(is_so: Callable[[], Awaitable[bool]], seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while not await is_so():
            await asyncio.sleep(0.01)


async def test_a_restart_of_the_api_server_is_not_noticed(
    cluster: Cluster, open_one: OpenStore
) -> None:
    mine, other = await open_one(), await open_one()
    made = await mine.create(deployment())
    cluster.server.restart()
    scaled = await mine.update(with_replicas(made, 3))
    assert scaled.spec.replicas == 3

    async def follows() -> bool:
        return (await other.get(KIND, made.metadata.uid)).spec.replicas == 3

    await until(follows)


async def test_writes_wait_for_an_api_server_that_comes_back(
    cluster: Cluster, open_one: OpenStore
) -> None:
    store = await open_one()
    cluster.server.stop_api_server()
    writing = asyncio.create_task(store.create(deployment()))
    await asyncio.sleep(0.2)
    assert not writing.done()
    cluster.server.start_api_server()
    assert (await writing).metadata.name == "chat"
    assert len(await store.list(KIND)) == 1


async def test_in_an_outage_reads_go_on_and_writes_are_refused(
    cluster: Cluster, open_one: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_one()
    store._api._outage_seconds = 0.3
    made = await store.create(deployment())
    cluster.server.stop_api_server()
    assert await store.get(KIND, made.metadata.uid) == made
    assert await store.list(KIND) == [made]
    with pytest.raises(StoreUnreachable) as refused:
        await store.update(with_replicas(made, 2))
    assert refused.value.hint is not None
    cluster.server.start_api_server()
    store._api._outage_seconds = client.OUTAGE_SECONDS
    assert (await store.update(with_replicas(made, 2))).spec.replicas == 2


async def test_a_paused_etcd_delays_a_write_and_loses_nothing(
    cluster: Cluster, open_one: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt is given up without an answer, and may have been carried out."""
    monkeypatch.setattr(client, "ATTEMPT_SECONDS", 0.3)
    store = await open_one()
    cluster.server.pause_etcd()
    writing = asyncio.create_task(store.create(deployment()))
    await asyncio.sleep(1.0)
    assert not writing.done()
    cluster.server.resume_etcd()
    made = await writing
    assert await store.list(KIND) == [made]


async def test_an_expired_watch_begins_anew_and_tells_the_differences(
    cluster: Cluster, open_one: OpenStore
) -> None:
    writer = await open_one()
    for name in ("stays", "changes", "goes"):
        await writer.create(deployment(name))
    api = await KubernetesApi.connect(kubeconfig_of("controller", cluster))
    cache = Cache(KIND)
    follower = _follower(api, cache)
    await follower.list_all()
    changes = cache.subscribe()
    changing = await writer.get_by_name(KIND, "changes")
    await writer.update(with_replicas(changing, 7))
    await writer.delete(KIND, (await writer.get_by_name(KIND, "goes")).metadata.uid)
    await writer.create(deployment("comes"))
    # What the server remembers for watches does not survive its restart: the next one is told 410.
    cluster.server.restart()
    assert await _refusal_of(follower) == 410
    following = asyncio.create_task(follower.run())
    seen = [await asyncio.wait_for(anext(changes), 60) for _ in range(3)]
    assert {(c.type, c.object.metadata.name) for c in seen} == {
        (ChangeType.DELETED, "goes"),
        (ChangeType.MODIFIED, "changes"),
        (ChangeType.ADDED, "comes"),
    }
    await writer.create(deployment("later"))
    assert (await asyncio.wait_for(anext(changes), 60)).object.metadata.name == "later"
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await api.close()


async def test_long_lists_are_read_page_by_page(
    cluster: Cluster, open_one: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("exo_inference.kubernetes_api.follower.PAGE_OBJECTS", 2)
    first = await open_one()
    for number in range(5):
        await first.create(deployment(f"d{number}"))
    again = await open_one()
    assert await again.list(KIND) == await first.list(KIND)
    assert len(await again.list(KIND)) == 5


async def test_one_controller_reads_at_once_what_another_wrote(open_one: OpenStore) -> None:
    mine, other = await open_one(), await open_one()
    made = await mine.create(deployment("one"))
    assert await other.get(KIND, made.metadata.uid) == made
    await mine.create(deployment("two"))
    assert (await other.get_by_name(KIND, "two")).metadata.name == "two"


async def test_of_two_controllers_only_one_gives_a_name(open_one: OpenStore) -> None:
    stores = [await open_one(), await open_one()]
    results = await asyncio.gather(
        *(store.create(deployment()) for store in stores), return_exceptions=True
    )
    assert sorted(type(result).__name__ for result in results) == [
        "InferenceDeployment",
        "NameTaken",
    ]
    with pytest.raises(NameTaken):
        await stores[0].create(deployment())


async def test_a_controller_that_lags_behind_cannot_overwrite(open_one: OpenStore) -> None:
    mine, other = await open_one(), await open_one()
    made = await mine.create(deployment())
    stale = await other.get(KIND, made.metadata.uid)
    for task in other._tasks:
        task.cancel()
    await mine.update(with_replicas(made, 4))
    with pytest.raises(VersionConflict):
        await other.update(with_replicas(stale, 9))
    assert (await other.get(KIND, made.metadata.uid)).spec.replicas == 4
    with pytest.raises(VersionConflict):
        await other.update_status(with_status(stale, 1))


async def test_two_controllers_that_change_one_object_lose_nothing(open_one: OpenStore) -> None:
    stores = [await open_one(), await open_one()]
    uid = (await stores[0].create(deployment())).metadata.uid

    async def add_one(store: KubernetesStore) -> None:
        while True:
            present = await store.get(KIND, uid)
            try:
                await store.update(with_replicas(present, present.spec.replicas + 1))
            except VersionConflict:
                continue
            return

    await asyncio.gather(*(add_one(store) for store in stores * 10))
    raw = await stores[0]._look_up(stores[0]._cache(KIND), "chat")
    assert raw is not None
    assert (raw["spec"]["replicas"], raw["metadata"]["generation"]) == (21, 21)


async def test_what_the_cluster_refuses_is_said_and_leaves_nothing(open_one: OpenStore) -> None:
    store = await open_one()
    with pytest.raises(ObjectRefused, match="replicas"):
        await store.create(with_replicas(deployment(), 101))
    model = InferenceModel(
        metadata=ObjectMeta(name=model_object_name("org/m1")), spec=ModelSpec(source="org/m1")
    )
    made = await store.create(model)
    spec = made.spec.model_copy(update={"revision": "v2"})
    with pytest.raises(ObjectRefused, match="revision cannot be changed; create another"):
        await store.update(made.model_copy(update={"spec": spec}))
    assert (await store.get(InferenceModel, made.metadata.uid)).spec.revision is None


class Served(KubernetesApi):
    """A cluster that serves other versions of our kinds, or none."""

    versions: tuple[str, ...] = ()

    async def get(self, path: str, query: object = None) -> dict[str, object]:
        if path.endswith("inference.exo.dev") and self.versions:
            return {"versions": [{"groupVersion": version} for version in self.versions]}
        raise ApiRefusal("not found", status_code=404, reason="NotFound")


@pytest.mark.parametrize(
    ("versions", "error", "text"),
    [
        pytest.param((), StoreDamaged, "the cluster has no inference.exo.dev/v1alpha1", id="none"),
        pytest.param(
            ("inference.exo.dev/v2",),
            StoreTooNew,
            "the cluster has inference.exo.dev/v2; this program knows inference.exo.dev/v1alpha1",
            id="newer",
        ),
    ],
)
async def test_a_cluster_without_our_kinds_is_said_to_be_one(
    tmp_path: Path, versions: tuple[str, ...], error: type[Exception], text: str
) -> None:
    api = await Served.connect(_kubeconfig(tmp_path))
    assert isinstance(api, Served)
    api.versions = versions
    with pytest.raises(error, match=text):
        await KubernetesStore.open(api)


async def test_a_watch_that_is_silent_for_too_long_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that a firewall forgot looks open for ever."""
    monkeypatch.setattr(client, "WATCH_IDLE_SECONDS", 0.1)

    async def begin_and_be_silent(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
        writer.write(b"transfer-encoding: chunked\r\n\r\n")
        await reader.read()
        writer.close()

    server = await asyncio.start_server(begin_and_be_silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    api = await KubernetesApi.connect(_kubeconfig(tmp_path, port))
    follower = _follower(api, Cache(KIND))
    with pytest.raises(StoreUnreachable, match="broke off"):
        await asyncio.wait_for(follower._follow(), 60)
    await api.close()
    server.close()
    await server.wait_closed()


async def test_nobody_at_the_address_is_said_to_be_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "OUTAGE_SECONDS", 0.2)
    api = await KubernetesApi.connect(_kubeconfig(tmp_path))
    api._outage_seconds = 0.2
    with pytest.raises(StoreUnreachable, match="did not answer GET"):
        await KubernetesStore.open(api)


@pytest.mark.parametrize("text", ["", "a: [", "{}", "contexts: 3"])
async def test_a_kubeconfig_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match="cannot read the Kubernetes credentials"):
        await KubernetesApi.connect(path)


async def test_outside_of_a_pod_credentials_must_be_named() -> None:
    with pytest.raises(ConfigurationError, match="of this pod"):
        await KubernetesApi.connect()


def _follower(api: KubernetesApi, cache: Cache) -> Follower:
    return Follower(api, object_path(api, KIND.PLURAL, group=API_VERSION), cache)


async def _refusal_of(follower: Follower) -> int:
    """Return what a watch is refused with, once the server has begun to answer."""
    while True:
        with pytest.raises(ApiRefusal) as refused:
            await follower._follow()
        if refused.value.status_code != 429:
            return refused.value.status_code


def _kubeconfig(directory: Path, port: int = 9) -> Path:
    path = directory / "kubeconfig"
    path.write_text(
        "{apiVersion: v1, kind: Config, current-context: c, users: [{name: u, user: {token: t}}],"
        f" clusters: [{{name: k, cluster: {{server: 'http://127.0.0.1:{port}'}}}}],"
        " contexts: [{name: c, context: {cluster: k, user: u}}]}"
    )
    return path
