"""What all controllers of a cluster share in Secrets: the API's signing key, and the key of the secrets.

Both are made by the controller that comes first and are read by all others. `server.py` opens them.
The Secret with the signing key is named by the chart and may be the administrator's own.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import os
import secrets
from collections.abc import Callable, Mapping

from exo_inference.controller.secret_box import Facts, SecretBox, fits_store
from exo_inference.errors import ConfigurationError, StoreError
from exo_inference.kubernetes_api.client import ApiRefusal, KubernetesApi, get_if_there, object_path

logger = logging.getLogger(__name__)

BOX_SECRET = "exo-inference-secret-key"  # noqa: S105 -- the name of a Secret, not its value
"""Secret with the key that inference keys and Hub tokens are encrypted with."""

REFRESH_SECONDS = 15.0
"""How soon a changed signing key counts."""

_BOX_FIELD = "secret.key"
_KEY_FIELD, _SECRET_FIELD = "api-key", "api-secret"  # the chart's words
_LABELS = {
    "app.kubernetes.io/name": "exo-inference",
    "app.kubernetes.io/part-of": "exo-inference",
    "app.kubernetes.io/managed-by": "exo-inference",
}


async def open_shared_box(api: KubernetesApi, store: Facts) -> SecretBox:
    """Read the key of the secrets, or make it for a store that has none yet.

    Raises:
        ConfigurationError: the key is not the one that the store's secrets were made with.
        StoreError: the API does not answer, or refuses.
    """
    data, created = await _ensure(api, BOX_SECRET, lambda: {_BOX_FIELD: os.urandom(32)})
    key = data.get(_BOX_FIELD, b"")
    place = f"the Secret {BOX_SECRET} of namespace {api.namespace}"
    if len(key) != 32:
        raise ConfigurationError(
            f"{place} holds {len(key)} bytes in {_BOX_FIELD}, expected 32",
            hint="Put the original one back.",
        )
    box = SecretBox(key)
    if await fits_store(box, store):
        return box
    if created:
        await api.delete(object_path(api, "secrets", BOX_SECRET))
    raise ConfigurationError(
        f"{place} is {'missing' if created else 'not the one that the keys were made with'}, and "
        "without it the deployments' API keys and the Hub tokens cannot be read",
        hint="Restore it from your backup together with the inference objects.",
    )


class SharedCredentials:
    """The signing key that the API accepts: that of one Secret. `open` comes before all else.

    Args:
        api: of the cluster.
        name: of the Secret.
    """

    def __init__(self, api: KubernetesApi, name: str) -> None:
        self._api = api
        self._name = name
        self._accepted: dict[str, str] = {}

    async def open(self) -> None:
        """Read the Secret; make it if it is not there.

        Raises:
            ConfigurationError: it has no signing key.
            StoreError: the API does not answer, or refuses.
        """
        data, created = await _ensure(self._api, self._name, _new_credentials)
        self._accepted = _read_credentials(data)
        if created:
            logger.info("made the API's signing key, in the Secret %s", self._name)
        if not self._accepted:
            raise ConfigurationError(
                f"the Secret {self._name} of namespace {self._api.namespace} has no {_KEY_FIELD} and "
                f"{_SECRET_FIELD}",
                hint="Give it both, or delete it: a new one is made then.",
            )

    def find_secret(self, key: str) -> str | None:
        """Return the secret of a key, or None."""
        return self._accepted.get(key)

    async def refresh(self) -> None:
        """Follow changes of the Secret until cancelled; without it, nobody is let in."""
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            try:
                path = object_path(self._api, "secrets", self._name)
                found = _read_credentials(_decode(await self._api.get(path)))
            except ApiRefusal as exc:
                found = {} if exc.status_code == 404 else self._accepted
            except StoreError:  # the API is away: what counted goes on to count
                continue
            if found != self._accepted:
                logger.warning("the API's signing key is another one from now on")
                self._accepted = found


async def _ensure(
    api: KubernetesApi, name: str, make: Callable[[], Mapping[str, bytes]]
) -> tuple[dict[str, bytes], bool]:
    """Return what a Secret holds, and whether it was made just now."""
    path = object_path(api, "secrets", name)
    if (found := await get_if_there(api, path)) is not None:
        return _decode(found), False
    data = {field: base64.b64encode(value).decode() for field, value in make().items()}
    body = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "labels": _LABELS},
        "type": "Opaque",
        "data": data,
    }
    try:
        return _decode(await api.create(object_path(api, "secrets"), body)), True
    except ApiRefusal as exc:
        if exc.status_code != 409:  # another controller was first
            raise
        return _decode(await api.get(path)), False


def _decode(secret: Mapping[str, object]) -> dict[str, bytes]:
    data = secret.get("data")
    found = {}
    for field, value in data.items() if isinstance(data, dict) else ():
        try:
            found[str(field)] = base64.b64decode(str(value), validate=True)
        except (ValueError, binascii.Error):  # pragma: no cover -- the API server checks it
            continue
    return found


def _new_credentials() -> dict[str, bytes]:
    key, secret = "EXO" + secrets.token_hex(12), secrets.token_urlsafe(32)
    return {_KEY_FIELD: key.encode(), _SECRET_FIELD: secret.encode()}


def _read_credentials(data: Mapping[str, bytes]) -> dict[str, str]:
    try:
        key, secret = data[_KEY_FIELD].decode().strip(), data[_SECRET_FIELD].decode().strip()
    except (KeyError, UnicodeDecodeError):
        return {}
    return {key: secret} if key and secret else {}
