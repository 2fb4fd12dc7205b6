"""The one controller of a machine: store, reconciler and HTTP server, put together and taken apart.

`__main__.py` calls `serve` with the real platform and model sources; the tests call it with named
fakes. Stopping leaves engines running: they belong to the platform, not to this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import socket
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator

from exo_inference.connection_limits import BACKLOG
from exo_inference.controller.admission.architectures import Architectures, FetchArchitecture
from exo_inference.controller.admission.model import FindSource
from exo_inference.controller.context import Context
from exo_inference.controller.gateway_client import SocketGatewayClient
from exo_inference.controller.http.app import create_app
from exo_inference.controller.http.auth import CredentialFile
from exo_inference.controller.http.server import Running, run_server
from exo_inference.controller.local.routing_table import RoutingTable
from exo_inference.controller.reconcile.reconciler import Reconciler
from exo_inference.controller.secret_box import open_secret_box
from exo_inference.controller.settings import ControllerSettings
from exo_inference.controller.stores.sqlite import SqliteStore
from exo_inference.controller.user_gpus import FILE_NAME, read_user_gpus
from exo_inference.errors import ConfigurationError
from exo_inference.hub.architecture import fetch_architecture
from exo_inference.liveness import answering_probes
from exo_inference.platforms.base import Platform
from exo_inference.state_dir import StateDir

logger = logging.getLogger(__name__)

LOCK_SECONDS = 5.0
"""How long to wait for a controller that is just ending."""


@contextlib.asynccontextmanager
async def open_context(
    settings: ControllerSettings,
    *,
    platform: Platform,
    find_source: FindSource,
    fetch: FetchArchitecture = fetch_architecture,
) -> AsyncIterator[Context]:
    """Open the store and put together what the routes and the reconciler need.

    Raises:
        StoreError: the database cannot be used.
        ConfigurationError: the key file does not fit the database, or gpus.toml is wrong.
    """
    state = settings.state
    user_gpus = await asyncio.to_thread(read_user_gpus, state.root / FILE_NAME)
    # The key is made after the database: where it is, there has been one.
    in_use = await asyncio.to_thread(state.secret_key_file.exists)
    store = await SqliteStore.open(state.database_file, in_use=in_use)
    try:
        yield Context(
            settings=settings,
            store=store,
            platform=platform,
            find_source=find_source,
            secret_box=await open_secret_box(state.secret_key_file, store),
            routing=RoutingTable(
                state.routes_file,
                SocketGatewayClient(state.gateway_socket),
                timeout_seconds=settings.gateway_timeout_seconds,
            ),
            org_uuid=await store.ensure_fact("org-uuid", str(uuid.uuid4())),
            architectures=Architectures(fetch),
            user_gpus=user_gpus,
        )
    finally:
        await store.close()


async def serve(
    settings: ControllerSettings,
    *,
    platform: Platform,
    find_source: FindSource,
    fetch: FetchArchitecture = fetch_architecture,
    started: Callable[[Running], None] = lambda running: None,
    listener: socket.socket | None = None,
) -> None:
    """Run until SIGTERM or SIGINT.

    Args:
        settings: of this process.
        platform: where replicas run.
        find_source: where models come from.
        fetch: asks the Hub what a model is, without fetching it.
        started: called once requests are answered.
        listener: a socket that listens at the address already, inherited from the supervisor.

    Raises:
        ConfigurationError: the port is taken, or another controller has the state directory.
        StoreError: the database cannot be used.
    """
    settings.state.create()
    with lock_state_dir(settings.state), listener or _listen(settings) as listening:
        async with (
            answering_probes(settings.state.live_socket("controller"), listening),
            open_context(
                settings,
                platform=platform,
                find_source=find_source,
                fetch=fetch,
            ) as context,
        ):
            credentials = CredentialFile(settings.state)
            app = create_app(
                context, credentials.find_secret, refusals_file=settings.state.refusals_file
            )
            work = Reconciler(context).run()
            await run_server(app, context.stopping, work, listening, started)


@contextlib.contextmanager
def lock_state_dir(state: StateDir, *, timeout_seconds: float = LOCK_SECONDS) -> Iterator[None]:
    """Hold the state directory: two controllers on one database would undo each other's work.

    Raises:
        ConfigurationError: another controller has it.
    """
    descriptor = os.open(state.run_dir / "controller.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _wait_for_lock(descriptor, state, timeout_seconds)
        yield
    finally:
        os.close(descriptor)


def _wait_for_lock(descriptor: int, state: StateDir, timeout_seconds: float) -> None:
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as exc:
            if time.monotonic() >= deadline:
                raise ConfigurationError(
                    f"another controller runs on {state.root}",
                    hint="Stop it with `exo dedicated-inference down`, or use another state directory.",
                ) from exc
        time.sleep(0.05)


def _listen(settings: ControllerSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # asyncio switches Nagle's algorithm off only where the protocol is named; with it on, the body of
    # every answer waits 40 ms for the acknowledgement of its head.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen(BACKLOG)
    except OSError as exc:
        listener.close()
        raise ConfigurationError(
            f"cannot listen on {settings.host}:{settings.port}: {exc.strerror or exc}",
            hint="Stop what listens there, or start with another --port.",
        ) from exc
    return listener
