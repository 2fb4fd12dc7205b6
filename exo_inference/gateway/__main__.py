"""`python -m exo_inference.gateway`: the gateway as a process, on one machine or in a pod.

On one machine (`--state-dir DIR`) the supervisor starts it and starts it again; in a pod
(`--platform=kubernetes`) the kubelet does, and the environment says the rest. SIGTERM lets requests in
flight end; a second one does not. Exits 78 when it cannot work as configured, after one last line on
stderr that says why.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Awaitable
from pathlib import Path

import uvloop

from exo_inference.connection_limits import (
    FEW_DESCRIPTORS,
    Share,
    raise_descriptor_limit,
    share_descriptors,
)
from exo_inference.errors import ExoError, UsageError
from exo_inference.gateway.app import Gateway
from exo_inference.gateway.held_requests import read_hold_settings
from exo_inference.gateway.tracing import open_tracing
from exo_inference.liveness import answering_probes
from exo_inference.local_settings import LocalSettings, load_settings, take_inherited_listener
from exo_inference.logs import set_up_logging
from exo_inference.state_dir import StateDir

logger = logging.getLogger("exo_inference.gateway")

_MAX_DRAIN_SECONDS = 86400


async def serve(
    state: StateDir,
    settings: LocalSettings,
    grace_seconds: float,
    listener: socket.socket | None = None,
) -> None:
    """Run on one machine until SIGTERM or SIGINT, or until background work fails.

    Raises:
        PlatformError: the port cannot be listened on.
    """
    stop = asyncio.Event()
    holding = read_hold_settings(os.environ)
    gateway = Gateway(
        state,
        on_failure=stop.set,  # the supervisor starts it again
        holding=holding,
        share=_find_share(),
        tracing=open_tracing(os.environ),
    )
    host, port = settings.gateway_host, settings.gateway_port
    async with answering_probes(state.live_socket("gateway"), listener):
        await _run(gateway, stop, gateway.start(host, port, listener=listener), grace_seconds)


async def serve_in_pod(options: argparse.Namespace) -> None:
    """Run in a pod until SIGTERM or SIGINT, or until background work fails.

    The other gateways of the pod listen on the same port; each has a metrics port of its own.

    Raises:
        ConfigurationError: the environment or the credentials are not as they should be.
    """
    # Brings the client of the Kubernetes API, which one machine does without.
    from exo_inference.gateway.cluster_tables import ClusterTables
    from exo_inference.kubernetes_api.client import KubernetesApi
    from exo_inference.kubernetes_api.pod import (
        bind_shared,
        listen_everywhere,
        read_number,
        read_pod,
    )

    pod = read_pod(os.environ, options.namespace, options.kubeconfig)
    drain = read_number(os.environ, "EXO_DRAIN_SECONDS", maximum=_MAX_DRAIN_SECONDS)
    # Outlives the container, not the pod; the processes of a pod may have the volume in common.
    state = StateDir(Path(tempfile.gettempdir()) / f"exo-gateway-{pod.metrics_port}")
    state.create()
    api = await KubernetesApi.connect(pod.kubeconfig, pod.inference_namespace)
    try:
        with listen_everywhere(pod.metrics_port) as admin, bind_shared(pod.listen_port) as own:
            stop = asyncio.Event()
            gateway = Gateway(
                state,
                make_tables=lambda on_change: ClusterTables(api, on_change),
                admin=admin,
                on_failure=stop.set,
                holding=read_hold_settings(os.environ),
                share=_find_share(),
                tracing=open_tracing(os.environ),
            )
            await _run(gateway, stop, gateway.start_when_ready(own, stop), drain)
    finally:
        await api.close()


def _find_share() -> Share:
    """Return what the limit of open files allows at once; warn where that is little."""
    descriptors = raise_descriptor_limit()
    share = share_descriptors(descriptors)
    if descriptors < FEW_DESCRIPTORS:
        logger.warning(
            "only %d files may be open (`ulimit -Hn`): more than %d requests at once are refused (429), and "
            "more than %d connections wait",
            descriptors,
            share.exchanges,
            share.connections,
        )
    return share


async def _run(
    gateway: Gateway,
    stop: asyncio.Event,
    start: Awaitable[object],
    grace_seconds: float,
) -> None:
    hurry = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            hurry.set()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    try:
        await start
        await stop.wait()
    finally:
        await gateway.stop(grace_seconds=grace_seconds, hurry=hurry)


def main(argv: list[str] | None = None) -> int:
    """Parse the command line and run. Returns the exit status."""
    options = _parse(argv)
    set_up_logging()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            if options.platform == "kubernetes":
                runner.run(serve_in_pod(options))
                return 0
            state = StateDir(options.state_dir)
            settings = load_settings(state)
            if settings is None:
                raise UsageError(f"{state.settings_file} does not exist; `up` writes it")
            os.chdir(state.root)  # the paths of sockets are relative, to stay short
            runner.run(serve(state, settings, options.grace_seconds, take_inherited_listener()))
    except (ExoError, OSError) as exc:
        text = exc.text if isinstance(exc, ExoError) else str(exc)
        print(f"exo-gateway: error: {text}", file=sys.stderr)
        return os.EX_CONFIG
    return 0


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="exo-gateway", description=__doc__)
    parser.add_argument("--platform", choices=("local", "kubernetes"), default="local")
    local = parser.add_argument_group("on one machine")
    local.add_argument("--state-dir", type=Path)
    local.add_argument("--grace-seconds", type=float, default=30.0)
    pod = parser.add_argument_group("in a pod")
    pod.add_argument("--namespace", help="of the inference objects; the pod's own if not given")
    pod.add_argument("--kubeconfig", type=Path, help="instead of the pod's service account")
    options = parser.parse_args(argv)
    if options.platform == "local" and options.state_dir is None:
        parser.error("--state-dir is missing")
    return options


if __name__ == "__main__":
    sys.exit(main())
