"""The client's settings: flags > environment > configuration file > defaults, read once, frozen.

The command line and `Client()` call `load_settings`; nothing else of the client reads the
environment. The file is the one of Exoscale's own command line (`exoscale.toml`), found in the
places it looks in. Our addition: where nothing is configured at all, the control plane that
`exo dedicated-inference up` keeps in its default directory is used, if there is one.

Imports only the standard library, because every start of the command line reads it.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from exo_inference.config_file import Account, find_line, read_accounts
from exo_inference.errors import ConfigurationError, ExoError, UsageError
from exo_inference.state_dir import StateDir, default_state_dir

DEFAULT_ENDPOINT = "https://api-ch-gva-2.exoscale.com/v2"
DEFAULT_ZONE = "ch-dk-2"
DEFAULT_OUTPUT_FORMAT = "table"

_KEY_VARIABLES = ("EXOSCALE_API_KEY", "EXOSCALE_KEY", "CLOUDSTACK_KEY", "CLOUDSTACK_API_KEY")
_SECRET_VARIABLES = (
    "EXOSCALE_API_SECRET",
    "EXOSCALE_SECRET",
    "EXOSCALE_SECRET_KEY",
    "CLOUDSTACK_SECRET",
    "CLOUDSTACK_SECRET_KEY",
)
_DURATION_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ms|s|m|h)")
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a client needs to know before it can make its first request."""

    endpoint: str
    """Where `GET /zone` is asked: absolute, with its prefix (`/v2`), without a trailing slash."""

    zone: str | None
    """The zone for commands that name none; None where nobody chose one (then `DEFAULT_ZONE`)."""

    key: str
    """The public half of the credentials, `EXO…`."""

    secret: str | None = field(default=None, repr=False)
    """The secret half, or None where `secret_command` prints it."""

    secret_command: tuple[str, ...] = ()
    """A program and its arguments that print the secret; run by `read_secret`, without a shell."""

    custom_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Headers added to every request (they may hold credentials of a proxy)."""

    output_format: str = DEFAULT_OUTPUT_FORMAT
    """`table`, `json` or `text`."""

    timeout_seconds: float | None = None
    """How long a request may take; None where nobody chose, infinity where it was switched off."""

    trace: bool = False
    """Whether requests and answers are shown on stderr, with their secrets masked."""

    source: str = "arguments"
    """Where the credentials come from, for people: `the environment`, or a file and account."""

    config_file: Path | None = None
    """The file the account was read from."""

    def read_secret(self) -> str:
        """Return the secret, running `secret_command` where that is how it is kept.

        Raises:
            ConfigurationError: the command failed or printed nothing.
        """
        if self.secret is not None:
            return self.secret
        return _run_secret_command(self.secret_command, self.source)


@dataclass(frozen=True, kw_only=True)
class Flags:
    """What the caller chose explicitly; None means not given. A flag beats everything else."""

    key: str | None = None
    secret: str | None = field(default=None, repr=False)
    endpoint: str | None = None
    zone: str | None = None
    config_file: Path | str | None = None
    account: str | None = None
    state_dir: Path | str | None = None
    output_format: str | None = None
    timeout_seconds: float | None = None


@dataclass(frozen=True)
class _Credentials:
    """The account the client acts as, wherever it was found."""

    account: Account
    source: str
    file: Path | None = None


def load_settings(flags: Flags | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Resolve flags, environment and file into one frozen object.

    An explicit `--config`, `--use-account` or `--state-dir` beats credentials in the environment:
    what was typed now is meant, and a variable exported long ago is not.

    Args:
        flags: what the caller chose explicitly.
        environ: the environment; that of the process by default.

    Raises:
        UsageError: a value is malformed; the message names the variable, or the file and line.
        ConfigurationError: there are no credentials anywhere.
    """
    flags = flags or Flags()
    environ = os.environ if environ is None else environ
    found = _find_credentials(flags, environ)
    account = found.account
    endpoint = flags.endpoint or _endpoint_of(flags, environ, account)
    return Settings(
        endpoint=_check_endpoint(endpoint, "the endpoint"),
        zone=flags.zone or environ.get("EXOSCALE_ZONE") or account.default_zone,
        key=flags.key or account.key,
        secret=flags.secret or account.secret,
        secret_command=account.secret_command,
        custom_headers=MappingProxyType(dict(account.custom_headers)),
        output_format=flags.output_format or account.output_format or DEFAULT_OUTPUT_FORMAT,
        timeout_seconds=_read_timeout(flags, environ),
        trace=bool(environ.get("EXOSCALE_TRACE")),
        source=found.source,
        config_file=found.file,
    )


