"""The Hub's token of a model: sealed in the store where the API took it, or in its user's own Secret.

Whoever asks the Hub what a model is calls `read_hub_token`. The download's pod reads a user's Secret
by itself, so the value is in no object of ours.
"""

from __future__ import annotations

from exo_inference.controller.secret_box import TOKEN_SECRET, SecretBox
from exo_inference.controller.stores.base import Store
from exo_inference.platforms.base import ModelPlatform
from exo_inference.resources import InferenceModel


async def read_hub_token(
    store: Store, secret_box: SecretBox, models: ModelPlatform | None, model: InferenceModel
) -> str | None:
    """Return the token to ask the Hub with; None for a model that has none.

    Args:
        store: has what the API took.
        secret_box: of the store's secrets.
        models: reads Secrets on a cluster; None on one machine, where no model names one.
        model: whose token.

    Raises:
        TokenSecretUnusable: the Secret that the model names is not there, or holds no token.
        StoreError: the API was away.
    """
    named = model.spec.token_secret
    if named is not None and models is not None:
        return await models.read_token(named)
    return await _read_sealed(store, secret_box, model.metadata.uid)


async def _read_sealed(store: Store, secret_box: SecretBox, uid: str) -> str | None:
    sealed = await store.get_secret(uid, TOKEN_SECRET)
    if sealed is None:
        return None
    return secret_box.decrypt(sealed, owner=uid, name=TOKEN_SECRET)
