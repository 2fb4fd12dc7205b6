"""Every fault during every step of a deployment's life, through the whole control plane.

Seven deployments stand in a ring, each one step of its life behind the next. A round lets all of them
take their next step at once, and one fault hits: seven steps under one fault. So the rounds together are
the matrix of all faults and all steps. After each, everything must have converged: nothing is lost,
nothing is there twice, and no release is stuck. A fault that breaks the ring fails alone: for the
next one the ring is put up anew. Moments are drawn from a seed; set EXO_CHAOS_SEED to
another number to draw others.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from exo_inference.platforms.kubernetes.names import release_name
from exo_inference.platforms.kubernetes.nodes import takes_pods
from scripts.kubernetes import binaries
from scripts.kubernetes.client import ApiError
from scripts.kubernetes.simulated import SimulatedCluster
from tests.kubernetes.ring import Ring
from tests.kubernetes.simulated_plane import (
    Controller,
    SimulatedPlane,
    is_alive,
    send,
    wait_for,
)
from tests.kubernetes.stand import Stand
from tests.skipping import skip_check

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(400)]

STAGE = Path(__file__).parent / "stages" / "engine-crashes.yaml"
FAULT_SPREAD_SECONDS = 1.5
SAMPLE_SECONDS = 0.25


# -- faults


def kill_controller(ring: Ring) -> None:
    ring.plane.kill(leader_of(ring))


def restart_api_server(ring: Ring) -> None:
    ring.plane.cluster.server.restart()


def pause_etcd(ring: Ring) -> None:
    ring.plane.cluster.server.pause_etcd()
    time.sleep(ring.dice.uniform(3, 6))
    ring.plane.cluster.server.resume_etcd()


def drop_watches(ring: Ring) -> None:
    for _ in range(8):
        for controller in ring.plane.controllers:
            controller.proxy.cut()
        time.sleep(ring.dice.uniform(0.1, 0.8))


def kill_helm(ring: Ring) -> None:
    """Kill a Helm of every deployment between its first record and its last, both of a roll-back."""
    plane, deadline = ring.plane, time.monotonic() + 60
    killed: set[tuple[str, str]] = set()
    stopped: dict[int, tuple[str, str]] = {}

    def stop_new() -> None:
        for controller in plane.controllers:
            for pid, (_, verb, release, *_rest) in controller.children():
                if pid not in stopped and (release, verb) not in killed:
                    send(pid, signal.SIGSTOP)
                    stopped[pid] = (release, verb)

    while missing := _half_way(ring) - killed - _without_helm(ring):
        assert time.monotonic() < deadline, f"never half-way: {missing}"
        stop_new()
        for pid, (release, verb) in list(stopped.items()):
            if plane.kill_helm_half_way(pid, release):
                killed.add((release, verb))
            if not is_alive(pid):
                del stopped[pid]
            stop_new()  # a Helm takes a tenth of a second: one that runs freely would be missed
        time.sleep(0.002)
    for pid in stopped:
        send(pid, signal.SIGCONT)


def _half_way(ring: Ring) -> set[tuple[str, str]]:
    """Return the releases with the verbs of Helm that the steps take."""
    verbs = {
        "bad update": ("upgrade", "rollback"),
        "delete": ("uninstall",),
    }
    return {
        (release_name(life.uid), verb)
        for life, before in zip(ring.lives, ring.before, strict=True)
        for verb in (verbs.get(life.step, ("upgrade",)) if life.step != before else ("not yet",))
    }


def _without_helm(ring: Ring) -> set[tuple[str, str]]:
    """Return the creates that are whole and had no Helm: their form was known, and the leader wrote them itself."""
    found = set()
    for life in ring.lives:
        if life.step != "create":
            continue
        release = release_name(life.uid)
        path = ring.plane.path("secrets", "v1", f"sh.helm.release.v1.{release}.v1")
        with contextlib.suppress(ApiError):
            record = ring.plane.api.request("GET", path)
            if record["metadata"]["labels"]["status"] == "deployed":
                found.add((release, "upgrade"))
    return found


def pause_leader(ring: Ring) -> None:
    paused = leader_of(ring)
    with contextlib.suppress(AssertionError):  # all of its Helms may have ended
        wait_for(lambda: list(paused.children()), "a Helm", 1, pause=0.002)
    ring.plane.pause(paused)
    depose(ring, paused)
    time.sleep(ring.dice.uniform(0, 1))
    ring.plane.resume(paused)


def take_lease(ring: Ring) -> None:
    path = ring.plane.path("leases", "coordination.k8s.io/v1", "exo-controller")
    body = {"spec": {"holderIdentity": "somebody-else"}}
    ring.plane.api.request("PATCH", path, body, "application/merge-patch+json")


def cut_leader_off(ring: Ring) -> None:
    cut_off = leader_of(ring)
    cut_off.proxy.shut()
    depose(ring, cut_off)
    cut_off.proxy.open()


def delete_node(ring: Ring) -> None:
    """Delete the node that all pods are on; another is there, as a deployment without any node is refused."""
    api, gone = ring.plane.api, ring.plane.nodes[-1]
    path = f"/api/v1/nodes/{ring.plane.add_node()}"
    wait_for(lambda: takes_pods(api.request("GET", path)), "another node", 60)
    api.request("DELETE", f"/api/v1/nodes/{gone}")


FAULTS = {
    "controller killed": kill_controller,
    "API server restarted": restart_api_server,
    "etcd paused": pause_etcd,
    "watches dropped": drop_watches,
    "Helm killed half-way": kill_helm,
    "leader paused": pause_leader,
    "Lease taken": take_lease,
    "leader cut off": cut_leader_off,
    "node deleted": delete_node,
}


def depose(ring: Ring, former: Controller) -> None:
    """Wait until another leads; from then on the former leader must start nothing."""
    wait_for(lambda: ring.plane.holder() not in ("", former.name), "another leads", 40)
    ring.deposed = (former.name, time.monotonic())


def leader_of(ring: Ring) -> Controller:
    found = wait_for(ring.plane.leader, "one leads")
    assert isinstance(found, Controller)
    return found


# -- the matrix


@contextlib.contextmanager
def _running_plane(number: int) -> Iterator[SimulatedPlane]:
    """Start a plane; in the end keep its logs in EXO_CHAOS_LOGS, if that is set."""
    with tempfile.TemporaryDirectory(prefix="exo-chaos-") as directory:
        try:
            cluster = SimulatedCluster(Path(directory) / "cluster", [STAGE])
        except binaries.ProgramsMissing as exc:
            skip_check(str(exc))
        with cluster:
            plane = SimulatedPlane(cluster, Path(directory))
            try:
                plane.start()
                yield plane
            finally:
                plane.close()
                if kept := os.environ.get("EXO_CHAOS_LOGS"):
                    for log in Path(directory).rglob("*.log"):
                        (Path(kept) / f"{number}-{log.name}").write_bytes(log.read_bytes())


@contextlib.contextmanager
def _prepared_ring(number: int) -> Iterator[Ring]:
    """Put a ring up on a plane of its own."""
    seed = os.environ.get("EXO_CHAOS_SEED", "7")
    print(f"EXO_CHAOS_SEED={seed}")
    with _running_plane(number) as plane:
        ring = Ring(plane, random.Random(seed))
        ring.prepare()
        yield ring


@pytest.fixture(scope="module")
def stand() -> Iterator[Stand[Ring]]:
    stand = Stand(_prepared_ring)
    yield stand
    stand.close()


@pytest.mark.parametrize("fault", FAULTS)
def test_every_step_converges(stand: Stand[Ring], fault: str) -> None:
    with stand.lend() as ring:
        live_through(ring, fault)


def live_through(ring: Ring, fault: str) -> None:
    """Let all deployments take their next step under one fault, and check what must be so afterwards."""
    plane, began = ring.plane, time.monotonic()
    plane.helm_runs.clear()
    ring.before, ring.deposed = [life.step for life in ring.lives], None
    ring.wait_converged(ring.lives)
    ring.check_promises()
    stop = threading.Event()
    sampler = threading.Thread(target=_sample, args=(ring, stop), daemon=True)
    hit_after = ring.dice.uniform(0.2, FAULT_SPREAD_SECONDS)
    if FAULTS[fault] is kill_helm:
        hit_after = 0.0  # the first Helms would have ended
    try:
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(ring.take_steps, ring.lives)
            sampler.start()
            time.sleep(hit_after)
            FAULTS[fault](ring)
            hit = time.monotonic()
            writing.result()
        ring.wait_converged(ring.lives)
    finally:
        stop.set()
        sampler.join()
        plane.mend()
    took = time.monotonic() - hit
    print(
        f"{fault}: after {hit_after:.1f} s; converged {took:.1f} s later; {time.monotonic() - began:.0f} s"
    )
    ring.check_promises()
    assert plane.ended == [], "controllers ended by themselves"
    assert overlapping(plane) == []
    assert started_by_deposed(ring) == []
    if fault != "node deleted":
        for life in ring.lives:
            assert life.least_ready in (None, 3), f"{life.step}: {life.least_ready} of 3 were ready"


def _sample(ring: Ring, stop: threading.Event) -> None:
    while not stop.wait(SAMPLE_SECONDS):
        try:
            ring.sample()
        except (OSError, ApiError):
            continue


def started_by_deposed(ring: Ring) -> list[str]:
    """Return what a former leader has started since another leads."""
    if ring.deposed is None or ring.plane.holder() == ring.deposed[0]:
        return []
    name, since = ring.deposed
    late = [run for run in ring.plane.helm_runs if run.controller == name and run.first > since]
    return [f"{run.verb} {run.release}" for run in late]


def overlapping(plane: SimulatedPlane) -> list[str]:
    """Return the releases on which two Helms were at work at the same time."""
    runs = sorted(plane.helm_runs, key=lambda run: run.first)
    return [
        f"{one.release}: {one.verb} by {one.controller}, {two.verb} by {two.controller}"
        for index, one in enumerate(runs)
        for two in runs[index + 1 :]
        if one.release == two.release and two.first < one.last
    ]
