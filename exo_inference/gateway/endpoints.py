"""What the EndpointSlices of a deployment mean: who gets requests, who finishes, and who is doubted. Pure.

A replica that is not ready gets no requests, as long as that is the exception. When most replicas turn not
ready at once, and none of them ends, it is rather the cluster that does not know: its API server was away,
leases of nodes lapsed, probes were not run. Then those that were ready before are kept, and connections say
which of them are there. This is Envoy's panic threshold, with Envoy's default of one half
(https://www.envoyproxy.io/docs/envoy/latest/intro/arch_overview/upstream/load_balancing/panic_threshold).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from exo_inference.platforms.kubernetes.names import ENGINE_PORT
from exo_inference.wire import RouteReplica

Object = Mapping[str, Any]

PANIC_SHARE = 0.5
"""With less than this share of the known replicas ready, readiness is not believed."""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The replicas of one deployment, each in one of the three.

    Attributes:
        ready: get requests, by name.
        unready: are not ready, and do not end.
        draining: names of those that only finish what they have.
    """

    ready: Mapping[str, RouteReplica]
    unready: Mapping[str, RouteReplica]
    draining: frozenset[str]


def service_of(item: Object) -> str:
    """Return the name of the Service that a slice was made for; empty if it does not say so clearly.

    The cluster writes it twice, and copies all other labels from the Service, where anybody wrote them.
    """
    meta = item["metadata"]
    labelled = (meta.get("labels") or {}).get("kubernetes.io/service-name")
    owners = meta.get("ownerReferences") or ()
    owner = next((each.get("name") for each in owners if each.get("kind") == "Service"), None)
    return labelled if isinstance(labelled, str) and labelled == owner else ""


def sort_endpoints(slices: Iterable[Object]) -> Endpoints:
    """Return the replicas that the slices name, by their conditions.

    A replica may be in two slices while the cluster moves it from one to the other.
    """
    ready: dict[str, RouteReplica] = {}
    unready: dict[str, RouteReplica] = {}
    draining: set[str] = set()
    for item in slices:
        for endpoint in item.get("endpoints") or ():
            name = (endpoint.get("targetRef") or {}).get("name")
            addresses = endpoint.get("addresses")
            if not name or not addresses:
                continue
            conditions = endpoint.get("conditions") or {}
            replica = RouteReplica(name=name, address=_url(addresses[0], item))
            if conditions.get("terminating"):
                draining.add(name)
            elif conditions.get("ready") is not False:  # not said is ready, the API says
                ready[name] = replica
            else:
                unready[name] = replica
    left = {name: each for name, each in unready.items() if name not in ready.keys() | draining}
    return Endpoints(ready, left, frozenset(draining - ready.keys()))


def doubted_replicas(endpoints: Endpoints, known: Collection[str]) -> list[RouteReplica]:
    """Return the replicas that are not ready and get requests all the same.

    Args:
        endpoints: as they are now.
        known: names of replicas that were ready at some time; others only start.
    """
    unready = [endpoints.unready[name] for name in sorted(endpoints.unready.keys() & set(known))]
    num_ready = len(endpoints.ready)
    return unready if num_ready < PANIC_SHARE * (num_ready + len(unready)) else []


def _url(address: str, item: Object) -> str:
    ports = item.get("ports") or ()
    port = next(
        (p["port"] for p in ports if p.get("name") == "http" and p.get("port")), ENGINE_PORT
    )
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"
