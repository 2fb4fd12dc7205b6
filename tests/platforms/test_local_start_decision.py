"""When a replica may start on a machine that others share: tables, and many of them at once."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exo_inference.host_memory import HostMemory, Pressure
from exo_inference.platforms.local.host import Host, HostReplica, HostView
from exo_inference.platforms.local.replica_dir import Launch, Process, ReplicaFacts, ReplicaRecord
from exo_inference.platforms.local.settings import LocalPlatformSettings
from exo_inference.platforms.local.start_decision import Go, Wait, decide_start, max_starts
from exo_inference.platforms.replica_memory import MIB, ReplicaNeed, reserve_bytes
from exo_inference.state_dir import process_start_ticks

GIB = 2**30
SETTINGS = LocalPlatformSettings()
NEED = ReplicaNeed(400 * MIB, 100 * MIB, 400 * MIB)
FREE = HostView(HostMemory(24 * GIB, 20 * GIB), num_cores=4)


def starting(name: str, seconds: float = 1.0, *, simulated: bool = False) -> HostReplica:
    return HostReplica(
        name, "u", NEED, True, claim_bytes=500 * MIB, seconds_starting=seconds, simulated=simulated
    )


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        pytest.param(FREE, "", id="free"),
        pytest.param(replace(FREE, paused=True), "started with --paused", id="paused"),
        pytest.param(replace(FREE, pressure=Pressure(80, 9.9)), "", id="some pressure"),
        pytest.param(
            replace(FREE, pressure=Pressure(80, 12.3)), "stood still for 12 %", id="pressure"
        ),
        pytest.param(replace(FREE, replicas=(starting("a"),)), "", id="one starts"),
        pytest.param(
            replace(FREE, replicas=(starting("a"), starting("b"))),
            "waiting for its turn: 2 replicas are starting, 2 at a time on 4 cores",
            id="two start",
        ),
        pytest.param(
            replace(FREE, replicas=(starting("a", 200), starting("b"))), "", id="one takes long"
        ),
        pytest.param(
            replace(FREE, replicas=(starting("a", 9, simulated=True), starting("b"))),
            "",
            id="one only pretends to load",
        ),
        pytest.param(
            replace(FREE, memory=HostMemory(24 * GIB, 768 * MIB + 499 * MIB)),
            "waiting for memory: 500 MiB needed, 499 MiB of this machine's 24.0 GiB are left",
            id="no memory",
        ),
        pytest.param(
            replace(
                FREE,
                memory=HostMemory(24 * GIB, 768 * MIB + 900 * MIB),
                replicas=(replace(starting("a"), held_bytes=50 * MIB),),
            ),
            "450 MiB of this machine's",
            id="memory that another one was promised",
        ),
    ],
)
def test_a_replica_starts_or_says_what_it_waits_for(view: HostView, expected: str) -> None:
    decision = decide_start(view, "r", NEED, SETTINGS)
    if expected:
        assert isinstance(decision, Wait)
        assert expected in decision.reason
    else:
        assert isinstance(decision, Go)


@pytest.mark.parametrize(("cores", "expected"), [(1, 2), (2, 2), (8, 4), (64, 32)])
def test_starts_go_by_cores(cores: int, expected: int) -> None:
    assert max_starts(cores) == expected


def test_a_cache_leaves_room_for_those_that_wait() -> None:
    alone = decide_start(FREE, "r", NEED, SETTINGS)
    assert alone == Go(400 * MIB, 800 * MIB)
    waiting = tuple(HostReplica(f"w{number}", "u", NEED) for number in range(37))
    crowded = decide_start(replace(FREE, replicas=waiting), "r", NEED, SETTINGS)
    assert isinstance(crowded, Go)
    assert 100 * MIB <= crowded.cache_bytes < 110 * MIB


@settings(max_examples=30)
@given(st.sampled_from([50, 300]), st.integers(0, 200 * GIB), st.integers(1, 32), st.data())
def test_any_number_of_replicas_never_takes_more_than_the_machine_has(
    count: int, free: int, cores: int, data: st.DataObject
) -> None:
    """Replicas start, take what they were promised or less, and become ready, until nothing moves."""
    total = 256 * GIB
    touched = data.draw(st.floats(0, 1))
    replicas = {f"r{n}": HostReplica(f"r{n}", "u", NEED) for n in range(count)}
    most_at_once = 0
    while True:
        held = sum(t.held_bytes for t in replicas.values())
        view = HostView(
            HostMemory(total, max(0, free - held)),
            num_cores=cores,
            replicas=tuple(replicas.values()),
        )
        moved = False
        for name, replica in list(replicas.items()):
            if replica.running:
                continue
            view = replace(view, replicas=tuple(replicas.values()))
            decision = decide_start(view, name, NEED, SETTINGS)
            if isinstance(decision, Wait):
                break
            moved = True
            replicas[name] = replace(
                replica, running=True, claim_bytes=decision.memory_bytes, seconds_starting=0.0
            )
        now = [t for t in replicas.values() if t.seconds_starting is not None]
        most_at_once = max(most_at_once, len(now))
        for replica in now:
            replicas[replica.name] = replace(
                replica, seconds_starting=None, held_bytes=int(replica.claim_bytes * touched)
            )
        claimed = sum(t.claim_bytes for t in replicas.values() if t.running)
        assert claimed <= max(0, free - reserve_bytes(total))
        if not moved:
            break
    assert most_at_once <= max_starts(cores)
    fitting = max(0, free - reserve_bytes(total)) // NEED.least_bytes
    assert sum(t.running for t in replicas.values()) == min(count, fitting)


@pytest.mark.parametrize("jump", [-3600.0, 3600.0], ids=["set back", "set forward"])
def test_how_long_a_start_takes_does_not_depend_on_the_clock(jump: float) -> None:
    spawned_at = time.time() - jump
    launch = Launch(1, 0, "boot", spawned_at, ("x",), {}, 60, 1000, 3)
    ticks = process_start_ticks(os.getpid())
    process = Process(1, os.getpid(), ticks, os.getpid(), ticks, spawned_at)
    record = ReplicaRecord("r", "u", "chat", "s", "cpu", 1, 900.0)
    facts = ReplicaFacts(record, True, launch, process, None, False, 0)
    (replica,) = Host().look([facts], paused=False).replicas
    assert replica.seconds_starting is not None
    assert 0 < replica.seconds_starting < 3000
