"""The rollout planner: single steps in plain words, and whole rollouts in simulation."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exo_inference.platforms.local.rollout import RolloutReplica, RolloutStep, decide_rollout


def world(text: str) -> list[RolloutReplica]:
    """Read `new:ready old:starting new:draining` into replicas, oldest first."""
    replicas = []
    for age, word in enumerate(text.split()):
        spec, state = word.split(":")
        replicas.append(
            RolloutReplica(
                name=f"r{age}",
                current=spec == "new",
                ready=state == "ready",
                draining=state == "draining",
                created_at=float(age),
                waiting=state == "waiting",
            )
        )
    return replicas


@pytest.mark.parametrize(
    ("there", "wanted", "free_slots", "drain", "num_starts"),
    [
        pytest.param("", 2, None, (), 2, id="first deployment starts all at once"),
        pytest.param("", 2, 0, (), 2, id="without a free GPU they are created and wait"),
        pytest.param("new:ready new:ready", 2, None, (), 0, id="nothing to do"),
        pytest.param("new:starting new:ready", 2, None, (), 0, id="a starting one is waited for"),
        pytest.param("new:ready", 3, None, (), 2, id="scale up starts what is missing"),
        pytest.param(
            "new:ready new:ready new:ready", 1, None, ("r2", "r1"), 0, id="scale down: youngest go"
        ),
        pytest.param(
            "new:ready new:starting new:ready new:starting",
            2,
            None,
            ("r3", "r1"),
            0,
            id="scale down: those not ready go first, newest of them first",
        ),
        pytest.param("new:ready new:starting", 0, None, ("r1", "r0"), 0, id="scale to zero"),
        pytest.param("old:ready", 0, None, ("r0",), 0, id="scale to zero takes old ones too"),
        pytest.param("old:ready", 1, None, (), 1, id="update starts a surge replica first"),
        pytest.param("old:ready old:ready", 2, None, (), 1, id="update surges by one, not by all"),
        pytest.param("old:ready new:starting", 1, None, (), 0, id="old one serves until new is up"),
        pytest.param(
            "old:ready new:ready", 1, None, ("r0",), 0, id="old one goes once the new one serves"
        ),
        pytest.param(
            "old:draining old:ready new:ready",
            2,
            None,
            (),
            0,
            id="a draining one still holds its memory, so the next waits for it",
        ),
        pytest.param(
            "old:ready old:starting", 2, None, ("r1",), 1, id="an old one that does not serve goes"
        ),
        pytest.param(
            "old:starting", 1, None, ("r0",), 1, id="an old one that never served is replaced"
        ),
        pytest.param(
            "old:ready old:ready new:starting", 2, None, (), 0, id="old ones stay while new fail"
        ),
        pytest.param("old:ready old:ready", 2, 1, (), 1, id="one free GPU is enough to surge"),
        pytest.param(
            "old:ready old:ready", 2, 0, ("r0",), 1, id="without a free GPU one is replaced"
        ),
        pytest.param(
            "old:draining old:ready new:starting",
            2,
            0,
            (),
            0,
            id="without a free GPU the second waits for the first",
        ),
        pytest.param(
            "old:ready new:starting", 2, 0, (), 0, id="and goes on only when the first serves"
        ),
        pytest.param("old:ready new:ready", 2, 0, ("r0",), 1, id="then the second is replaced"),
        pytest.param(
            "old:ready old:ready old:ready", 1, None, ("r0", "r1"), 0, id="update and scale down"
        ),
        pytest.param("old:ready", 3, None, (), 3, id="update and scale up"),
        pytest.param(
            "new:draining new:draining new:ready", 3, None, (), 1, id="room is kept for the leaving"
        ),
    ],
)
def test_next_step(
    there: str, wanted: int, free_slots: int | None, drain: tuple[str, ...], num_starts: int
) -> None:
    assert decide_rollout(world(there), wanted, free_slots) == RolloutStep(drain, num_starts)


@pytest.mark.parametrize(
    ("there", "drain"),
    [
        pytest.param("old:ready old:ready new:waiting", ("r0",), id="an old one gives its GPUs"),
        pytest.param("old:ready new:starting new:waiting", (), id="not before the first serves"),
        pytest.param("old:ready new:ready new:waiting", ("r0",), id="then the next"),
        pytest.param("old:draining old:ready new:waiting", (), id="those that come are waited for"),
    ],
)
def test_an_old_one_goes_for_a_new_one_that_waits_for_its_gpus(
    there: str, drain: tuple[str, ...]
) -> None:
    """New replicas need more GPUs than old ones, or more replicas are wanted than there are GPUs."""
    assert decide_rollout(world(there), 3, 0).drain == drain


@dataclass
class Simulation:
    """A machine on which replicas start, fail and drain; GPUs are limited unless None."""

    num_gpus: int | None
    replicas: list[RolloutReplica] = field(default_factory=list)
    placed: set[str] = field(default_factory=set)
    broken: bool = False
    born: int = 0

    @property
    def free(self) -> int | None:
        if self.num_gpus is None:
            return None
        waiting = [r for r in self.replicas if r.name not in self.placed and not r.draining]
        return max(0, self.num_gpus - len(self.placed) - len(waiting))

    @property
    def num_ready(self) -> int:
        return sum(1 for r in self.replicas if r.ready and not r.draining)

    def execute(self, step: RolloutStep) -> None:
        self.replicas = [
            replace(r, draining=r.draining or r.name in step.drain) for r in self.replicas
        ]
        for _ in range(step.num_starts):
            self.born += 1
            name = f"r{self.born}"
            self.replicas.append(RolloutReplica(name, True, False, False, float(self.born)))
        self.place()

    def place(self) -> None:
        for replica in self.replicas:
            fits = self.num_gpus is None or len(self.placed) < self.num_gpus
            if fits and not replica.draining:
                self.placed.add(replica.name)

    def finish_drain(self, chance: int) -> None:
        draining = [r for r in self.replicas if r.draining]
        if draining:
            gone = draining[chance % len(draining)]
            self.replicas.remove(gone)
            self.placed.discard(gone.name)
            self.place()

    def finish_start(self, chance: int) -> None:
        starting = [
            r
            for r in self.replicas
            if not (r.ready or r.draining) and r.name in self.placed and not self.broken
        ]
        if starting:
            chosen = starting[chance % len(starting)]
            self.replicas[self.replicas.index(chosen)] = replace(chosen, ready=True)

    def crash(self, chance: int) -> None:
        serving = [r for r in self.replicas if r.ready and not r.draining]
        if serving:
            chosen = serving[chance % len(serving)]
            self.replicas[self.replicas.index(chosen)] = replace(chosen, ready=False)

    def change_spec(self) -> None:
        self.replicas = [replace(r, current=False) for r in self.replicas]


def check_step(simulation: Simulation, wanted: int) -> None:
    """Take one step and hold it against the promises."""
    ready_before, all_before = simulation.num_ready, len(simulation.replicas)
    could_surge = simulation.num_gpus is None
    simulation.execute(decide_rollout(simulation.replicas, wanted, simulation.free))
    lost = 0 if could_surge else 1
    assert simulation.num_ready >= min(ready_before, wanted) - lost
    assert len(simulation.replicas) <= max(wanted + 1, all_before)


def settle(simulation: Simulation, wanted: int) -> None:
    for _ in range(400):
        check_step(simulation, wanted)
        simulation.finish_drain(0)
        simulation.finish_start(0)
    assert simulation.num_ready == wanted == len(simulation.replicas)
    assert all(replica.current for replica in simulation.replicas)
    assert decide_rollout(simulation.replicas, wanted, simulation.free) == RolloutStep()


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["step", "step", "drained", "started", "crash", "update", "scale"]),
        st.integers(0, 5),
    ),
    max_size=60,
)


@given(events=EVENTS, wanted=st.integers(0, 5), extra_gpus=st.one_of(st.none(), st.integers(0, 2)))
def test_any_course_of_events_keeps_the_promises_and_converges(
    events: list[tuple[str, int]], wanted: int, extra_gpus: int | None
) -> None:
    simulation = Simulation(None if extra_gpus is None else 5 + extra_gpus)
    for event, chance in events:
        if event == "drained":
            simulation.finish_drain(chance)
        elif event == "started":
            simulation.finish_start(chance)
        elif event == "crash":
            simulation.crash(chance)
        elif event == "update":
            simulation.change_spec()
        elif event == "scale":
            wanted = chance
        else:
            check_step(simulation, wanted)
    settle(simulation, wanted)


@given(wanted=st.integers(1, 5), num_gpus=st.one_of(st.none(), st.integers(0, 2)))
def test_update_to_a_spec_that_never_works_leaves_the_old_one_serving(
    wanted: int, num_gpus: int | None
) -> None:
    simulation = Simulation(None if num_gpus is None else wanted + num_gpus)
    settle(simulation, wanted)
    simulation.change_spec()
    simulation.broken = True
    for _ in range(50):
        check_step(simulation, wanted)
        simulation.finish_drain(0)
        simulation.finish_start(0)
    lost = 1 if num_gpus == 0 else 0
    assert simulation.num_ready == wanted - lost


@given(wanted=st.integers(1, 5))
def test_update_with_a_spare_gpu_never_has_fewer_ready_than_wanted(wanted: int) -> None:
    simulation = Simulation(wanted + 1)
    settle(simulation, wanted)
    simulation.change_spec()
    for _ in range(100):
        simulation.execute(decide_rollout(simulation.replicas, wanted, simulation.free))
        assert simulation.num_ready >= wanted
        simulation.finish_drain(0)
        assert simulation.num_ready >= wanted
        simulation.finish_start(0)
    settle(simulation, wanted)


@pytest.mark.parametrize("num_old", [1, 2])
def test_what_waits_for_the_room_of_the_old_ones_gets_it(num_old: int) -> None:
    """Fewer serve than are wanted, and no room comes unless one of them goes."""
    old = [RolloutReplica(f"old-{n}", False, True, False, n) for n in range(num_old)]
    new = [RolloutReplica(f"new-{n}", True, False, False, 9, waiting=True) for n in range(2)]
    assert decide_rollout([*old, *new], 2, 0).drain == ("old-0",)
    assert decide_rollout([*old, *new], 2, 1).drain == ()
    starting = replace(new[0], waiting=False)
    assert decide_rollout([*old, starting, new[1]], 2, 0).drain == ()
