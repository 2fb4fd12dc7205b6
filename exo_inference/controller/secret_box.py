"""Encryption of what must be readable again: deployment keys and Hub tokens, under `secret.key`.

AES-256-GCM; each value is bound to its owner and name, so that a row moved in the database does
not decrypt. Also makes Bearer keys and their hashes, and seals what was admitted. Called by routes and reconciler.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import os
import secrets
from pathlib import Path
from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from exo_inference.errors import ConfigurationError
from exo_inference.state_dir import read_file, write_atomically

KEY_SECRET = "api-key"  # noqa: S105 -- the name of a secret, not its value
"""Name of a deployment's own inference key."""

TOKEN_SECRET = "huggingface-token"  # noqa: S105 -- the name of a secret, not its value
"""Name of a model's Hub token."""

_FACT = "secret-key-check"
_NONCE_BYTES = 12


class Facts(Protocol):
    """What is written down once; see `RecordStore`."""

    async def ensure_fact(self, name: str, value: str) -> str:
        """Return the stored fact of this name; store `value` if there is none yet."""
        ...


class SecretBox:
    """Encrypts and decrypts with one key. Build it with `open_secret_box`."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._cipher = AESGCM(key)

    @property
    def fingerprint(self) -> str:
        """What tells one key from another, without saying anything about it."""
        return self._derive(b"fingerprint").hex()

    def encrypt(self, text: str, *, owner: str, name: str) -> bytes:
        """Encrypt one secret of an object."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, text.encode(), _context(owner, name))

    def decrypt(self, value: bytes, *, owner: str, name: str) -> str:
        """Decrypt what `encrypt` returned for the same object and name.

        Raises:
            ConfigurationError: the value was encrypted with another key, or was changed.
        """
        nonce, sealed = value[:_NONCE_BYTES], value[_NONCE_BYTES:]
        try:
            return self._cipher.decrypt(nonce, sealed, _context(owner, name)).decode()
        except InvalidTag as exc:
            raise ConfigurationError(
                f"cannot decrypt the {name} of {owner}: secret.key is not the one it was made with",
                hint="Put the original secret.key back, or delete and create the object again.",
            ) from exc

    def repeatable_api_key(self, result: str) -> str:
        """Return the key value of what one idempotent request made: a repeat gets it again."""
        return _format_key(self._derive(b"api-key:" + result.encode()))

    def admission_seal(self, owner: str, digest: str) -> str:
        """Return what shows that a controller with this key admitted a specification of an object."""
        return self._derive(f"admitted:{owner}/{digest}".encode()).hex()

    def uid_seal(self, what: str, uid: str) -> str:
        """Return what shows that a controller with this key took an object over under a uid."""
        return self._derive(f"uid:{what}/{uid}".encode()).hex()

    def _derive(self, purpose: bytes) -> bytes:
        return hmac.new(self._key, b"exo-inference:" + purpose, hashlib.sha256).digest()


async def open_secret_box(path: Path, store: Facts) -> SecretBox:
    """Read the key file, or make it (mode 0600) for a store that has none yet.

    Raises:
        ConfigurationError: the file is missing, unreadable, or not the one of this store.
    """
    key, created = await asyncio.to_thread(_read_or_make_key, path)
    box = SecretBox(key)
    if await fits_store(box, store):
        return box
    if created:
        await asyncio.to_thread(path.unlink)
    raise ConfigurationError(
        f"{path} is {'missing' if created else 'not the key that controller.db was made with'}, and "
        "without it the deployments' API keys and the Hub tokens in controller.db cannot be read",
        hint="Put the original secret.key back beside controller.db, or delete all models, "
        "deployments and keys with `exo dedicated-inference down --purge` and start anew.",
    )


async def fits_store(box: SecretBox, store: Facts) -> bool:
    """Whether a key is the one of a store; a store that has none yet takes it."""
    return await store.ensure_fact(_FACT, box.fingerprint) == box.fingerprint


def new_api_key() -> str:
    """Make the value of an inference key: 256 random bits."""
    return _format_key(secrets.token_bytes(32))


def hash_api_key(value: str) -> str:
    """Return what is stored of a key, and what the gateway compares: SHA-256 in hex."""
    return hashlib.sha256(value.encode()).hexdigest()


def _format_key(raw: bytes) -> str:
    return "exo-" + base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _read_or_make_key(path: Path) -> tuple[bytes, bool]:
    created = not path.exists()
    if created:
        write_atomically(path, base64.b64encode(os.urandom(32)).decode() + "\n", mode=0o600)
    return _read_key(path), created


_KEY_HINT = "Put the original file back; API keys and Hub tokens cannot be read without it."


def _read_key(path: Path) -> bytes:
    try:
        key = base64.b64decode(read_file(path).strip(), validate=True)
    except OSError as exc:
        raise ConfigurationError(f"cannot read the key file {path}: {exc}", hint=_KEY_HINT) from exc
    except (ValueError, binascii.Error) as exc:
        raise ConfigurationError(
            f"the key file {path} is damaged: found what is no base64, expected that of 32 bytes",
            hint=_KEY_HINT,
        ) from exc
    if len(key) != 32:
        raise ConfigurationError(
            f"the key file {path} is damaged: found {len(key)} bytes, expected 32", hint=_KEY_HINT
        )
    return key


def _context(owner: str, name: str) -> bytes:
    return f"{owner}/{name}".encode()