def read_hub_token(environ: Mapping[str, str] | None = None) -> str | None:
    """Return the Hub token of the environment, `HF_TOKEN`, or None."""
    environ = os.environ if environ is None else environ
    return environ.get("HF_TOKEN", "").strip() or None


def resolve_state_dir(
    flag: Path | str | None = None, environ: Mapping[str, str] | None = None
) -> Path:
    """Return the state directory that is meant: `--state-dir`, `EXO_STATE_DIR`, or the default."""
    environ = os.environ if environ is None else environ
    chosen = flag or environ.get("EXO_STATE_DIR")
    return Path(chosen).expanduser() if chosen else default_state_dir(environ)


def parse_duration(text: str, name: str) -> float:
    """Parse `15s`, `1m30s`, `500ms` or a number of seconds; `-1s` or `-1` switches a limit off.

    Args:
        text: what was given.
        name: the variable or flag it was given in, for the error.

    Returns:
        Seconds; infinity for a limit that is off.

    Raises:
        UsageError: the text is neither, or the duration is zero or below.
    """
    text = text.strip()
    if text in ("-1", "-1s"):
        return math.inf
    parts = _DURATION_PART.findall(text)
    if parts and "".join(number + unit for number, unit in parts) == text:
        seconds = sum(float(number) * _UNIT_SECONDS[unit] for number, unit in parts)
    else:
        try:
            seconds = float(text)
        except ValueError:
            seconds = math.nan
    if not seconds > 0 or math.isinf(seconds):
        raise UsageError(
            f"{name} is {text!r}, which is not a positive duration",
            hint="Write it as 15s, 2m or 1m30s, or -1s for no limit.",
        )
    return seconds


def _find_credentials(flags: Flags, environ: Mapping[str, str]) -> _Credentials:
    if flags.key and flags.secret:
        return _Credentials(Account(name="", key=flags.key, secret=flags.secret), "arguments")
    if flags.key or flags.secret:
        raise ConfigurationError(
            "only one of key and secret was given", hint="Give both, or neither."
        )
    explicit = flags.config_file or flags.state_dir or flags.account
    if not explicit and (from_environment := _environment_account(environ)):
        return _Credentials(from_environment, "the environment")
    file = _find_file(flags, environ)
    if file is None:
        raise _nothing_configured(environ)
    return _pick_account(file, flags.account, environ)


def _environment_account(environ: Mapping[str, str]) -> Account | None:
    key, secret = _first_of(environ, _KEY_VARIABLES), _first_of(environ, _SECRET_VARIABLES)
    return Account(name="", key=key, secret=secret) if key and secret else None


