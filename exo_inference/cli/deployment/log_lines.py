"""One line of an engine's log as people read it: `12:30:01 info    ready on cpu in float32 seconds=2.1`.

Engines write one JSON object a line where nobody watches; other lines are shown as they are. Pure.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

_SHOWN_APART = ("time", "level", "logger", "message", "exception")


def readable(message: str) -> str:
    """Return a line of a log for people; one that is not of our engine's form stays as it is."""
    entry = _parse(message)
    if entry is None:
        return message
    head = " ".join(
        filter(None, (_clock(entry.get("time")), f"{entry.get('level', ''):7}".rstrip()))
    )
    fields = [f"{key}={_short(value)}" for key, value in entry.items() if key not in _SHOWN_APART]
    line = " ".join([f"{head} {entry['message']}".strip(), *fields])
    exception = entry.get("exception")
    return f"{line}\n{exception}" if exception else line


def _parse(message: str) -> dict[str, Any] | None:
    if not message.startswith("{"):
        return None
    try:
        entry = json.loads(message)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict) or not isinstance(entry.get("message"), str):
        return None
    return entry


def _clock(time: object) -> str:
    """Return the local time of day of a moment in RFC 3339; nothing for anything else."""
    try:
        return datetime.fromisoformat(str(time)).astimezone().strftime("%H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return ""


def _short(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
