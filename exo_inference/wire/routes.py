"""The routing table: what the controller tells the gateway (file `routes.json`, additive)."""

from __future__ import annotations

from typing import Literal

from exo_inference.wire.base import Count, WireModel


class RouteReplica(WireModel):
    """One replica that may get requests.

    `address` is `unix:PATH` (relative to the state directory) or `http://HOST:PORT`.
    `models` are the names that it answers to, of its model and of adapters; None is not known.
    """

    name: str
    address: str
    models: list[str] | None = None


class RouteKey(WireModel):
    """One accepted Bearer key, by the SHA-256 of its value in hex."""

    id: str
    sha256: str


class Route(WireModel):
    """One deployment. `replicas` holds the ready ones alone.

    `draining` names those that only finish what they have. A replica that is in neither is not
    fit to answer; None is from a controller that did not say, and then nothing is known of others.
    `coming`: replicas of a deployment that served before are being started; while none is ready the
    gateway may hold requests for them.
    `model` is the one that is wanted. `coming_models`: names that replicas answer to which served before,
    do not now, and are on their way again.
    """

    deployment_id: str
    name: str
    model: str
    state: str
    state_details: str = ""
    keys: list[RouteKey]
    replicas: list[RouteReplica]
    draining: list[str] | None = None
    coming: bool = False
    coming_models: tuple[str, ...] = ()
    max_pending_per_replica: Count = 256


class RouteTable(WireModel):
    """The whole table. `version` grows with every change; the gateway reports the one it applied.

    `public_keys` open every deployment.
    """

    format: Literal[1] = 1
    version: Count
    routes: list[Route]
    public_keys: list[RouteKey]
