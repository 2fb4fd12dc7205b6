"""Bearer keys: who may call which deployment. Pure; keys are known by their SHA-256 alone."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from exo_inference.gateway import errors
from exo_inference.gateway.table import Deployment, Key, Table


def bearer_token(authorization: str | None) -> str:
    """Return the key of an `Authorization` header.

    Raises:
        RequestRefused: 401, there is none.
    """
    scheme, _, token = (authorization or "").strip().partition(" ")
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
    if deployment is not None:
        key = _match(digest, (*deployment.keys, *table.public_keys))
        if key is not None:
            return deployment, key.id
    every_key = (key for d in table.by_id.values() for key in d.keys)
    if _match(digest, (*every_key, *table.public_keys)) is None:
        raise errors.unknown_key()
    if deployment is None:
        raise errors.unknown_deployment(name_or_id)
    raise errors.foreign_key(name_or_id)


def _match(digest: bytes, keys: Iterable[Key]) -> Key | None:
    """Return the first key that it is; all are compared, each in constant time, so that timing tells nothing.

    A deployment's own key comes before those that others make: one with its hash takes none of its usage.
    """
    found = None
    for key in keys:
        if hmac.compare_digest(digest, key.digest):
            found = found or key
    return found
