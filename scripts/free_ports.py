"""Ports for servers that tests start as processes: they have to be told one before they listen."""

from __future__ import annotations

import random
import socket

_BELOW_OUTGOING = range(20_000, 32_000)
"""The kernel gives connections and listeners that ask for any port one from 32768 on, so none of the
other tests, which run beside, takes a port of these between this look and the server's start."""


def free_port() -> int:
    """Return a port of 127.0.0.1 on which nobody listens."""
    choose = random.SystemRandom().choice  # other processes draw from the same seed
    while True:
        port = choose(_BELOW_OUTGOING)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
