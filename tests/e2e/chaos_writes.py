"""Writes to the API while processes are killed, and what the API must therefore show afterwards.

A write that was acknowledged must be there; one that was not may be there or not. So every field
has a set of values that it may have: one after an acknowledged write, more after a failed one.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections import Counter
from collections.abc import Awaitable
from dataclasses import dataclass, field

from exo_inference import AsyncClient
from exo_inference.errors import ConnectionFailed, ExoError, NotFound, ServerError
from exo_inference.wire import Deployment

BLOCKS = "--num-gpu-blocks-override=128"
MAX_SMALL = 3


@dataclass
class Expected:
    """What is known of one deployment: the values that each field may have."""

    names: set[str]
    replicas: set[int]
    may_be_gone: bool = False


@dataclass
class Writer:
    """Makes random writes one after the other and remembers which were acknowledged.

    Attributes:
        deployments: by id; those that must (or may) be there.
        keys: names by id, likewise.
        possible_names: deployments and keys whose creation was not acknowledged.
        gone: ids whose deletion was acknowledged.
        problems: refusals that nothing explains.
    """

    client: AsyncClient
    chance: random.Random
    deployments: dict[str, Expected] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    keys_maybe_gone: set[str] = field(default_factory=set)
    possible_names: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    async def run(self, stop: asyncio.Event) -> None:
        """Write until told to stop."""
        while not stop.is_set():
            await self._write_something()
            await asyncio.sleep(self.chance.uniform(0.05, 0.4))

    async def _write_something(self) -> None:
        writes = [self._create_key, self._create_key, self._delete_key, self._delete_key]
        if len(self.deployments) < MAX_SMALL:
            writes.append(self._create)
        if self.deployments:
            writes += [self._rename, self._scale]
        if len(self.deployments) == MAX_SMALL:
            writes.append(self._delete)
        await self.chance.choice(writes)()

    async def _acknowledged(self, write: Awaitable[object], what: str) -> object | None:
        """Make a write; None when it was not acknowledged."""
        try:
            answer = await write
        except (ConnectionFailed, ServerError):
            self.counts["not acknowledged"] += 1
            return None
        except NotFound:
            # Sent again after an answer that was lost: it had been done.
            return True if what.startswith("delete") else self._unexpected(what, "not found")
        except ExoError as exc:
            return self._unexpected(what, exc.message)
        self.counts[what.split()[0]] += 1
        return answer

    def _unexpected(self, what: str, message: str) -> None:
        self.problems.append(f"{what}: {message}")

    async def _create_key(self) -> None:
        name = f"key-{next(self._numbers)}"
        key = await self._acknowledged(self.client.api_keys.create(name, "public"), f"key {name}")
        if key is None:
            self.possible_names.add(name)
        else:
            self.keys[key.id] = name

    async def _delete_key(self) -> None:
        if not self.keys:
            return
        uid = self.chance.choice(sorted(self.keys))
        if await self._acknowledged(self.client.api_keys.delete(uid), f"delete key {uid}"):
            del self.keys[uid]
            self.keys_maybe_gone.discard(uid)
            self.gone.add(uid)
        else:
            self.keys_maybe_gone.add(uid)

    async def _create(self) -> None:
        name = f"small-{next(self._numbers)}"
        write = self.client.deployments.create(
            name, model="exo/tiny-chat", gpu_type="cpu", engine_parameters=[BLOCKS]
        )
        operation = await self._acknowledged(write, f"create {name}")
        if operation is None:
            self.possible_names.add(name)
        else:
            self.deployments[operation.reference.id] = Expected({name}, {1})

    async def _rename(self) -> None:
        uid = self.chance.choice(sorted(self.deployments))
        name = f"small-{next(self._numbers)}"
        done = await self._acknowledged(
            self.client.deployments.update(uid, name=name), f"rename {uid}"
        )
        expected = self.deployments[uid]
        expected.names = {name} if done else {*expected.names, name}

    async def _scale(self) -> None:
        uid = self.chance.choice(sorted(self.deployments))
        replicas = self.chance.choice((0, 0, 1))
        done = await self._acknowledged(
            self.client.deployments.scale(uid, replicas), f"scale {uid}"
        )
        expected = self.deployments[uid]
        expected.replicas = {replicas} if done else {*expected.replicas, replicas}

    async def _delete(self) -> None:
        uid = self.chance.choice(sorted(self.deployments))
        if await self._acknowledged(self.client.deployments.delete(uid), f"delete {uid}"):
            del self.deployments[uid]
            self.gone.add(uid)
        else:
            # Not written to any more: a refusal would no longer mean anything.
            self.deployments[uid].may_be_gone = True
            self.possible_names |= self.deployments.pop(uid).names

    async def check(self, others: set[str], *, seconds: float) -> None:
        """Assert that everything acknowledged is there, and that no deployment is stuck.

        Args:
            others: ids of deployments that are not ours.
            seconds: after how long without a change a deployment is stuck; beside much work a start takes
                minutes, and says how far it is.
        """
        assert self.problems == []
        before, deadline = None, 0.0
        while unsettled := await self._unsettled():
            if unsettled != before:
                before, deadline = unsettled, time.monotonic() + seconds
            assert time.monotonic() < deadline, f"stuck: {unsettled}"
            await asyncio.sleep(0.2)
        shown = {d.id: d for d in await self.client.deployments.list()}
        assert self.deployments.keys() <= shown.keys(), "an acknowledged deployment is lost"
        assert not self.gone & shown.keys(), "a deleted deployment is there again"
        for uid, deployment in shown.items():
            if uid in others:
                continue
            if uid not in self.deployments:
                assert deployment.name in self.possible_names, deployment
                continue
            full = await self.client.deployments.get(uid)
            expected = self.deployments[uid]
            assert full.name in expected.names
            assert full.replicas in expected.replicas
        keys = {key.id: key.name for key in await self.client.api_keys.list()}
        lost = self.keys.keys() - keys.keys() - self.keys_maybe_gone
        assert not lost, f"acknowledged keys are lost: {lost}"
        assert not self.gone & keys.keys(), "a deleted key is there again"
        for uid, name in keys.items():
            assert self.keys.get(uid) == name or name in self.possible_names, name

    async def _unsettled(self) -> list[Deployment]:
        """Return the deployments that are not as they were asked to be, whatever that was."""
        found = []
        for listed in await self.client.deployments.list():
            with contextlib.suppress(NotFound):  # its deletion has just ended
                found.append(await self.client.deployments.get(listed.id))
        return [
            d
            for d in found
            if d.state != "ready"
            or d.ready_replicas != d.replicas
            or len(d.replica_status or []) != d.replicas
        ]
