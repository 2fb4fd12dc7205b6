"""Never two leaders, and one again soon: on a clock that is moved, and on a real API server."""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from exo_inference.controller.cluster.leader import LeaderElection, LeaseTimes
from exo_inference.controller.stores.base import StoreUnreachable
from exo_inference.controller.stores.kubernetes import KubernetesApi
from exo_inference.kubernetes_api.client import ApiRefusal
from tests.kubernetes_api import KubernetesApi as Cluster

TIMES = LeaseTimes()


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time jumps to the next thing that waits."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self._now = max(self._now, self._scheduled[0].when())  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


class Leases:
    """One Lease with optimistic concurrency, whose answers are late, lost or refused at will."""

    namespace = "default"

    def __init__(self, trouble: Callable[[], float | None] = lambda: 0.001) -> None:
        self.lease: dict[str, Any] | None = None
        self.trouble = trouble

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        await self._travel()
        if self.lease is None:
            raise ApiRefusal("no such lease", status_code=404, reason="NotFound")
        return await self._answer()

    async def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        await self._travel()
        if self.lease is not None:
            raise ApiRefusal("exists", status_code=409, reason="AlreadyExists")
        self.lease = {"metadata": {"resourceVersion": "1"}, "spec": dict(body["spec"])}
        return await self._answer()

    async def merge(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        await self._travel()
        assert self.lease is not None
        version = self.lease["metadata"]["resourceVersion"]
        if body["metadata"]["resourceVersion"] != version:
            raise ApiRefusal("changed", status_code=409, reason="Conflict")
        self.lease["metadata"]["resourceVersion"] = str(int(version) + 1)
        self.lease["spec"] |= body["spec"]
        return await self._answer()

    async def _answer(self) -> dict[str, Any]:
        answer = copy.deepcopy(self.lease)
        assert answer is not None
        await self._travel()
        return answer

    async def _travel(self) -> None:
        delay = self.trouble()
        if delay is None:
            raise StoreUnreachable("lost on the way")
        await asyncio.sleep(delay)


def run(main: Callable[[], Awaitable[None]]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())  # type: ignore[arg-type]


class Candidates:
    """Several candidates, and who of them worked when."""

    def __init__(self, api: Any, count: int, times: LeaseTimes = TIMES) -> None:
        self.working: set[str] = set()
        self.terms: list[tuple[str, float]] = []
        self.tasks = {
            f"c{n}": asyncio.create_task(self._run(api, f"c{n}", times)) for n in range(count)
        }

    async def _run(self, api: Any, name: str, times: LeaseTimes) -> None:
        loop = asyncio.get_running_loop()
        election = LeaderElection(api, "controller", name, times, clock=loop.time)

        async def lead() -> None:
            assert not self.working, f"{name} works beside {self.working}"
            self.working.add(name)
            self.terms.append((name, loop.time()))
            try:
                await asyncio.Event().wait()
            finally:
                self.working.discard(name)

        await election.run(lead)

    async def stop(self) -> None:
        for task in self.tasks.values():
            task.cancel()
        results = await asyncio.gather(*self.tasks.values(), return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results), results

    async def until_led(self) -> str:
        while not self.working:
            await asyncio.sleep(0.01)
        (name,) = self.working
        return name


def test_one_of_several_leads_and_stays() -> None:
    async def main() -> None:
        candidates = Candidates(Leases(), 3)
        await asyncio.sleep(1000)
        assert len(candidates.terms) == 1
        await candidates.stop()

    run(main)


def test_a_leader_that_is_told_to_stop_hands_over_at_once() -> None:
    async def main() -> None:
        candidates = Candidates(Leases(), 2)
        first = await candidates.until_led()
        stopped_at = asyncio.get_running_loop().time()
        candidates.tasks.pop(first).cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0.1)
        second = await candidates.until_led()
        assert second != first
        assert candidates.terms[-1][1] - stopped_at <= TIMES.retry_seconds + 0.1
        await candidates.stop()

    run(main)


def test_a_leader_that_vanishes_is_followed_after_one_lease_duration() -> None:
    async def main() -> None:
        leases = Leases()
        gone = LeaderElection(leases, "controller", "gone", clock=asyncio.get_running_loop().time)
        assert await gone.try_acquire()
        candidates = Candidates(leases, 1)
        assert await candidates.until_led() == "c0"
        at = candidates.terms[-1][1]
        assert TIMES.duration_seconds <= at <= TIMES.duration_seconds + TIMES.retry_seconds + 1
        await candidates.stop()

    run(main)


def test_a_leader_that_cannot_renew_stops_before_others_may_begin() -> None:
    """The leader is cut off from the API; the other candidate is not."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        leases = Leases()
        cut_off = Leases(lambda: None if loop.time() > 5 else 0.001)
        cut_off.lease = {"metadata": {"resourceVersion": "1"}, "spec": {}}
        leases.lease = cut_off.lease  # one Lease, two ways to it
        ended: list[float] = []

        async def lead() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(loop.time())

        first = LeaderElection(cut_off, "controller", "first", clock=loop.time)
        task = asyncio.create_task(first.run(lead))
        await asyncio.sleep(1)
        assert first.is_leading
        candidates = Candidates(leases, 1)
        await candidates.until_led()
        assert ended[0] <= 5 + TIMES.renew_seconds
        assert candidates.terms[0][1] - ended[0] >= 2.0
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await candidates.stop()

    run(main)


@pytest.mark.parametrize("seed", range(20))
def test_never_two_lead_whatever_happens_to_requests(seed: int) -> None:
    """Requests take up to 15 s, get lost before or after they were carried out."""
    chance = random.Random(seed)

    def trouble() -> float | None:
        if chance.random() < 0.2:
            return None
        return chance.choice([0.001, 0.1, 1.0, 5.0, 15.0])

    async def main() -> None:
        candidates = Candidates(Leases(trouble), 3)
        await asyncio.sleep(2000)
        assert len(candidates.terms) > 5, "something must have happened"
        await candidates.stop()

    run(main)


def test_what_goes_wrong_in_the_work_is_not_hidden() -> None:
    async def main() -> None:
        async def lead() -> None:
            raise ValueError("a bug")

        election = LeaderElection(Leases(), "controller", "c0")
        with pytest.raises(ValueError, match="a bug"):
            await election.run(lead)

    run(main)


async def test_on_a_real_api_server_one_leads_and_another_follows(kubernetes_api: Cluster) -> None:
    api = await KubernetesApi.connect(kubernetes_api.kubeconfig)
    times = LeaseTimes(duration_seconds=1.0, renew_seconds=0.7, retry_seconds=0.1)
    candidates = Candidates(api.impatient(), 3, times)
    first = await asyncio.wait_for(candidates.until_led(), 10)
    task = candidates.tasks.pop(first)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    second = await asyncio.wait_for(candidates.until_led(), 10)
    assert second != first
    lease = kubernetes_api.kubectl(
        "get", "lease", "controller", "-o", "jsonpath={.spec.holderIdentity}"
    )
    assert lease.stdout == second
    await candidates.stop()
    await api.close()
