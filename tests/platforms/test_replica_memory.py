"""What fits on one machine beside what was admitted: tables, and sums that are never exceeded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exo_inference.platforms.replica_memory import (
    MIB,
    HostRoom,
    ReplicaNeed,
    Share,
    choose_cache,
    count_fitting,
    guess_need,
    left_bytes,
    read_need,
    reserve_bytes,
    tokenizer_bytes,
)

GIB = 2**30
SMALL = ReplicaNeed(400 * MIB, 100 * MIB, 400 * MIB)
NEEDS = st.builds(
    ReplicaNeed,
    st.integers(1, 4 * GIB),
    st.integers(0, GIB),
    st.integers(0, 8 * GIB),
)


def room(free: int, **held: int) -> HostRoom:
    return HostRoom(total_bytes=24 * GIB, free_bytes=free, held=held)


@pytest.mark.parametrize(
    ("free", "held", "others", "expected"),
    [
        pytest.param(768 * MIB, {}, [], 0, id="only the reserve is free"),
        pytest.param(768 * MIB + 999 * MIB, {}, [], 1, id="a byte short of two"),
        pytest.param(768 * MIB + 1000 * MIB, {}, [], 2, id="two"),
        pytest.param(768 * MIB + 1000 * MIB, {}, [("a", 1)], 1, id="one is promised"),
        pytest.param(768 * MIB + 500 * MIB, {"a": 500 * MIB}, [("a", 1)], 1, id="and taken"),
        pytest.param(768 * MIB + 500 * MIB, {"a": 500 * MIB}, [], 2, id="of one that goes"),
        pytest.param(
            768 * MIB + 100 * MIB, {"a": 900 * MIB}, [("a", 1)], 0, id="more than promised"
        ),
        pytest.param(0, {}, [("a", 50)], 0, id="overdrawn"),
        pytest.param(768 * MIB + 25000 * MIB, {}, [], 50, id="fifty"),
        pytest.param(768 * MIB + 150000 * MIB, {}, [("a", 100)], 200, id="three hundred"),
    ],
)
def test_what_fits_is_what_is_free_and_held_less_what_was_promised(
    free: int, held: dict[str, int], others: list[tuple[str, int]], expected: int
) -> None:
    shares = [Share(uid, SMALL, replicas) for uid, replicas in others]
    assert count_fitting(room(free, **held), shares, SMALL) == expected


@pytest.mark.parametrize(
    ("vocab_size", "measured_mib"), [(32_000, 81), (128_000, 258), (152_000, 293), (256_000, 497)]
)
def test_the_tokenizers_are_planned_as_they_were_measured(
    vocab_size: int, measured_mib: int
) -> None:
    assert 0.95 * measured_mib <= tokenizer_bytes(vocab_size) / MIB <= 1.1 * measured_mib


def test_memory_that_was_claimed_and_not_touched_yet_is_not_free() -> None:
    claimed = HostRoom(24 * GIB, 768 * MIB + 2000 * MIB, {"a": 0}, {"a": 1500 * MIB})
    assert count_fitting(claimed, [Share("a", SMALL, 1)], SMALL) == 1


@given(
    st.integers(0, 64 * GIB),
    st.lists(st.tuples(st.integers(0, 5), NEEDS, st.integers(0, 300)), max_size=40),
)
def test_what_was_admitted_never_exceeds_the_machine(
    free: int, writes: list[tuple[int, ReplicaNeed, int]]
) -> None:
    """Creates, scales and updates of a few deployments, each refused where it does not fit."""
    machine = room(free)
    admitted: dict[str, Share] = {}
    for number, need, replicas in writes:
        uid = f"d{number}"
        others = [share for share in admitted.values() if share.uid != uid]
        wanted = Share(uid, need, replicas)
        if replicas <= count_fitting(machine, others, need):
            admitted[uid] = wanted
        assert sum(share.planned_bytes for share in admitted.values()) <= machine.capacity_bytes
        assert left_bytes(machine, admitted.values()) >= 0


@given(st.integers(-GIB, 64 * GIB), st.lists(NEEDS, min_size=1, max_size=50))
def test_caches_take_at_most_half_of_what_is_left(left: int, needs: list[ReplicaNeed]) -> None:
    given_more = [choose_cache(need, left, len(needs)) - need.cache_bytes for need in needs]
    assert all(more >= 0 for more in given_more)
    assert sum(given_more) <= max(0, left) // 2


def test_a_cache_is_never_larger_than_can_be_used() -> None:
    assert choose_cache(SMALL, 64 * GIB, 1) == 400 * MIB
    assert choose_cache(SMALL, 400 * MIB, 2) == 200 * MIB
    assert choose_cache(SMALL, -5, 1) == SMALL.cache_bytes


@pytest.mark.parametrize(("total", "expected"), [(GIB, 64 * MIB), (24 * GIB, 768 * MIB)])
def test_the_control_plane_keeps_something(total: int, expected: int) -> None:
    assert reserve_bytes(total) == expected
    assert reserve_bytes(4096 * GIB) == GIB


@given(NEEDS)
def test_a_need_that_was_recorded_is_read_back(need: ReplicaNeed) -> None:
    assert read_need(need.text) == need


@pytest.mark.parametrize(
    "text",
    ["", "1/2", "1/2/3/4", "a/b/c", "-1/2/3", "1/2/" + "9" * 5000, "1/2/²", f"1/2/{2**62}"],
    ids=lambda text: text[:12],
)
def test_a_record_that_nobody_of_ours_wrote_is_none(text: str) -> None:
    assert read_need(text) is None


def test_what_was_never_planned_is_guessed_by_its_files() -> None:
    assert guess_need(GIB).fixed_bytes > 2 * GIB
