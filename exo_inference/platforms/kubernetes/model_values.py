"""The values that a model's release is installed with: where its files are, and Secrets with a token. Pure."""

from __future__ import annotations

import base64
import re
from typing import Any

from exo_inference.kubernetes_api.informer import Object
from exo_inference.platforms.base import (
    DesiredModel,
    TokenSecretUnusable,
)
from exo_inference.platforms.kubernetes.names import (
    SPEC_LABEL,
    label,
    model_release_name,
)
from exo_inference.platforms.kubernetes.release_values import CLAIM_PREFIX, hash_of, merged
from exo_inference.platforms.kubernetes.settings import Values
from exo_inference.resources import TokenSecretRef

_TOKEN = re.compile(r"[\x21-\x7e]{1,500}")
_OWNER_LABELS = ("app.kubernetes.io/managed-by", "app.kubernetes.io/part-of")


def model_values(desired: DesiredModel, given: Values, chart_version: str) -> dict[str, Any]:
    """Return the values of a model's release; their hash is a label of its objects."""
    own: dict[str, Any] = {
        "model": {
            "source": desired.source,
            "revision": desired.revision,
            "sizeBytes": desired.size_bytes,
            "name": desired.name,
            "uid": desired.uid,
        },
        "download": {"enabled": True},
    }
    if given.get("storage", {}).get("existingClaim"):  # one for all models, each in its directory
        own["storage"] = {"subPath": desired.uid}
    if desired.token_secret is not None:
        named = desired.token_secret
        own["download"]["token"] = {"secretName": named.name, "secretKey": named.key}
    elif desired.token is not None:
        secret = token_secret_name(desired.release or model_release_name(desired.uid))
        own["download"]["token"] = {"secretName": secret, "secretKey": "token"}
    values = merged(given, own)
    without_token = values
    if desired.token_secret is None:  # ours goes with the download; naming another one is a new try
        without_token = merged(values, {"download": {"token": {}}})
        without_token["download"].pop("token")
    spec = {"values": without_token, "chart": chart_version, "attempt": desired.attempt}
    return merged(values, {"commonLabels": {SPEC_LABEL: hash_of(spec)}})


def model_path(release: str, values: Values) -> str:
    """Return where engines find the model: `pvc:CLAIM`, or `pvc:CLAIM/DIRECTORY`."""
    storage = values.get("storage", {})
    claim = storage.get("existingClaim") or release
    directory = storage.get("subPath", "")
    return f"{CLAIM_PREFIX}{claim}/{directory}" if directory else f"{CLAIM_PREFIX}{claim}"


def token_of(
    found: Object, secret: TokenSecretRef, own_secrets: frozenset[str] = frozenset()
) -> str:
    """Return the token that a Secret holds.

    Raises:
        TokenSecretUnusable: it holds none, or is not one that a user made for this: naming it in a model
            would hand what it holds to the Hub.
    """
    kind = str(found.get("type", "Opaque"))
    is_labelled = "exo-inference" in (label(found, name) for name in _OWNER_LABELS)
    if kind != "Opaque" or is_labelled or secret.name in own_secrets:
        owner = f"of type {kind}" if kind != "Opaque" else "the control plane's own"
        raise TokenSecretUnusable(
            f"the Secret {secret.name}, which spec.tokenSecret names, is {owner}",
            hint="Name one of type Opaque that holds a token of the Hub.",
        )
    encoded = (found.get("data") or {}).get(secret.key)
    if encoded is None:
        raise TokenSecretUnusable(
            f"the Secret {secret.name} has no key {secret.key!r}, which spec.tokenSecret names",
            hint="Add the key to the Secret, or name another in spec.tokenSecret.key.",
        )
    token = base64.b64decode(encoded).decode("ascii", "replace").strip()
    if not _TOKEN.fullmatch(token):
        raise TokenSecretUnusable(
            f"key {secret.key!r} of the Secret {secret.name} holds no token: expected 1 to 500 printable "
            "ASCII characters without blanks",
            hint="Put the token alone into it.",
        )
    return token


def token_secret_name(release: str) -> str:
    """Return the name of the Secret that the token is in while a model is downloaded."""
    return f"{release}-token"
