"""Where log lines go and what they look like; called once by each process's entry point.

Everything goes to stderr: text for people on a terminal, one JSON object per line otherwise. Fields
given as `extra=` are appended. No module below configures handlers, and nobody logs prompts.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def configure_logging(level: str) -> None:
    """Send log lines of `level` and above to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Human() if sys.stderr.isatty() else _Json())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # One line per request is ours; the libraries' own are for debugging them.
    logging.getLogger("aiohttp").setLevel(logging.WARNING)
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in vars(record).items() if key not in _PLAIN}


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str, ensure_ascii=False)


class _Human(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        line = f"{clock} {record.levelname.lower():7} {record.getMessage()}"
        fields = " ".join(f"{key}={value}" for key, value in _fields(record).items())
        if record.exc_info:
            fields += "\n" + self.formatException(record.exc_info)
        return f"{line} {fields}".rstrip()
