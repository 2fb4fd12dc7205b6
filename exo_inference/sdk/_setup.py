"""From a client's arguments to its settings and HTTP options; shared by both clients."""

from __future__ import annotations

from pathlib import Path

from exo_inference.sdk._http import DEFAULT_TIMEOUT_SECONDS, HttpOptions
from exo_inference.sdk.signing import Credentials
from exo_inference.settings import Flags, Settings, load_settings


def resolve(
    settings: Settings | None,
    *,
    key: str | None,
    secret: str | None,
    endpoint: str | None,
    zone: str | None,
    config_file: Path | str | None,
    account: str | None,
    state_dir: Path | str | None,
    timeout_seconds: float | None,
) -> tuple[Settings, bool]:
    """Return the settings, and whether their endpoint is used directly, without a zone."""
    if settings is None:
        flags = Flags(
            key=key,
            secret=secret,
            endpoint=endpoint,
            zone=zone,
            config_file=config_file,
            account=account,
            state_dir=state_dir,
            timeout_seconds=timeout_seconds,
        )
        settings = load_settings(flags)
    return settings, endpoint is not None and zone is None


def http_options(settings: Settings) -> HttpOptions:
    """Return what every request has in common; runs the secret command, if there is one."""
    timeout = settings.timeout_seconds
    return HttpOptions(
        credentials=Credentials(settings.key, settings.read_secret()),
        timeout_seconds=DEFAULT_TIMEOUT_SECONDS if timeout is None else timeout,
        headers=settings.custom_headers,
        trace=settings.trace,
    )
