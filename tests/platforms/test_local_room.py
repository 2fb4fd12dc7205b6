"""Replicas on a machine with little memory: real processes, and files that tell of a small machine."""

from __future__ import annotations

from pathlib import Path

from exo_inference.platforms.base import ObservedDeployment, ReplicaPhase
from exo_inference.platforms.local import LocalPlatform
from exo_inference.platforms.local.host import Host
from exo_inference.platforms.replica_memory import MIB, ReplicaNeed
from tests.platforms.conftest import FAST, FakeEngine, Rig

NEED = ReplicaNeed(400 * MIB, 100 * MIB, 400 * MIB)


class FakeMachine:
    """What a machine of 16 GiB tells of itself; the replicas on it are real."""

    def __init__(self, root: Path, rig: Rig, free_mib: int) -> None:
        self.root = root
        (root / "proc/self").mkdir(parents=True)
        (root / "proc/pressure").mkdir()
        (root / "proc/self/cgroup").write_text("0::/\n")
        self.set_free(free_mib)
        rig.platform = LocalPlatform(
            rig.state_dir,
            settings=FAST,
            engine=FakeEngine(),  # type: ignore[arg-type]
            environment=rig.environment,
            host=Host(root, cores=2),
        )
        rig.platform._settings = FAST

    def set_free(self, mib: int) -> None:
        """Let so much be free, above the 512 MiB that stay with the control plane."""
        text = f"MemTotal: {16 * 2**20} kB\nMemAvailable: {(mib + 512) * 1024} kB\n"
        (self.root / "proc/meminfo").write_text(text)

    def set_pressure(self, full: float) -> None:
        text = (
            f"some avg10=90 avg60=0 avg300=0 total=0\nfull avg10={full} avg60=0 avg300=0 total=0\n"
        )
        (self.root / "proc/pressure/memory").write_text(text)


def count(observed: ObservedDeployment, phase: ReplicaPhase) -> int:
    return sum(replica.phase is phase for replica in observed.replicas)


def is_starting(observed: ObservedDeployment) -> bool:
    """Whether the last look at the machine is still that of a start."""
    return any("its turn" in replica.details for replica in observed.replicas)


async def test_what_does_not_fit_waits_and_says_for_what(rig: Rig, tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path / "m", rig, free_mib=1200)
    desired = rig.desired(50, need=NEED)

    def two_ready(observed: ObservedDeployment) -> bool:
        ready, pending = (
            count(observed, each) for each in (ReplicaPhase.READY, ReplicaPhase.PENDING)
        )
        return ready == 2 and pending == 48 and not is_starting(observed)

    observed = await rig.until(desired, two_ready)
    waiting = [r for r in observed.replicas if r.phase is ReplicaPhase.PENDING]
    assert all(r.details.startswith("waiting for memory: 500 MiB needed") for r in waiting)
    assert len(rig.processes()) == 4, "two engines with their shims"
    machine.set_free(1800)
    observed = await rig.until(desired, lambda o: count(o, ReplicaPhase.READY) == 3)
    assert count(observed, ReplicaPhase.PENDING) == 47


async def test_replicas_start_a_few_at_a_time(rig: Rig, tmp_path: Path) -> None:
    FakeMachine(tmp_path / "m", rig, free_mib=8000)
    desired = rig.desired(5, "--start-seconds=0.4", need=NEED)
    most = 0

    def look(observed: ObservedDeployment) -> None:
        nonlocal most
        most = max(most, count(observed, ReplicaPhase.STARTING))
        for replica in observed.replicas:
            if replica.phase is ReplicaPhase.PENDING:
                assert "waiting for its turn: 2 replicas are starting" in replica.details

    await rig.until_ready(desired, each=look)
    assert most == 2


async def test_no_replica_starts_under_pressure(rig: Rig, tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path / "m", rig, free_mib=8000)
    machine.set_pressure(40.0)
    observed = await rig.until(rig.desired(need=NEED), lambda o: bool(o.replicas))
    assert "the machine is short of memory" in observed.replicas[0].details
    assert not rig.processes()
    machine.set_pressure(0.0)
    await rig.until_ready(rig.desired(need=NEED))


async def test_a_paused_platform_starts_nothing_and_deletes(rig: Rig) -> None:
    rig.state_dir.paused_file.touch()
    observed = await rig.until(rig.desired(2), lambda o: len(o.replicas) == 2)
    assert all("started with --paused" in replica.details for replica in observed.replicas)
    assert await rig.platform.delete(rig.desired().uid)
    observed = await rig.until(rig.desired(2), lambda o: len(o.replicas) == 2)
    rig.state_dir.paused_file.unlink()
    await rig.until_ready(rig.desired(2))


async def test_an_update_without_room_for_another_replaces_in_place(
    rig: Rig, tmp_path: Path
) -> None:
    FakeMachine(tmp_path / "m", rig, free_mib=1200)
    first = rig.desired(2, "--label=a", need=NEED)
    await rig.until_ready(first)
    await rig.until_ready(rig.desired(2, "--label=b", need=NEED))


async def test_the_engine_is_told_the_size_of_its_cache(rig: Rig, tmp_path: Path) -> None:
    from exo_inference.engines import ReplicaCommand
    from exo_inference.engines.exo import ExoEngine

    command = ReplicaCommand(Path("/m"), "m", "s", "cpu", 1, ("--x",), kv_cache_bytes=7)
    argv = ExoEngine(Path("/bin/exo-engine")).command(command)
    assert argv[-3:] == ("--kv-cache-memory-bytes", "7", "--x"), "the user's come last, and win"
