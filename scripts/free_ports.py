"""Ports for servers that are started as processes: they have to be told one before they listen."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack

_BELOW_OUTGOING = range(20_000, 32_000)
"""The kernel gives connections and listeners that ask for any port one from 32768 on, so no other
program takes a port of these between this look and the server's start, unless it chose that very one."""


def free_port() -> int:
    """Return a port of 127.0.0.1 on which nobody listens."""
    return free_ports(1)[0]


def free_ports(number: int) -> list[int]:
    """Return so many different ports of 127.0.0.1 on which nobody listens."""
    choose = random.SystemRandom().choice  # other processes draw from the same seed
    ports: list[int] = []
    with ExitStack() as held:
        while len(ports) < number:
            probe, port = held.enter_context(socket.socket()), choose(_BELOW_OUTGOING)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            ports.append(port)
    return ports
