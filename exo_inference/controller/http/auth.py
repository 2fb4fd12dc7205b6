"""Who may call: the EXO2-HMAC-SHA256 signature, checked over the raw path and the raw body.

Of the API alone: requests to models have Bearer keys, which `exo_inference.gateway.keys` checks.
`middleware.py` calls `Verifier.verify` before any route runs. Whatever cannot be checked is
refused. Equal requests have equal signatures, so a repeat cannot be told from a retry: what becomes
of that is said in `replays.py`. The signature covers the values of query arguments and not their
names: what that means for writes is in `routes/requests.py`. Written after `x-topics` in the
openapi document of `exoscale` 0.16.4 and what its clients send.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import logging
import re
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from urllib.parse import unquote_plus

from exo_inference.controller.admission.problems import Refused
from exo_inference.errors import ExoError
from exo_inference.local_settings import read_credentials
from exo_inference.state_dir import StateDir, file_version
from exo_inference.wire import SIGNATURE_PROBLEM
from exo_inference.wire.signature import SCHEME, compute_signature, string_to_sign

logger = logging.getLogger(__name__)

MAX_VALIDITY_SECONDS = 900
"""Clients sign for 600 seconds; the rest is for a clock that runs ahead of ours."""

EXPIRED_LEEWAY_SECONDS = 60
"""Exoscale's SDK for Java lets a signature expire in the second in which it is made, so that each of its
requests comes late. A minute also forgives a clock that runs behind ours."""

UNSIGNED_READ_ARGUMENTS = frozenset({"version", "stream", "tail", "visibility"})
"""Arguments of the vendor's own reads, which its SDK for Java sends without signing them. Who changes one
on the way can make a read show less or more of what the signer may see anyway."""

_DIGITS = re.compile(r"[0-9]{1,12}")
_FIELDS = {"credential", "signed-query-args", "expires", "signature"}

READS = frozenset({"GET", "HEAD"})

FindSecret = Callable[[str], str | None]
"""Returns the secret of a key, or None."""


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """What a signature covers, as it came over the wire.

    Attributes:
        raw_path: percent-encoded, without the query.
        query: percent-encoded, without the question mark.
        authorization: every Authorization header there was.
    """

    method: str
    raw_path: str
    query: str
    body: bytes
    authorization: Sequence[str]


@dataclass(frozen=True, slots=True)
class Claim:
    """A parsed Authorization header; from `verify`, one that was found right."""

    key: str
    query_names: tuple[str, ...]
    expires: int
    signature: str


class CredentialFile:
    """The accepted credentials: those of `exoscale.toml`, read again when the file changes."""

    def __init__(self, state: StateDir) -> None:
        self._state = state
        self._seen: tuple[int, int, int] | None = None
        self._secrets: dict[str, str] = {}

    def find_secret(self, key: str) -> str | None:
        """Return the secret of a key; None for every key while the file cannot be read."""
        version = file_version(self._state.config_file)
        if version is None or version != self._seen:
            self._seen = version
            self._secrets = self._read()
        return self._secrets.get(key)

    def _read(self) -> dict[str, str]:
        try:
            credentials = read_credentials(self._state)
        except ExoError as exc:
            logger.warning("every request is refused: %s", exc.message)
            return {}
        return {credentials.key: credentials.secret}


class Verifier:
    """Checks signatures.

    Args:
        find_secret: the accepted credentials.
        clock: seconds since the epoch.
    """

    def __init__(self, find_secret: FindSecret, clock: Callable[[], float]) -> None:
        self._find_secret = find_secret
        self._clock = clock

    def check_key(self, authorization: Sequence[str]) -> None:
        """Refuse who names no key that there is, before the body has come.

        Raises:
            Refused: 403.
        """
        claim = _parse_header(authorization)
        if self._find_secret(claim.key) is None:
            raise _unknown_key(claim.key)

    def verify(self, request: SignedRequest) -> Claim:
        """Return who signed the request, how and until when.

        Raises:
            Refused: 403, whatever the reason.
        """
        claim = _parse_header(request.authorization)
        secret = self._find_secret(claim.key)
        may_be_unsigned = UNSIGNED_READ_ARGUMENTS if request.method in READS else frozenset()
        values = _signed_values(request.query, claim.query_names, may_be_unsigned)
        message = string_to_sign(
            request.method, request.raw_path, request.body, values, claim.expires
        )
        # An unknown key costs the same time as a known one.
        expected = compute_signature(secret if secret is not None else "no such key", message)
        matches = hmac.compare_digest(expected.encode(), claim.signature.encode())
        if secret is None:
            raise _unknown_key(claim.key)
        if not matches:
            raise _refused(
                "the signature does not match the request",
                "Check the secret, and that no proxy changes path, query or body.",
            )
        self._check_expiry(claim.expires)
        return claim

    def _check_expiry(self, expires: int) -> None:
        left = expires - self._clock()
        hint = "Check the clock of your machine (`date -u`) and send the request again."
        if left <= -EXPIRED_LEEWAY_SECONDS:
            raise _refused(f"the signature expired {-left:.0f} s ago", hint)
        if left > MAX_VALIDITY_SECONDS:
            raise _refused(
                f"the signature is valid for another {left:.0f} s, "
                f"at most {MAX_VALIDITY_SECONDS} s are accepted",
                hint,
            )


def _parse_header(headers: Sequence[str]) -> Claim:
    sign = f"Sign it with {SCHEME}; every client of the API does."
    if not headers:
        raise _refused("the request carries no signature (Authorization header)", sign)
    if len(headers) > 1:
        raise _refused("the request carries more than one Authorization header", sign)
    scheme, _, rest = headers[0].strip().partition(" ")
    if scheme != SCHEME:
        raise _refused(f"the Authorization header is not of the scheme {SCHEME}", sign)
    fields: dict[str, str] = {}
    for part in rest.split(","):
        name, equals, value = part.strip().partition("=")
        if not equals or name not in _FIELDS or name in fields:
            raise _refused("the Authorization header cannot be read", sign)
        fields[name] = value
    if not {"credential", "expires", "signature"} <= fields.keys():
        raise _refused("the Authorization header is incomplete", sign)
    if not _DIGITS.fullmatch(fields["expires"]):
        raise _refused("the expiry in the Authorization header is not a Unix time", sign)
    if not _is_digest(fields["signature"]):
        raise _refused("the signature in the Authorization header is not one in base64", sign)
    names = fields.get("signed-query-args", "")
    return Claim(
        key=fields["credential"],
        query_names=tuple(names.split(";")) if names else (),
        expires=int(fields["expires"]),
        signature=fields["signature"],
    )


def _is_digest(text: str) -> bool:
    try:
        return len(base64.b64decode(text, validate=True)) == 32
    except (ValueError, binascii.Error):
        return False


def _signed_values(query: str, names: Sequence[str], may_be_unsigned: Set[str]) -> list[str]:
    """Return the decoded values of the listed arguments, each only if it occurs exactly once.

    Every client but one lists each argument that has one value which is not blank, so one that is
    not listed was added on the way.
    """
    found: dict[str, list[str]] = {}
    for part in query.split("&"):
        name, _, value = part.partition("=")
        if part:
            found.setdefault(unquote_plus(name), []).append(unquote_plus(value))
    for name, values in found.items():
        if name in may_be_unsigned:
            continue
        if len(values) == 1 and values[0] and name not in names:
            raise _refused(
                f"the query argument {name[:64]!r} is not covered by the signature",
                "List it in signed-query-args.",
            )
    return [found[name][0] for name in names if len(found.get(name, ())) == 1]


def _unknown_key(key: str) -> Refused:
    return _refused(
        f"the key {key[:64]!r} is not known here",
        "Use the key and secret of this control plane's exoscale.toml.",
    )


def _refused(detail: str, hint: str) -> Refused:
    return Refused(403, "Signature refused", detail, hint=hint, type=SIGNATURE_PROBLEM)
