"""Under which address this client reaches the API: one of our own, never what the request claims.

The list of zones is open to all and may be cached, and clients send their next requests, signed, to the
address in it. So the Host header chooses among addresses that are known, and names none. Pure;
`routes/platform.py` calls it.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Sequence
from urllib.parse import urlsplit

_HOST = re.compile(
    r"(?P<name>[A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:(?P<port>[0-9]{1,5}))?"
)
_DEFAULT_PORTS = {"http": "80", "https": "443"}


def find_endpoint(
    hosts: Sequence[str], own: Sequence[str], listening: Collection[int], *, is_https: bool
) -> str | None:
    """Return the endpoint that a client used, if it is one of ours.

    Args:
        hosts: what the request says its host is, the most outer one first.
        own: base URLs of the API, without their path.
        listening: the ports that this process listens on.
        is_https: a proxy says that it was reached by HTTPS; that is believed of our own names.
    """
    ports = {str(port) for port in listening} | {_port_of(base) for base in own}
    for host in hosts:
        found = _HOST.fullmatch(host)
        if found is None:
            continue
        name, port = found["name"].lower(), found["port"]
        # This very machine; in a pod, the address of the Service, which the pod does not know.
        if is_loopback(name) or (own and _is_private(name)):
            if (port or _DEFAULT_PORTS["http"]) in ports:
                return f"http://{name}{f':{port}' if port else ''}/v2"
            continue
        for base in own:
            if _is_same(base, name, port, is_https=is_https):
                scheme = "https" if is_https else urlsplit(base).scheme
                return f"{scheme}://{name}{f':{port}' if port else ''}/v2"
    return None


def endpoint_of(address: str, port: int) -> str:
    """Return the endpoint at an address of this machine."""
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{port}/v2"


def is_loopback(name: str) -> bool:
    """Whether a host's name means the machine of who uses it."""
    address = _parse(name)
    return name == "localhost" or (address is not None and address.is_loopback)


def _is_private(name: str) -> bool:
    address = _parse(name)
    return address is not None and address.is_private


def _parse(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return None


def _port_of(base: str) -> str:
    known = urlsplit(base)
    return str(known.port or _DEFAULT_PORTS[known.scheme])


def _is_same(base: str, name: str, port: str | None, *, is_https: bool) -> bool:
    known = urlsplit(base)
    scheme = "https" if is_https and known.port is None else known.scheme
    known_port = str(known.port or _DEFAULT_PORTS[scheme])
    return known.hostname == name.strip("[]") and known_port == (port or _DEFAULT_PORTS[scheme])
