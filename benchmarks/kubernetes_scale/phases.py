"""What is measured, one phase after the other: burst, rest, steady changes, restart, fail-over.

Each function takes the plane as the one before has left it, and returns plain figures.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from benchmarks.kubernetes_scale.applied import Applied, AppliedCharts
from benchmarks.kubernetes_scale.plane import (
    GPU_TYPE,
    MODEL,
    Controller,
    Plane,
    wait_for,
)
from benchmarks.kubernetes_scale.report import (
    Burst,
    ControllerFigures,
    FailOver,
    Quantiles,
    Rest,
    Restart,
    Steady,
)
from benchmarks.kubernetes_scale.usage import Cpu, Meter, memory_mib
from exo_inference import Client

Say = Callable[[str, int, int], None]
"""Told of the progress: what, how much of it, of how much."""

_CREATORS = 8
"""Clients that create at the same time in the burst, half of them at each controller."""

_LIST_SECONDS, _SHOW_SECONDS = 2.0, 0.25
"""How often the API is looked at meanwhile, as users and dashboards do."""

_APPLY_SECONDS = 600.0
_REST_SHOWS, _REST_LISTS = 200, 50


@dataclass
class Latencies:
    """Seconds of API calls, by what they were."""

    seconds: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    @contextmanager
    def of(self, what: str) -> Iterator[None]:
        """Measure the block."""
        started = time.monotonic()
        yield
        self.seconds[what].append(time.monotonic() - started)

    def quantiles(self) -> dict[str, Quantiles]:
        """Return them reduced."""
        return {what: Quantiles.of(found) for what, found in sorted(self.seconds.items())}


class Deployments:
    """The deployments that were made, and calls on them that are measured."""

    def __init__(self, plane: Plane, applied: AppliedCharts) -> None:
        self._plane = plane
        self._applied = applied
        self._numbers = itertools.count(1)
        self.uids: list[str] = []
        self.replicas: dict[str, int] = {}

    def create(self, client: Client, latencies: Latencies) -> tuple[str, float]:
        """Create one; return its uid and when it was accepted."""
        name = f"chat-{next(self._numbers):04}"
        with latencies.of("create"):
            made = client.deployments.create(name, model=MODEL, gpu_type=GPU_TYPE, engine="exo")
        accepted = time.monotonic()
        assert made.reference is not None, "a create names what it made"
        uid = made.reference.id
        self.uids.append(uid)
        self.replicas[uid] = 1
        return uid, accepted

    def scale(
        self, client: Client, uid: str, latencies: Latencies
    ) -> tuple[Applied | None, int, float]:
        """Scale one from 1 to 2 replicas or back; return how it was, what is wanted, and when."""
        before = self._applied.last(uid)
        wanted = 3 - self.replicas[uid]
        with latencies.of("scale"):
            client.deployments.scale(uid, wanted)
        self.replicas[uid] = wanted
        return before, wanted, time.monotonic()

    def wait_applied(self, uid: str, before: Applied | None, wanted: int, accepted: float) -> float:
        """Return after how many seconds what was accepted is applied."""
        found = self._applied.wait(uid, before, wanted, _APPLY_SECONDS)
        # The watch may tell before the answer has arrived: then it took no time at all.
        return max(0.0, found.at - accepted)

    def wait_settled(self, say: Say) -> float:
        """Wait until all replicas of all are ready; return for how many seconds."""
        started = time.monotonic()
        while (done := self._applied.num_settled()) < len(self.uids):
            say("replicas ready", done, len(self.uids))
            if time.monotonic() > started + _APPLY_SECONDS:
                raise TimeoutError(f"only {done} of {len(self.uids)} became ready")
            time.sleep(0.2)
        self._plane.wait_idle()
        return time.monotonic() - started


def all_pids(plane: Plane) -> dict[str, int]:
    """Return every process that takes part, by name; controllers by what they do."""
    pids = {role: found.process.pid for role, found in plane.wait_for_roles().items()}
    return {**pids, **plane.cluster.pids(), "this benchmark": os.getpid()}


@contextmanager
def looking(plane: Plane, deployments: Deployments, latencies: Latencies) -> Iterator[None]:
    """Show and list deployments now and then until the block ends."""
    stop = threading.Event()

    def look(client: Client, what: str, pause: float) -> None:
        for turn in itertools.count():
            if stop.wait(pause):
                return
            with latencies.of(what):
                if what == "list":
                    client.deployments.list()
                elif deployments.uids:
                    client.deployments.get(deployments.uids[turn % len(deployments.uids)])

    clients = [plane.new_client(each) for each in plane.wait_for_roles().values()]
    threads = [
        threading.Thread(target=look, args=(client, what, pause), daemon=True)
        for client in clients
        for what, pause in (("show", 2 * _SHOW_SECONDS), ("list", 2 * _LIST_SECONDS))
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        for client in clients:
            client.close()


def burst(plane: Plane, deployments: Deployments, num: int, say: Say) -> Burst:
    """Create many as fast as the API takes them, and wait until all are applied."""
    latencies, started = Latencies(), time.monotonic()
    meter = Meter(all_pids(plane))
    with looking(plane, deployments, latencies):
        made = _create_all(plane, deployments, num, latencies, say)
        accepted_seconds = time.monotonic() - started
        waits = []
        for number, (uid, accepted) in enumerate(made):
            waits.append(deployments.wait_applied(uid, None, 1, accepted))
            say("charts applied", number + 1, num)
    applied_seconds = time.monotonic() - started
    used = meter.used()
    return Burst(
        count=num,
        accepted_seconds=accepted_seconds,
        applied_seconds=applied_seconds,
        applied=Quantiles.of(waits),
        latencies=latencies.quantiles(),
        cpu_seconds_each={name: cpu.total / num for name, cpu in _with_helm(used).items()},
        settled_seconds=applied_seconds + deployments.wait_settled(say),
    )


def _create_all(
    plane: Plane, deployments: Deployments, num: int, latencies: Latencies, say: Say
) -> list[tuple[str, float]]:
    """Create from several clients at a time; return uids and when they were accepted, in order."""
    made: list[tuple[str, float]] = []
    left = iter(range(num))  # shared: a client takes the next when it has its answer
    stop = threading.Event()

    def work(controller: Controller) -> None:
        client = plane.new_client(controller)
        while not stop.is_set() and next(left, None) is not None:
            made.append(deployments.create(client, latencies))
        client.close()

    with ThreadPoolExecutor(_CREATORS) as pool:
        futures = [pool.submit(work, plane.controllers[n % 2]) for n in range(_CREATORS)]
        try:
            while not all(future.done() for future in futures):
                say("creates accepted", len(made), num)
                time.sleep(0.5)
        finally:
            stop.set()
        for future in futures:
            future.result()
    return sorted(made, key=lambda each: each[1])


def rest(plane: Plane, deployments: Deployments, seconds: float, say: Say) -> Rest:
    """Measure what it costs that they are there, then how fast the API answers."""
    meter = Meter(all_pids(plane))
    while meter.seconds < seconds:
        say("at rest", int(meter.seconds), int(seconds))
        time.sleep(min(1.0, seconds))
    cores, measured = meter.cores(), meter.seconds
    latencies = Latencies()
    for turn in range(_REST_SHOWS):
        with latencies.of("show"):
            plane.clients[turn % 2].deployments.get(deployments.uids[turn % len(deployments.uids)])
    for turn in range(_REST_LISTS):
        with latencies.of("list"):
            plane.clients[turn % 2].deployments.list()
    return Rest(measured, _figures(plane, cores), _totals(cores), latencies.quantiles())


def steady(plane: Plane, deployments: Deployments, rate: float, num: int, say: Say) -> Steady:
    """Change at a steady rate: in turns a deployment is scaled, and another one is created."""
    latencies = Latencies()
    meter = Meter(all_pids(plane))
    waits: dict[str, list[Future[float]]] = {"create": [], "scale": []}
    existing = itertools.cycle(list(deployments.uids))
    clients = plane.clients
    with looking(plane, deployments, latencies), ThreadPoolExecutor(num) as pool:

        def change(number: int) -> float:
            client = clients[number // 2 % 2]
            if number % 2:
                uid, accepted = deployments.create(client, latencies)
                return deployments.wait_applied(uid, None, 1, accepted)
            uid = next(existing)
            before, wanted, accepted = deployments.scale(client, uid, latencies)
            return deployments.wait_applied(uid, before, wanted, accepted)

        started = time.monotonic()
        for number in range(num):
            time.sleep(max(0.0, started + number / rate - time.monotonic()))
            waits["create" if number % 2 else "scale"].append(pool.submit(change, number))
            say(f"{rate:g} changes per second", number + 1, num)
        changed = time.monotonic() - started
        found = {what: [wait.result() for wait in some] for what, some in waits.items()}
    cores = meter.cores()
    figures = Steady(
        rate=rate,
        count=num,
        seconds=changed,
        applied={
            **{what: Quantiles.of(some) for what, some in found.items()},
            "all": Quantiles.of([*found["create"], *found["scale"]]),
        },
        controllers=_figures(plane, cores),
        cores=_totals(_with_helm(cores)),
        latencies=latencies.quantiles(),
    )
    deployments.wait_settled(say)
    return figures


def restart(plane: Plane, deployments: Deployments, say: Say) -> Restart:
    """Stop both controllers in order, start one: how long until it answers, until it has looked."""
    say("restart", 0, 3)
    for controller in plane.controllers:
        controller.process.stop()
    alone = plane.controllers[0]
    started = time.monotonic()
    alone.process.start()
    num_listed = _first_list(plane, alone)
    answers = time.monotonic() - started
    assert num_listed == len(deployments.uids), "the first answer is complete"
    say("restart", 1, 3)
    wait_for(lambda: _has_looked(alone, len(deployments.uids)))
    reconciled = time.monotonic() - started
    say("restart", 2, 3)
    plane.controllers[1].process.start()
    _first_list(plane, plane.controllers[1])
    say("restart", 3, 3)
    return Restart(answers, reconciled)


def fail_over(plane: Plane, deployments: Deployments, times: int, say: Say) -> FailOver:
    """Kill the leader and at once ask the other for a change: when is it applied."""
    found = []
    for turn in range(times):
        say("fail-over", turn, times)
        plane.wait_idle()
        leader, standby = plane.wait_for_roles().values()
        started = time.monotonic()
        os.kill(leader.process.pid, signal.SIGKILL)
        uid = deployments.uids[turn]
        before, wanted, _ = deployments.scale(plane.client(standby), uid, Latencies())
        found.append(deployments.wait_applied(uid, before, wanted, started))
        leader.process.start()
        _first_list(plane, leader)
    say("fail-over", times, times)
    return FailOver(tuple(found))


def _first_list(plane: Plane, controller: Controller) -> int:
    """Wait for a controller that was just started to list deployments; return how many."""
    wait_for(controller.listens)
    return len(plane.client(controller).deployments.list())


def _has_looked(controller: Controller, num: int) -> bool:
    """Whether it leads, has looked at everything at least once, and nothing waits."""
    if not controller.is_leading:
        return False
    passes = controller.metric("exo_controller_reconcile_seconds_count")
    return passes > num and controller.metric("exo_controller_waiting_objects") == 0


def _figures(plane: Plane, cores: dict[str, Cpu]) -> dict[str, ControllerFigures]:
    roles = plane.wait_for_roles()
    return {
        role: ControllerFigures(
            cores=cores[role].own,
            helm_cores=cores[role].children,
            memory_mib=memory_mib(controller.process.pid),
        )
        for role, controller in roles.items()
    }


def _with_helm(cpu: dict[str, Cpu]) -> dict[str, Cpu]:
    """Tell Helm from the controller that starts it."""
    leader, others = cpu["leader"], {name: each for name, each in cpu.items() if name != "leader"}
    return {"leader": Cpu(leader.own, 0.0), "Helm": Cpu(0.0, leader.children), **others}


def _totals(cpu: dict[str, Cpu]) -> dict[str, float]:
    return {name: each.total for name, each in cpu.items()}
