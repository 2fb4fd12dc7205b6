"""Bearer keys: who may call which deployment. Pure; keys are known by their SHA-256 alone.

A key is looked up by its whole digest, so one that is wrong costs the same however many there are. What the
lookup compares is a hash with a secret of this process, of a digest that nobody can steer: its timing tells nothing.
"""

from __future__ import annotations

import hashlib

from exo_inference.gateway import errors
from exo_inference.gateway.table import EVERY_DEPLOYMENT, Deployment, Table


def key_of(authorization: str | None, api_key: str | None) -> str:
    """Return the key that a client shows.

    Args:
        authorization: the header `Authorization`; where there is one, it counts.
        api_key: the header `X-Api-Key`, in which Anthropic's clients have it.

    Raises:
        RequestRefused: 401, there is none.
    """
    scheme, _, token = (authorization or f"bearer {api_key or ''}").strip().partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token:
        raise errors.missing_key()
    return token


def authorize(token: str, table: Table, name_or_id: str) -> tuple[Deployment, str]:
    """Return the deployment that a path names, and the id of the key that opens it.

    Whoever holds no valid key learns nothing about which deployments there are.

    Raises:
        RequestRefused: 401 unknown key, 404 unknown deployment, 403 key of another one.
    """
    digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
    deployment = table.find(name_or_id)
    opened = table.opened_by.get(digest)
    if opened is None:
        raise errors.unknown_key()
    if deployment is None:
        raise errors.unknown_deployment(name_or_id)
    key_id = opened.get(deployment.id, opened.get(EVERY_DEPLOYMENT))
    if key_id is None:
        raise errors.foreign_key(name_or_id)
    return deployment, key_id
