"""One of several controllers on a cluster: store, leader election and HTTP server put together.

`__main__.py` calls `serve_on_cluster` in a pod; the tests call it with named fakes. Every controller
answers the API, the one that has the Lease reconciles. Losing the Lease ends a term, not the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace

from exo_inference.controller.admission.architectures import Architectures, FetchArchitecture
from exo_inference.controller.admission.model import FindSource
from exo_inference.controller.cluster.leader import LeaderElection
from exo_inference.controller.cluster.probes import ControllerMetrics, serve_probes
from exo_inference.controller.cluster.recorded_starts import ClusterStarts
from exo_inference.controller.cluster.refused_signatures import SharedRefusals
from exo_inference.controller.cluster.routing import ClusterRouting
from exo_inference.controller.cluster.shared_secrets import SharedCredentials, open_shared_box
from exo_inference.controller.context import Context
from exo_inference.controller.http.app import create_app
from exo_inference.controller.http.server import Running, run_server
from exo_inference.controller.reconcile.reconciler import Reconciler
from exo_inference.controller.settings import ClusterSettings, ControllerSettings
from exo_inference.controller.stores.kubernetes import KubernetesStore
from exo_inference.controller.stores.kubernetes.records import Records
from exo_inference.controller.user_gpus import read_user_gpus
from exo_inference.hub.architecture import fetch_architecture
from exo_inference.kubernetes_api.client import KubernetesApi
from exo_inference.kubernetes_api.pod import listen_everywhere
from exo_inference.platforms.base import ModelPlatform, Platform
from exo_inference.platforms.kubernetes import (
    Cluster,
    KubernetesModels,
    KubernetesPlatform,
    KubernetesSettings,
    read_platform_values,
)
from exo_inference.platforms.kubernetes.release_values import merged

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Platforms:
    """Where engines and models' files are.

    Attributes:
        stop_work: ends what this process is doing there; called at the end of a term.
        watch_capacity: given what to call when there is more or less room for replicas.
        begin_while: given what says whether this process leads; without that it begins nothing there.
    """

    engines: Platform
    models: ModelPlatform
    stop_work: Callable[[], Awaitable[None]]
    watch_capacity: Callable[[Callable[[], None]], None] = lambda tell: None
    begin_while: Callable[[Callable[[], bool]], None] = lambda is_leading: None


OpenPlatforms = Callable[
    [KubernetesApi, ClusterSettings, Callable[[str], None]], AbstractAsyncContextManager[Platforms]
]
"""Opens the platforms, given what to call with the uid of what changed there."""


class _Leadership:
    """The terms of this controller: each has a reconciler of its own."""

    def __init__(self) -> None:
        self._reconciler: Reconciler | None = None
        self.metrics = ControllerMetrics(
            lambda: self._reconciler is not None,
            lambda: 0 if self._reconciler is None else self._reconciler.num_waiting,
        )

    def wake(self, uid: str) -> None:
        """Have an object looked at, if it is ours to look after."""
        if self._reconciler is not None:
            self._reconciler.wake(uid)

    def wake_held(self) -> None:
        """Have all deployments looked at that were refused or could not be placed."""
        if self._reconciler is not None:
            self._reconciler.wake_held()

    async def lead(self, context: Context, platforms: Platforms) -> None:
        """Reconcile until cancelled."""
        self._reconciler = Reconciler(context, self.metrics.observe)
        try:
            await self._reconciler.run()
        finally:
            self._reconciler = None
            await platforms.stop_work()


async def serve_on_cluster(
    settings: ControllerSettings,
    *,
    find_source: FindSource,
    open_platforms: OpenPlatforms | None = None,
    fetch: FetchArchitecture = fetch_architecture,
    started: Callable[[Running], None] = lambda running: None,
) -> None:
    """Run until SIGTERM or SIGINT.

    Args:
        settings: of this process; they have a cluster.
        find_source: where models come from.
        open_platforms: where replicas run; None is this cluster, by Helm releases.
        fetch: asks the Hub what a model is, without fetching it.
        started: called once requests are answered.

    Raises:
        ConfigurationError: a port is taken, or what the chart made is not as it should be.
        StoreError: the cluster's API does not answer, or lacks our kinds.
    """
    cluster = settings.cluster
    assert cluster is not None, "callers look first"
    pod = cluster.pod
    leadership = _Leadership()
    opening = open_platforms or open_kubernetes_platforms
    # Sockets before all else: a port that is taken ends the process before it has touched the cluster.
    with listen_everywhere(pod.metrics_port) as probes, listen_everywhere(pod.listen_port) as own:
        async with contextlib.AsyncExitStack() as stack:
            api = await KubernetesApi.connect(pod.kubeconfig, pod.inference_namespace)
            stack.push_async_callback(api.close)
            # The store seals ids with a key of the box, and all controllers must have the same one.
            secret_box = await open_shared_box(api, Records(api))
            store = await KubernetesStore.open(api, seal=secret_box.uid_seal)
            stack.push_async_callback(store.close)
            platforms = await stack.enter_async_context(opening(api, cluster, leadership.wake))
            # More room may be what a deployment waits for; whoever does not lead has nothing to wake.
            platforms.watch_capacity(leadership.wake_held)
            credentials = SharedCredentials(api, cluster.credentials_secret)
            await credentials.open()
            context = Context(
                settings=settings,
                store=store,
                platform=platforms.engines,
                models=platforms.models,
                cluster_starts=ClusterStarts(api),
                find_source=find_source,
                secret_box=secret_box,
                routing=ClusterRouting(),
                org_uuid=await store.ensure_fact("org-uuid", str(uuid.uuid4())),
                architectures=Architectures(fetch),
                user_gpus=await asyncio.to_thread(read_user_gpus, cluster.gpus_file),
            )
            # A container that starts again in its pod is another candidate than the one that died.
            identity = f"{pod.name}_{uuid.uuid4().hex[:8]}"
            election = LeaderElection(api.impatient(), cluster.lease, identity, cluster.lease_times)
            # A step that lost its lease in between must not write: another controller may be at it.
            platforms.begin_while(lambda: election.is_leading)

            # Every controller answers and so needs fresh credentials; only the elected one reconciles.
            async def work() -> None:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(credentials.refresh(), name="credentials")
                    lead = election.run(lambda: leadership.lead(context, platforms))
                    tasks.create_task(lead, name="leader-election")

            is_serving = asyncio.Event()

            def note_started(running: Running) -> None:
                is_serving.set()
                started(running)

            def is_ready() -> bool:
                return is_serving.is_set() and not context.stopping.is_set()

            await stack.enter_async_context(serve_probes(probes, leadership.metrics, is_ready))
            refusals = SharedRefusals(store.add_refusal)
            app = create_app(context, credentials.find_secret, share_refusal=refusals.add)
            await run_server(app, context.stopping, work(), own, note_started)


@contextlib.asynccontextmanager
async def open_kubernetes_platforms(
    api: KubernetesApi, settings: ClusterSettings, wake: Callable[[str], None]
) -> AsyncIterator[Platforms]:
    """Follow the cluster and manage its releases with Helm, until the block ends.

    Raises:
        ConfigurationError: the platform's values cannot be read, or a chart or Helm is not there.
        StoreError: the cluster cannot be read.
    """
    values = await asyncio.to_thread(read_platform_values, settings.platform_file)
    gateways = {"networkPolicy": {"gatewayNamespace": settings.gateway_namespace}}
    cluster = Cluster(
        api,
        KubernetesSettings(
            charts_dir=settings.charts_dir,
            work_dir=settings.work_dir,
            kubeconfig=settings.pod.kubeconfig,
            values=replace(values, deployment=merged(gateways, values.deployment)),
            own_secrets=frozenset({settings.credentials_secret}),
        ),
        wake,
    )
    try:
        await cluster.start()
        models = KubernetesModels(cluster)
        yield Platforms(
            KubernetesPlatform(cluster),
            models,
            cluster.stop_work,
            cluster.watch_capacity,
            cluster.begin_while,
        )
    finally:
        await cluster.close()