def _first_of(environ: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((value for name in names if (value := environ.get(name, "").strip())), None)


def _find_file(flags: Flags, environ: Mapping[str, str]) -> Path | None:
    """Return the configuration file to read: one that was named must exist, others may not."""
    named = (
        (flags.config_file, "--config"),
        (_state_dir_file(flags.state_dir), "--state-dir"),
        (environ.get("EXOSCALE_CONFIG"), "EXOSCALE_CONFIG"),
        (_state_dir_file(environ.get("EXO_STATE_DIR")), "EXO_STATE_DIR"),
    )
    for value, name in named:
        if value:
            path = Path(value).expanduser()
            if not _is_there(path):
                raise _missing_file(path, name)
            return path
    home = Path(environ.get("HOME") or "~").expanduser()
    config_home = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    places = (config_home / "exoscale", home / ".exoscale", home, Path())
    control_plane = StateDir(default_state_dir(environ))
    candidates = (place / "exoscale.toml" for place in places)
    found = next((path for path in candidates if path.is_file()), control_plane.config_file)
    return found if _is_there(found) else None


def _is_there(path: Path) -> bool:
    """Whether there is anything; what cannot be read is told by reading it."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def _state_dir_file(state_dir: Path | str | None) -> Path | None:
    return StateDir(Path(state_dir)).config_file if state_dir else None


def _missing_file(path: Path, name: str) -> ExoError:
    if name in ("--state-dir", "EXO_STATE_DIR"):
        where = str(path.parent)
        return ConfigurationError(
            f"no control plane was ever started in {where} ({name})",
            hint=f"Start one with `exo dedicated-inference up --state-dir {shlex.quote(where)}`.",
        )
    return UsageError(
        f"the configuration file {path} ({name}) does not exist",
        hint="Check the path, or leave it out to use the standard places.",
    )


def _nothing_configured(environ: Mapping[str, str]) -> ConfigurationError:
    has_key = bool(_first_of(environ, _KEY_VARIABLES))
    has_secret = bool(_first_of(environ, _SECRET_VARIABLES))
    if has_key != has_secret:
        given, missing = ("EXOSCALE_API_KEY", "EXOSCALE_API_SECRET")[:: 1 if has_key else -1]
        return ConfigurationError(
            f"a key and its secret are both needed: {given} is set, {missing} is not",
            hint=f"Set {missing} too.",
        )
    return ConfigurationError(
        "no credentials: no EXOSCALE_API_KEY and EXOSCALE_API_SECRET, no configuration file, "
        "and no control plane on this machine",
        hint="Start one with `exo dedicated-inference up`, or set both variables.",
    )


def _pick_account(file: Path, flag: str | None, environ: Mapping[str, str]) -> _Credentials:
    accounts, default = read_accounts(file)
    wanted = flag or environ.get("EXOSCALE_ACCOUNT") or default
    if wanted is None and len(accounts) == 1:
        wanted = accounts[0].name
    known = ", ".join(account.name for account in accounts) or "none"
    if not accounts and wanted is None:
        raise UsageError(
            f"{file} has no account",
            hint="Write [[accounts]] with name, key and secret into it, or name another file with -C.",
        )
    if wanted is None:
        raise UsageError(
            f"{file} has no defaultAccount and several accounts: {known}",
            hint="Choose one with --use-account NAME, or set defaultAccount in the file.",
        )
    chosen = next((account for account in accounts if account.name == wanted), None)
    if chosen is None:
        line = "" if flag or environ.get("EXOSCALE_ACCOUNT") else find_line(file, "defaultAccount")
        raise UsageError(
            f"{file}{line}: there is no account {wanted!r}; the file has: {known}",
            hint="Choose one of them with --use-account NAME.",
        )
    return _Credentials(chosen, f"{file}, account {chosen.name}", file)


def _endpoint_of(flags: Flags, environ: Mapping[str, str], account: Account) -> str:
    from_environment = environ.get("EXOSCALE_API_ENDPOINT")
    if from_environment:
        _check_endpoint(from_environment, "EXOSCALE_API_ENDPOINT")
    if flags.config_file or flags.state_dir or flags.account:
        return account.endpoint or from_environment or DEFAULT_ENDPOINT
    return from_environment or account.endpoint or DEFAULT_ENDPOINT


def _check_endpoint(endpoint: str, name: str) -> str:
    """Return the endpoint without its trailing slash: the paths are appended to it verbatim."""
    if not re.fullmatch(r"https?://[^\s/?#]+(/[^\s?#]*)?", endpoint):
        raise UsageError(
            f"{name} is {endpoint!r}, which is not an http:// or https:// address",
            hint="Write it with its prefix, as http://127.0.0.1:8080/v2.",
        )
    return endpoint.rstrip("/")


def _read_timeout(flags: Flags, environ: Mapping[str, str]) -> float | None:
    if flags.timeout_seconds is not None:
        return flags.timeout_seconds
    text = environ.get("EXOSCALE_TIMEOUT")
    return parse_duration(text, "EXOSCALE_TIMEOUT") if text else None


def _run_secret_command(command: tuple[str, ...], source: str) -> str:
    what = f"reading the API secret with {command[0]!r} (secretCommand of {source})"
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, timeout=60, check=True, text=True)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError) as exc:
        # The exception's own text may repeat what the command printed, so only its kind is shown.
        code = getattr(exc, "returncode", None)
        reason = f"exit status {code}" if code is not None else type(exc).__name__
        raise ConfigurationError(
            f"{what} failed: {reason}", hint="Run the command by hand to see why."
        ) from exc
    secret = done.stdout.strip()
    if not secret:
        raise ConfigurationError(
            f"{what} printed nothing", hint="Run the command by hand to see why."
        )
    return secret
