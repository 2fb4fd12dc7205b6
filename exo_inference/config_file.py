"""`exoscale.toml`, the configuration file of Exoscale's command line: its accounts, checked.

`settings.py` is the only caller. Keys that are not known here are ignored (the real program has
more); a known key with a value of the wrong type stops with the file and the line.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exo_inference.errors import UsageError
from exo_inference.state_dir import read_file

_ACCOUNT_HEADER = re.compile(r"\s*\[\[\s*accounts\s*\]\]", re.IGNORECASE)


@dataclass(frozen=True)
class Account:
    """One `[[accounts]]` entry, or the credentials of the environment in the same form."""

    name: str
    key: str
    secret: str | None = field(default=None, repr=False)
    secret_command: tuple[str, ...] = ()
    endpoint: str | None = None
    default_zone: str | None = None
    output_format: str | None = None
    custom_headers: dict[str, str] = field(default_factory=dict, repr=False)


def read_accounts(file: Path) -> tuple[list[Account], str | None]:
    """Read the accounts of a file, and which one is the default.

    Raises:
        UsageError: the file cannot be read, is not TOML, or a value has the wrong type.
    """
    try:
        document = tomllib.loads(_read(file).decode())
    except OSError as exc:
        raise UsageError(
            f"cannot read the configuration file {file}: {exc.strerror or exc}",
            hint="Put it right, or name another with -C.",
        ) from exc
    except (ValueError, RecursionError) as exc:  # TOMLDecodeError names its line
        raise UsageError(
            f"{file} is not valid TOML: {exc}", hint="Correct the file, or name another with -C."
        ) from exc
    entries = _lower(document).get("accounts", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UsageError(
            f"{file}{find_line(file, 'accounts')}: accounts must be [[accounts]] tables",
            hint="Correct the file, or name another with -C.",
        )
    default = _text(_lower(document), "defaultAccount", _Place(file))
    return [_read_account(entry, _Place(file, n)) for n, entry in enumerate(entries)], default


def _read(file: Path) -> bytes:
    # A pipe is meant there: `-C /dev/stdin`, `-C <(command)`, which zsh calls /proc/self/fd/11.
    is_meant = file.parts[:2] == ("/", "dev") or file.parts[:4] == ("/", "proc", "self", "fd")
    return file.read_bytes() if is_meant else read_file(file)


def find_line(file: Path, key: str, account: int | None = None) -> str:
    """Return `:LINE` of where a key is set, as a best effort for messages.

    Args:
        file: the configuration file.
        key: the key, in any case.
        account: look in the n-th account only; where the key is missing there, its first line.
    """
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    first = 0
    if account is not None:
        headers = [n for n, line in enumerate(lines) if _ACCOUNT_HEADER.match(line)]
        first = headers[account] if account < len(headers) else 0
    pattern = re.compile(rf"^\s*(\[+[\w.\s]*)?[\"']?{re.escape(key)}\b", re.IGNORECASE)
    found = (n for n in range(first, len(lines)) if pattern.match(lines[n]))
    line = next(found, None if account is None else first)
    return "" if line is None else f":{line + 1}"


@dataclass(frozen=True)
class _Place:
    """Where a value stands, for the message about it: the file and, if in one, the account."""

    file: Path
    account: int | None = None

    def error(self, key: str, expected: str) -> UsageError:
        line = find_line(self.file, key, self.account)
        return UsageError(
            f"{self.file}{line}: {key} must be {expected}", hint="Correct that line of the file."
        )


def _read_account(entry: dict[str, Any], place: _Place) -> Account:
    entry = _lower(entry)
    name, key = _text(entry, "name", place), _text(entry, "key", place)
    secret = _text(entry, "secret", place)
    command = entry.get("secretcommand", [])
    if not isinstance(command, list) or not all(isinstance(word, str) for word in command):
        raise place.error("secretCommand", 'a list of strings, as ["pass", "exoscale"]')
    if not name:
        raise place.error("name", "given for every account")
    if not key or not (secret or command):
        raise place.error("key", f"given for account {name!r}, with secret or secretCommand")
    headers = entry.get("customheaders") or {}
    if not isinstance(headers, dict) or not all(isinstance(v, str) for v in headers.values()):
        raise place.error("customHeaders", "a table of strings")
    return Account(
        name=name,
        key=key,
        secret=secret,
        secret_command=tuple(command),
        endpoint=_endpoint(entry, place),
        default_zone=_text(entry, "defaultZone", place),
        output_format=_text(entry, "defaultOutputFormat", place),
        custom_headers=headers,
    )


def _endpoint(entry: dict[str, Any], place: _Place) -> str | None:
    endpoint = _text(entry, "endpoint", place)
    if endpoint and not endpoint.startswith(("http://", "https://")):
        raise place.error("endpoint", f"an http:// or https:// address, not {endpoint!r}")
    return endpoint


def _text(table: dict[str, Any], key: str, place: _Place) -> str | None:
    value = table.get(key.lower())
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise place.error(key, f"a string, not {type(value).__name__}")
    return value


def _lower(table: dict[str, Any]) -> dict[str, Any]:
    """Return the table with lower-case keys: the real program reads them in any case."""
    return {key.lower(): value for key, value in table.items()}
