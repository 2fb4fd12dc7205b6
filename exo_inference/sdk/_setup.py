"""From a client's arguments to its settings and HTTP options; shared by both clients."""

from __future__ import annotations

from exo_inference.sdk._http import DEFAULT_TIMEOUT_SECONDS, HttpOptions
from exo_inference.sdk.signing import Credentials
from exo_inference.settings import Flags, Settings, load_settings


def resolve(settings: Settings | None, flags: Flags) -> tuple[Settings, bool]:
    """Return the settings, and whether their endpoint is used directly, without a zone."""
    found = load_settings(flags) if settings is None else settings
    return found, flags.endpoint is not None and flags.zone is None


def http_options(settings: Settings) -> HttpOptions:
    """Return what every request has in common; runs the secret command, if there is one."""
    timeout = settings.timeout_seconds
    return HttpOptions(
        credentials=Credentials(settings.key, settings.read_secret()),
        timeout_seconds=DEFAULT_TIMEOUT_SECONDS if timeout is None else timeout,
        headers=settings.custom_headers,
        trace=settings.trace,
    )
