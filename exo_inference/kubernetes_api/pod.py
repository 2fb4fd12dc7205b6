"""What the chart tells a pod of the control plane through its environment, and where the pod listens.

Controller and gateway read it at their start. Names and meanings of the variables are in
docs/reference/configuration.md.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from exo_inference.connection_limits import BACKLOG
from exo_inference.errors import ConfigurationError

_HINT = "The chart exo-inference sets it; outside of the chart, set it yourself."


@dataclass(frozen=True, slots=True)
class PodSettings:
    """What controller and gateway are both told.

    Attributes:
        name: of the pod; tells it from the others.
        namespace: of the pod.
        inference_namespace: of models, deployments, keys and engines.
        listen_port, metrics_port: where it answers; 0 is any free port, which only tests use.
        kubeconfig: None in a pod, which has a service account.
    """

    name: str
    namespace: str
    inference_namespace: str
    listen_port: int
    metrics_port: int
    kubeconfig: Path | None = None


def read_pod(
    environment: Mapping[str, str], inference_namespace: str | None, kubeconfig: Path | None = None
) -> PodSettings:
    """Read what the chart says to both programs.

    Args:
        environment: of the process.
        inference_namespace: from the command line; None is the pod's own.
        kubeconfig: from the command line.

    Raises:
        ConfigurationError: a variable is missing or makes no sense.
    """
    namespace = read_text(environment, "EXO_POD_NAMESPACE")
    return PodSettings(
        name=read_text(environment, "EXO_POD_NAME"),
        namespace=namespace,
        inference_namespace=inference_namespace or namespace,
        listen_port=_read_port(environment, "EXO_LISTEN_PORT"),
        metrics_port=_read_port(environment, "EXO_METRICS_PORT"),
        kubeconfig=kubeconfig,
    )


def read_text(environment: Mapping[str, str], name: str) -> str:
    """Return a variable that must be set.

    Raises:
        ConfigurationError: it is not.
    """
    value = environment.get(name, "").strip()
    if not value:
        raise ConfigurationError(f"the environment variable {name} is not set", hint=_HINT)
    return value


def read_number(environment: Mapping[str, str], name: str, *, maximum: int) -> int:
    """Return a variable that is a whole number from 0 on.

    Raises:
        ConfigurationError: it is not set, or no such number.
    """
    text = read_text(environment, name)
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and int(text) <= maximum):
        raise ConfigurationError(
            f"{name} is {text[:64]!r}, expected a whole number from 0 to {maximum}", hint=_HINT
        )
    return int(text)


def listen_everywhere(port: int) -> socket.socket:
    """Listen on all addresses of the pod, of both families where it has both.

    Raises:
        ConfigurationError: the port is taken.
    """
    return _open_everywhere(port, _listen)


def bind_shared(port: int) -> socket.socket:
    """Bind all addresses of the pod to a port that other processes of the pod share, and not listen yet.

    The kernel gives each connection to one of those that listen. When one ends, however it ends, new
    connections go to the others from then on (SO_REUSEPORT, socket(7)).

    Raises:
        ConfigurationError: the port is taken by a process that does not share it.
    """
    return _open_everywhere(port, _bind_shared)


def _open_everywhere(
    port: int, open_: Callable[[int, socket.AddressFamily], socket.socket]
) -> socket.socket:
    try:
        if socket.has_dualstack_ipv6():
            try:
                return open_(port, socket.AF_INET6)
            except OSError:  # switched off for this network alone
                pass
        return open_(port, socket.AF_INET)
    except OSError as exc:
        raise ConfigurationError(
            f"cannot listen on port {port}: {exc.strerror or exc}",
            hint="Set EXO_LISTEN_PORT and EXO_METRICS_PORT to ports that are free.",
        ) from exc


def _listen(port: int, family: socket.AddressFamily) -> socket.socket:
    listener = _bind(port, family, socket.SO_REUSEADDR)
    try:
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _bind_shared(port: int, family: socket.AddressFamily) -> socket.socket:
    return _bind(port, family, socket.SO_REUSEADDR, socket.SO_REUSEPORT)


def _bind(port: int, family: socket.AddressFamily, *options: int) -> socket.socket:
    # asyncio switches Nagle's algorithm off only where the protocol is named; with it on, the body
    # of every answer waits 40 ms for the acknowledgement of its head.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        for option in options:
            listener.setsockopt(socket.SOL_SOCKET, option, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(("", port))
    except OSError:
        listener.close()
        raise
    return listener


def _read_port(environment: Mapping[str, str], name: str) -> int:
    return read_number(environment, name, maximum=65535)
