"""Which models the replicas of a deployment on a cluster have, as its status and its endpoints say. Pure.

While a deployment is replaced by one with another model, replicas of both serve. Endpoints do not say which is
which; the status of the deployment does, which its controller writes. `cluster_tables.py` puts both together; on
one machine the controller writes all of it into the routing table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from exo_inference.gateway.endpoints import Endpoints
from exo_inference.resources import InferenceDeployment
from exo_inference.wire import RouteReplica

_STARTING = ("pending", "starting", "backoff")


@dataclass(frozen=True, slots=True)
class ReplicaModels:
    """What a route says of models.

    Attributes:
        wanted: the deployment's own.
        replicas: those that get requests, with the names that they answer to.
        coming: names that replicas answered to before, and will again.
        remembered: what to give to the next look.
    """

    wanted: str
    replicas: list[RouteReplica]
    coming: list[str]
    remembered: frozenset[str]


def read_models(
    resource: InferenceDeployment | None,
    endpoints: Endpoints,
    replicas: Iterable[RouteReplica],
    *,
    is_coming: bool,
    remembered: frozenset[str] = frozenset(),
) -> ReplicaModels:
    """Return which replicas answer to which names.

    Args:
        resource: the deployment; None where it cannot be read, and nothing is known.
        endpoints: of all its replicas.
        replicas: those that get requests.
        is_coming: replicas of its own model are on their way.
        remembered: names that were answered to before.
    """
    replicas = list(replicas)
    if resource is None:
        return ReplicaModels("", replicas, [], remembered)
    wanted = resource.spec.model
    # A status that names none of a replica was written when it had the deployment's own.
    models = {each.name: each.models or (wanted,) for each in resource.status.replicas}
    named = [_with_models(each, models) for each in replicas]
    answered = frozenset(name for each in named for name in each.models or ())
    staying = frozenset(
        name
        for each in resource.status.replicas
        if _stays(each.name, each.state, endpoints)
        for name in models[each.name]
    )
    known = (remembered | answered) & (answered | staying | {wanted})
    awaited = staying | {wanted} if is_coming else staying
    return ReplicaModels(wanted, named, sorted((known & awaited) - answered), known)


def _with_models(replica: RouteReplica, models: Mapping[str, tuple[str, ...]]) -> RouteReplica:
    found = models.get(replica.name)
    return replica if found is None else replica.model_copy(update={"models": list(found)})


def _stays(name: str, state: str, endpoints: Endpoints) -> bool:
    """Whether a replica serves, or will: one that was ready, and is no endpoint any more, is gone."""
    if name in endpoints.draining:
        return False
    return name in endpoints.ready or name in endpoints.unready or state in _STARTING
