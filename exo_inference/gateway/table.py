"""Follows `routes.json`: parses it into an immutable `Table` and keeps the last good one.

The controller replaces the file on every change; `TableWatcher` looks at its stat every few tens of
milliseconds. A file that is missing, half-written or of a format we do not know changes nothing:
the gateway goes on with what it had, and says so once. Writes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from pydantic import ValidationError

from exo_inference.state_dir import read_file
from exo_inference.wire import Route, RouteKey, RouteTable

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.05
"""How often the file is looked at. A stat costs microseconds; a change is seen within this time."""


EVERY_DEPLOYMENT = ""
"""Stands for the id of a deployment where a key opens all of them."""


@dataclass(frozen=True, slots=True)
class Key:
    """An accepted key: its id, and the SHA-256 of its value."""

    id: str
    digest: bytes


@dataclass(frozen=True, slots=True)
class Replica:
    """One ready replica. `address` is `unix:PATH` or `http://HOST:PORT`.

    `models` are the names that it answers to; None where nobody said.
    """

    name: str
    address: str
    models: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Deployment:
    """One deployment as the gateway needs it; `replicas` are the ready ones."""

    id: str
    name: str
    state: str
    state_details: str
    keys: tuple[Key, ...]
    replicas: tuple[Replica, ...]
    max_pending: int
    draining: frozenset[str] | None = None
    is_expected: bool = False
    """Replicas of it are ready as the controller says, so one that is not known yet will be."""
    doubted: frozenset[str] = frozenset()
    """Names of `replicas` that are not ready, and kept because too many are not at once."""

    is_coming: bool = False
    """A replica of it is on its way, so requests may be held while there is none."""

    model: str = ""
    """The one that is wanted; empty where nobody said."""

    by_model: Mapping[str, tuple[Replica, ...]] = field(default_factory=dict)
    """Which of `replicas` answer to each name, none where they are on their way; empty while all answer to
    the same names, and requests need not be told apart."""

    def with_model(self, name: str | None) -> Deployment:
        """Return the deployment as a request has it that names this model: with the replicas that may get it.

        A name that nobody is known to answer to goes to those of which nothing is known, else to any.
        """
        if not self.by_model or name is None:
            return self
        found = self.by_model.get(name)
        if found is None:
            found = tuple(r for r in self.replicas if r.models is None) or self.replicas
        if found == self.replicas:
            return self
        details = "" if found else f"its replicas with the model {name!r} are on their way"
        return replace(
            self,
            replicas=found,
            is_coming=self.is_coming or not found,
            state_details=details or self.state_details,
            by_model={},
        )

    def served_instead(self) -> frozenset[str]:
        """Return the names that replicas answer to while none answers to that of the wanted model.

        Empty where one does, or may.
        """
        if not self.model or any(each.models is None for each in self.replicas):
            return frozenset()
        names = frozenset().union(*(each.models or () for each in self.replicas))
        return frozenset() if self.model in names else names

    def has_lost(self, name: str) -> bool:
        """Whether a replica that was ready is neither that nor finishing its requests."""
        if name in self.doubted:
            return True
        if self.draining is None or name in self.draining:
            return False
        return all(replica.name != name for replica in self.replicas)


@dataclass(frozen=True, slots=True)
class Table:
    """The whole table, indexed; `make_table` makes it. An id wins over an equal name.

    `opened_by` has, for the digest of each key, what it opens: the id of the key by that of the deployment, or
    by `EVERY_DEPLOYMENT`.
    """

    version: int
    by_id: Mapping[str, Deployment]
    by_name: Mapping[str, Deployment]
    public_keys: tuple[Key, ...]
    replicas: Mapping[str, Replica]
    opened_by: Mapping[bytes, Mapping[str, str]]

    def find(self, name_or_id: str) -> Deployment | None:
        """Return the deployment that a path names."""
        return self.by_id.get(name_or_id) or self.by_name.get(name_or_id)


def parse_table(text: str | bytes) -> Table:
    """Parse the file's content.

    Raises:
        ValueError: it is not a routing table of a format we know.
    """
    try:
        parsed = RouteTable.model_validate_json(text)
    except ValidationError as exc:
        problem = exc.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in problem["loc"])
        raise ValueError(f"{where or 'document'}: {problem['msg']}") from exc
    deployments = [make_deployment(route) for route in parsed.routes]
    return make_table(parsed.version, deployments, make_keys(parsed.public_keys))


def make_table(
    version: int, deployments: Sequence[Deployment], public_keys: tuple[Key, ...]
) -> Table:
    """Return the table of deployments; of several that have one name, the last gets it."""
    by_id = {d.id: d for d in deployments}
    opened_by: dict[bytes, dict[str, str]] = {}
    # A deployment's own key comes before those that others make: one with its hash takes none of its usage.
    for scope, keys in (*((d.id, d.keys) for d in by_id.values()), (EVERY_DEPLOYMENT, public_keys)):
        for key in keys:
            opened_by.setdefault(key.digest, {}).setdefault(scope, key.id)
    return Table(
        version=version,
        by_id=by_id,
        by_name={d.name: d for d in deployments},
        public_keys=public_keys,
        replicas={r.name: r for d in deployments for r in d.replicas},
        opened_by=opened_by,
    )


def make_deployment(
    route: Route, *, is_expected: bool = False, doubted: frozenset[str] = frozenset()
) -> Deployment:
    """Return a route as the gateway works with it."""
    replicas = tuple(
        Replica(r.name, r.address, None if r.models is None else frozenset(r.models))
        for r in route.replicas
    )
    return Deployment(
        id=route.deployment_id,
        name=route.name,
        state=route.state,
        state_details=route.state_details,
        keys=make_keys(route.keys),
        replicas=replicas,
        max_pending=route.max_pending_per_replica,
        draining=None if route.draining is None else frozenset(route.draining),
        is_expected=is_expected,
        is_coming=route.coming or is_expected,
        doubted=doubted,
        model=route.model,
        by_model=tell_models_apart(replicas, route.model, route.coming_models),
    )


def tell_models_apart(
    replicas: Sequence[Replica], wanted: str, coming: Collection[str]
) -> dict[str, tuple[Replica, ...]]:
    """Return which replicas answer to each name; empty where all answer to the same ones.

    Args:
        replicas: the ready ones.
        wanted: name of the model that new replicas have. While all that are known have it, those of which
            nothing is known are taken to have it too.
        coming: names that replicas answer to which are on their way.
    """
    known = {replica.models for replica in replicas if replica.models is not None}
    names = frozenset(coming).union(*known)
    has_unknown = any(replica.models is None for replica in replicas)
    may_differ = has_unknown and bool(known) and bool(wanted) and wanted not in names
    if all(names == each for each in known) and not may_differ:
        return {}
    return {
        name: tuple(r for r in replicas if r.models is not None and name in r.models)
        for name in names
    }


def make_keys(keys: list[RouteKey]) -> tuple[Key, ...]:
    """Return keys as the gateway compares them."""
    return tuple(Key(key.id, bytes.fromhex(key.sha256)) for key in keys)


class Tables(Protocol):
    """Where the gateway's table comes from.

    Attributes:
        table: the table in force; None until there was one.
        problem: why there is no newer one, else "".
    """

    table: Table | None
    problem: str

    def refresh(self) -> None:
        """Bring the table up to date with what is known now."""
        ...

    async def run(self) -> None:
        """Follow all changes until cancelled."""
        ...

    async def settle(self, deployment: Deployment) -> Deployment:
        """Return the deployment; wait a moment for replicas that are ready and not known yet."""
        ...


class TableWatcher:
    """Holds the last good table and follows the file.

    Attributes:
        table: the table in force; None until the first good one was read.
        problem: why the file's present content is not in force, else "".
    """

    def __init__(self, path: Path, on_change: Callable[[Table], None] = lambda _: None) -> None:
        self._path = path
        self._on_change = on_change
        self._seen: tuple[int, int, int] | None = None
        self.table: Table | None = None
        self.problem: str = "it was never written"

    def refresh(self) -> None:
        """Look at the file now; read it when it changed since the last look."""
        try:
            stat = self._path.stat()
            seen = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
            if seen == self._seen:
                return
            table = parse_table(read_file(self._path))
        except FileNotFoundError:
            self._note("it does not exist", None)
        except (OSError, ValueError) as exc:
            self._note(str(exc), seen if not isinstance(exc, OSError) else None)
        else:
            self._seen, self.table, self.problem = seen, table, ""
            logger.info("routing table %d applied: %d deployments", table.version, len(table.by_id))
            self._on_change(table)

    async def run(self) -> None:
        """Follow the file until cancelled."""
        while True:
            self.refresh()
            await asyncio.sleep(POLL_SECONDS)

    async def settle(self, deployment: Deployment) -> Deployment:
        """Return the deployment: the controller calls ready what is in the table."""
        return deployment

    def _note(self, problem: str, seen: tuple[int, int, int] | None) -> None:
        if problem != self.problem:
            if self.table is None and seen is None:
                logger.info("waiting for the first routing table: %s", problem)
            else:
                logger.warning(
                    "cannot use routing table %s: %s; going on with version %s",
                    self._path.name,
                    problem,
                    self.table.version if self.table else None,
                )
        self._seen, self.problem = seen, problem
