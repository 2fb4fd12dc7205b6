"""When changes arrive at the engines' Deployments: one watch, read in a thread.

The moment of an event is when this process reads it, so it is never earlier than the write.
"""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from exo_inference.platforms.kubernetes.names import SETTLED_SPEC, SPEC_LABEL, UID_LABEL
from scripts.kubernetes.client import ApiClient


@dataclass(frozen=True, slots=True)
class Applied:
    """A chart as it was applied.

    Attributes:
        at: on the monotonic clock.
        spec_hash: of the values that it was applied with.
        replicas: that they ask for.
    """

    at: float
    spec_hash: str
    replicas: int


class AppliedCharts:
    """Follows the Deployments of one namespace until `close`."""

    def __init__(self, api: ApiClient, namespace: str) -> None:
        self._api = api
        self._path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
        self._changed = threading.Condition()
        self._applied: defaultdict[str, list[Applied]] = defaultdict(list)
        self._settled: set[str] = set()
        self._is_closed = False
        self._failure = ""
        self._connection = self._connect()
        threading.Thread(target=self._run, name="applied-charts", daemon=True).start()

    def close(self) -> None:
        """Stop following."""
        self._is_closed = True
        if self._connection.sock is not None:
            self._connection.sock.close()

    def last(self, uid: str) -> Applied | None:
        """Return how a deployment's chart was applied last."""
        with self._changed:
            return self._applied[uid][-1] if self._applied[uid] else None

    def num_settled(self) -> int:
        """Return how many have all their replicas ready, as the controller has noted."""
        with self._changed:
            return len(self._settled)

    def wait(
        self, uid: str, before: Applied | None, replicas: int, timeout_seconds: float
    ) -> Applied:
        """Wait for the chart of a deployment to be applied with other values than before.

        Args:
            uid: of the deployment.
            before: how it was; None where it was not there.
            replicas: that are asked for.
            timeout_seconds: to wait at most.

        Raises:
            TimeoutError
        """
        deadline = time.monotonic() + timeout_seconds
        with self._changed:
            while True:
                for found in self._applied[uid]:
                    is_new = before is None or (
                        found.at > before.at and found.spec_hash != before.spec_hash
                    )
                    if is_new and found.replicas == replicas:
                        return found
                left = deadline - time.monotonic()
                if left <= 0 or self._failure:
                    raise TimeoutError(f"deployment {uid} was not applied {self._failure}")
                self._changed.wait(left)

    def _connect(self) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cadata=self._api.certificate)
        address = urlsplit(self._api.url)
        return http.client.HTTPSConnection(str(address.hostname), address.port, context=context)

    def _run(self) -> None:
        try:
            headers = {"Authorization": f"Bearer {self._api.token}"}
            path = f"{self._path}?watch=true&resourceVersion=0&timeoutSeconds=7200"
            self._connection.request("GET", path, headers=headers)
            for line in self._connection.getresponse():
                self._take(json.loads(line))
            self._fail("the watch was ended")
        except (OSError, ValueError, http.client.HTTPException) as exc:
            self._fail(repr(exc))

    def _fail(self, why: str) -> None:
        with self._changed:
            self._failure = "" if self._is_closed else f"({why})"
            self._changed.notify_all()

    def _take(self, event: dict[str, Any]) -> None:
        now, item = time.monotonic(), event["object"]
        labels = item["metadata"].get("labels", {})
        uid, spec_hash = labels.get(UID_LABEL), labels.get(SPEC_LABEL)
        if not uid or not spec_hash or event["type"] == "DELETED":
            return
        found = Applied(now, spec_hash, int(item["spec"].get("replicas", 1)))
        is_settled = item["metadata"].get("annotations", {}).get(SETTLED_SPEC) == spec_hash
        with self._changed:
            (self._settled.add if is_settled else self._settled.discard)(uid)
            known = self._applied[uid]
            last = known[-1] if known else None
            if last is None or (last.spec_hash, last.replicas) != (spec_hash, found.replicas):
                known.append(found)
                self._changed.notify_all()
