"""Counts requests and tokens per deployment and key, and keeps the counts over restarts.

`app.py` counts each request at its end; `run` writes `usage.json` every few seconds when something
changed. A gateway that is killed loses what it counted since the last write, `SAVE_SECONDS` at
most; one that is stopped loses nothing. A stream that ended before its engine named usage counts
one token for each event with text that passed; any other such request counts without tokens. Engines are
foreign: `answer_usage.py` bounds what one request can add, and a count in the file is bounded as it is read.
"""

from __future__ import annotations

import asyncio
import json
import logging
import reprlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exo_inference.gateway.answer_usage import Tokens
from exo_inference.state_dir import read_json, write_atomically

logger = logging.getLogger(__name__)

SAVE_SECONDS = 2.0
"""How often the counts are written, and so the most that a `kill -9` can lose."""


MAX_ROWS = 10_000
"""Of counts. Beyond, those of a deployment's oldest keys are joined in its row without a key, and those of a
deployment that has but one row in the row of none: nothing is lost but whose it was."""


MAX_COUNT = 2**53
"""A count in the file beyond this is none: Prometheus, and many readers of JSON, know no greater whole number."""


@dataclass(slots=True)
class UsageRow:
    """The counts of one key on one deployment; both empty for requests refused before that."""

    deployment_id: str
    key_id: str
    requests: Counter[int] = field(default_factory=Counter)
    """By HTTP status."""
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def add(self, other: UsageRow) -> None:
        """Add the counts of another row."""
        self.requests.update(other.requests)
        self.prompt_tokens += other.prompt_tokens
        self.completion_tokens += other.completion_tokens

    def to_json(self) -> dict[str, Any]:
        """Return the row as it is written and shown."""
        return {
            "deployment_id": self.deployment_id,
            "key_id": self.key_id,
            "requests": {str(status): n for status, n in sorted(self.requests.items())},
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
        }


class UsageLedger:
    """All counts of one gateway, and the file they are kept in."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: dict[tuple[str, str], UsageRow] = {}
        self._changed = False

    def load(self) -> None:
        """Take over what was written before. A damaged file is kept aside, and counts begin anew."""
        try:
            data = read_json(self._path)
            rows = [_row(item) for item in data["rows"]]
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
            aside = self._path.with_suffix(".damaged")
            logger.warning("cannot read %s (%s); kept as %s", self._path.name, exc, aside.name)
            self._path.replace(aside)
            return
        self._rows = {(row.deployment_id, row.key_id): row for row in rows[-MAX_ROWS:]}
        for row in rows[:-MAX_ROWS]:  # written by a version that had no bound
            self._rows.setdefault(("", ""), UsageRow("", "")).add(row)

    def count(self, deployment_id: str, key_id: str, status: int, tokens: Tokens | None) -> None:
        """Add one request."""
        row = self._rows.get((deployment_id, key_id))
        if row is None:
            row = self._rows[deployment_id, key_id] = UsageRow(deployment_id, key_id)
            self._make_room(row)
        row.requests[status] += 1
        if tokens is not None:
            row.prompt_tokens += tokens.prompt
            row.completion_tokens += tokens.completion
        self._changed = True

    def _make_room(self, new: UsageRow) -> None:
        """Join the oldest rows where there are too many."""
        while len(self._rows) > MAX_ROWS:
            rows = [row for row in self._rows.values() if row is not new and row.deployment_id]
            owner = next((row for row in rows if row.key_id), rows[0]).deployment_id
            of_keys = [row for row in rows if row.deployment_id == owner and row.key_id]
            into = (owner, "")
            if (into not in self._rows and len(of_keys) == 1) or not of_keys:
                of_keys, into = [row for row in rows if row.deployment_id == owner], ("", "")
            for oldest in of_keys[: 1 if into in self._rows else 2]:
                del self._rows[oldest.deployment_id, oldest.key_id]
                self._rows.setdefault(into, UsageRow(*into)).add(oldest)

    def __iter__(self) -> Iterator[UsageRow]:
        return iter(self._rows.values())

    @property
    def num_requests(self) -> int:
        """All requests ever."""
        return sum(row.requests.total() for row in self)

    @property
    def tokens(self) -> Tokens:
        """All tokens ever."""
        return Tokens(
            sum(row.prompt_tokens for row in self), sum(row.completion_tokens for row in self)
        )

    def to_json(self) -> dict[str, Any]:
        """Return everything, JSON-ready."""
        return {"format": 1, "rows": [row.to_json() for row in self]}

    async def save(self) -> None:
        """Write the counts if they changed. A full disk is logged, and tried again later."""
        if not self._changed:
            return
        text = json.dumps(self.to_json())
        self._changed = False
        try:
            await asyncio.to_thread(write_atomically, self._path, text)
        except OSError as exc:
            self._changed = True
            logger.warning("cannot write %s: %s; counts go on in memory", self._path.name, exc)

    async def run(self) -> None:
        """Save every few seconds until cancelled."""
        while True:
            await asyncio.sleep(SAVE_SECONDS)
            await self.save()


def _row(item: dict[str, Any]) -> UsageRow:
    return UsageRow(
        deployment_id=str(item["deployment_id"]),
        key_id=str(item["key_id"]),
        requests=Counter({int(status): _count(n) for status, n in item["requests"].items()}),
        prompt_tokens=_count(item["prompt_tokens"]),
        completion_tokens=_count(item["completion_tokens"]),
    )


def _count(value: Any) -> int:
    """Return a count of the file; 0 for one that an engine forged and an earlier version wrote."""
    if type(value) is int and 0 <= value <= MAX_COUNT:
        return value
    logger.warning("a count of %s is none, and begins anew at 0", reprlib.repr(value))
    return 0
