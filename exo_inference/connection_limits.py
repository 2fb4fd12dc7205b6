"""What every server of the control plane does about its sockets, whoever listens.

Called by the supervisor, the controller and the gateway. Standard library only.
"""

from __future__ import annotations

import contextlib
import resource
import socket
from asyncio.trsock import TransportSocket
from dataclasses import dataclass

BACKLOG = 1024
"""Connections that may wait to be accepted; the kernel's own limit (`net.core.somaxconn`) may be lower.

Named at every call that listens: aiohttp listens again on a socket that listens already, and says 128
where it is told nothing.
"""

ENOUGH_DESCRIPTORS = 65536
"""Containers may allow a billion, and some programs look at each one that they might have."""


STALLED_SECONDS = 60
"""How long a client may take nothing of what waits for it."""


def end_when_stalled(connection: socket.socket | TransportSocket) -> None:
    """Have the kernel end a connection whose peer takes nothing, though it is there, for a minute.

    Without this, what waits in its buffers would wait for ever, and no write would ever fail.
    """
    option = getattr(socket, "TCP_USER_TIMEOUT", None)  # Linux
    if option is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):  # it has ended already
            connection.setsockopt(socket.IPPROTO_TCP, option, STALLED_SECONDS * 1000)


def raise_descriptor_limit() -> int:
    """Let this process, and what it starts, have as many descriptors as it may; return the number.

    The usual soft limit of 1,024 is less than a gateway needs for 1,000 clients, each of which costs
    it a connection to a replica as well.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, ENOUGH_DESCRIPTORS)), hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


FEW_DESCRIPTORS = 1024
"""The usual soft limit; a hard one below it is somebody's decision, and felt with a few hundred clients."""

OWN_DESCRIPTORS = 32
"""What a server has open beside its clients: listeners, logs, the event loop, files that it reads."""


MAX_TOLD = 64
"""So many connections beyond those whose requests are passed on are taken only to be told to come again."""


@dataclass(frozen=True, slots=True)
class Share:
    """What a gateway may do at once with the descriptors that it has.

    Attributes:
        exchanges: requests that are passed on; each has a connection on either side.
        connections: of clients; more wait in the kernel's queue until one of them ends.
    """

    exchanges: int
    connections: int


MAX_CLIENTS = 2048
"""So many connections a controller takes at once; requests to it take milliseconds."""


def client_connections(descriptors: int) -> int:
    """Return how many connections of clients a controller takes at once.

    They have half of its descriptors: it reads files, asks replicas and starts processes as well.
    """
    return min(MAX_CLIENTS, max(4, (descriptors - OWN_DESCRIPTORS) // 2))


def share_descriptors(descriptors: int) -> Share:
    """Divide descriptors between clients and replicas, so that none is ever missing."""
    free = max(3, descriptors - OWN_DESCRIPTORS)
    exchanges = (free - max(1, min(MAX_TOLD, free // 8))) // 2
    return Share(exchanges, free - exchanges)
