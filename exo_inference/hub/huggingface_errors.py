"""Says what an error of the Hub's client means: the one place where they become ours.

The Hub answers 401 or 404 for repositories that do not exist *and* for private ones, and 401 or 403
for gated ones; which it was is told by a header that the client has turned into an exception type.
"""

from __future__ import annotations

from dataclasses import dataclass

from huggingface_hub.errors import (
    DisabledRepoError,
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from exo_inference.errors import HubError
from exo_inference.hub.base import (
    ModelGated,
    ModelNotFound,
    ModelUnusable,
    SourceUnreachable,
    TokenRejected,
)

HTTP_ERRORS: tuple[type[Exception], ...] = (HfHubHTTPError.__mro__[1],)
"""Root of the HTTP library's errors: httpx under huggingface_hub 1, httpx2 under 2."""

_MAX_FOREIGN_CHARACTERS = 256
_TOKEN_FLAGS = "--huggingface-token-file FILE (or HF_TOKEN; by kubectl with spec.tokenSecret)"  # noqa: S105 -- a flag's name


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked when the error came. The token itself is not kept."""

    source: str
    revision: str | None
    endpoint: str
    has_token: bool


def explain(error: Exception, request: Request) -> HubError:
    """Return our error for one of the client's; the caller raises it from the original."""
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    if isinstance(error, RevisionNotFoundError):
        return ModelNotFound(
            f"{request.source} has no revision {request.revision!r}",
            hint="Name a branch, a tag or a commit of the repository, or leave the revision out.",
        )
    if isinstance(error, GatedRepoError):
        return _gated(request)
    if isinstance(error, DisabledRepoError):
        return ModelUnusable(
            f"the Hub has disabled access to {request.source}",
            hint=f"See {request.endpoint}/{request.source} for the reason.",
        )
    if isinstance(error, RepositoryNotFoundError) or (status == 401 and not request.has_token):
        return _rejected(request) if status == 401 and request.has_token else _missing(request)
    if status == 401:
        return _rejected(request)
    if status == 403:
        return TokenRejected(
            f"the Hub refuses access to {request.source} with this token (403)",
            hint="Give the token the right to read the contents of this repository.",
        )
    if isinstance(error, EntryNotFoundError) or status == 404:
        return ModelNotFound(
            f"{request.source} lost a file while it was fetched (404)",
            hint="The repository has changed: create the model again.",
        )
    return _unreachable(error, status, request)


def _gated(request: Request) -> ModelGated:
    page = f"{request.endpoint}/{request.source}"
    if request.has_token:
        return ModelGated(
            f"{request.source} is gated, and the token's account has no access to it",
            hint=f"Ask for access at {page} with that account, then create the model again.",
        )
    return ModelGated(
        f"{request.source} is gated, and no token was given",
        hint=f"Accept its licence at {page}, then create the model with {_TOKEN_FLAGS}.",
    )


def _missing(request: Request) -> ModelNotFound:
    if request.has_token:
        return ModelNotFound(
            f"there is no model {request.source} at {request.endpoint} "
            "that this token's account may see",
            hint="Check the spelling, and that the account is a member of the organization.",
        )
    return ModelNotFound(
        f"there is no public model {request.source} at {request.endpoint}",
        hint=f"Check the spelling; if it is private, create it with {_TOKEN_FLAGS}.",
    )


def _rejected(request: Request) -> TokenRejected:
    return TokenRejected(
        f"the Hub at {request.endpoint} does not accept the token (401)",
        hint="Make a new token with read access, and check that none of it was cut off.",
    )


def _unreachable(error: Exception, status: int | None, request: Request) -> SourceUnreachable:
    if isinstance(error, OfflineModeIsEnabled):
        return SourceUnreachable(
            f"cannot ask the Hub for {request.source}: HF_HUB_OFFLINE is set",
            hint="Unset HF_HUB_OFFLINE where the control plane runs.",
        )
    if status == 429:
        return SourceUnreachable(
            f"the Hub at {request.endpoint} limits the rate of requests (429)",
            hint="It is tried again; with a token the limit is higher.",
        )
    if status is not None:
        return SourceUnreachable(
            f"the Hub at {request.endpoint} failed with status {status} for {request.source}",
            hint="It is tried again; see https://status.huggingface.co if it lasts.",
        )
    reason = " ".join(str(error).split())[:_MAX_FOREIGN_CHARACTERS] or type(error).__name__
    return SourceUnreachable(
        f"cannot reach the Hub at {request.endpoint}: {reason}",
        hint="Check the network, the proxy (HTTPS_PROXY) and HF_ENDPOINT.",
    )
