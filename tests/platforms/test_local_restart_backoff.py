"""Back-off after crashes, as a function of the files and the time; and what is said about it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exo_inference.engines import ReplicaCommand
from exo_inference.engines.exo import ExoEngine
from exo_inference.platforms.local.observation import Sight, observe
from exo_inference.platforms.local.replica_dir import Exit, Launch, ReplicaFacts, ReplicaRecord
from exo_inference.platforms.local.restart_backoff import (
    RestartDecision,
    backoff_seconds,
    decide_restart,
)
from exo_inference.platforms.local.settings import LocalPlatformSettings

SETTINGS = LocalPlatformSettings()
BOOT = "boot"
LAUNCH = Launch(3, 0, BOOT, 1000.0, ("x",), {}, 60, 1000, 3)


def facts(
    *,
    failures: int = 0,
    ran_seconds: float | None = 5.0,
    stop_asked: bool = False,
    boot_id: str = BOOT,
    ready_run: int = 0,
) -> ReplicaFacts:
    """A replica started at 1000 s; None for `ran_seconds` is an end that nobody recorded."""
    launch = Launch(3, failures, boot_id, 1000.0, ("x",), {}, 60, 1000, 3)
    ended = None
    if ran_seconds is not None:
        ended = Exit(3, 1, stop_asked, False, 1000.0, 1000.0 + ran_seconds)
    record = ReplicaRecord("r", "u", "chat", "s", "cpu", 1, 900.0)
    return ReplicaFacts(record, False, launch, None, ended, False, ready_run)


def plan(replica: ReplicaFacts, now: float) -> RestartDecision:
    return decide_restart(replica, now, BOOT, SETTINGS)


def test_crash_waits_and_counts() -> None:
    first = plan(facts(), now=1005.0)
    assert first.crashed
    assert first.failures == 1
    assert 0.75 <= first.wait_seconds <= 1.25
    assert plan(facts(), now=1010.0).wait_seconds == 0


def test_crashes_in_a_row_are_counted_on() -> None:
    assert plan(facts(failures=4), now=1005.0).failures == 5


def test_replica_that_had_been_ready_is_back_soon() -> None:
    limit = SETTINGS.max_backoff_after_ready_seconds
    assert plan(facts(failures=9, ready_run=3), now=1005.0).wait_seconds == limit
    assert plan(facts(failures=9, ready_run=2), now=1005.0).wait_seconds > limit


def test_long_run_starts_the_count_anew() -> None:
    assert plan(facts(failures=7, ran_seconds=601.0), now=1601.0).failures == 1


def test_run_that_was_stopped_starts_again_at_once() -> None:
    assert plan(facts(failures=2, stop_asked=True), now=1005.0) == RestartDecision(2, False, 0.0)


def test_user_who_asks_after_a_crash_ends_the_wait() -> None:
    def asked(at: float) -> RestartDecision:
        moment = datetime.fromtimestamp(at, UTC)
        return decide_restart(facts(failures=9), 1006.0, BOOT, SETTINGS, restarted_at=moment)

    assert asked(1005.5) == RestartDecision(0, False, 0.0)
    assert asked(1004.5).wait_seconds > 1


HOUR = 3600.0


def test_clock_that_is_set_back_does_not_hold_up_a_restart() -> None:
    found = plan(facts(failures=9), now=1005.0 - HOUR)
    assert (found.crashed, found.failures, found.wait_seconds) == (True, 10, 0.0)


def test_clock_that_is_set_forward_ends_the_wait() -> None:
    assert plan(facts(failures=9), now=1005.0 + HOUR).wait_seconds == 0


def test_what_was_asked_before_the_clock_was_set_back_does_not_excuse_later_crashes() -> None:
    asked = datetime.fromtimestamp(1005.0 + HOUR, UTC)
    found = decide_restart(facts(failures=9), 1006.0, BOOT, SETTINGS, restarted_at=asked)
    assert found.failures == 10
    assert found.wait_seconds > 1
    # Both were before it was set back.
    found = decide_restart(facts(failures=9), 1006.0 - HOUR, BOOT, SETTINGS, restarted_at=asked)
    assert found == RestartDecision(0, False, 0.0)


def test_user_who_asks_after_the_clock_was_set_back_is_heard() -> None:
    now = 1006.0 - HOUR
    asked = datetime.fromtimestamp(now - 1, UTC)
    found = decide_restart(facts(failures=9), now, BOOT, SETTINGS, restarted_at=asked)
    assert found == RestartDecision(0, False, 0.0)


def test_run_that_ended_with_the_machine_is_no_crash() -> None:
    replica = facts(failures=2, ran_seconds=None, boot_id="the boot before")
    assert plan(replica, now=1005.0) == RestartDecision(2, False, 0.0)


def test_end_that_nobody_recorded_is_a_crash() -> None:
    replica = facts(failures=2, ran_seconds=None)
    assert plan(replica, now=1001.0).failures == 3
    assert plan(replica, now=1001.0).wait_seconds > 1
    assert plan(replica, now=5000.0).failures == 1


def test_clock_set_back_does_not_lengthen_the_wait() -> None:
    assert plan(facts(), now=0.0).wait_seconds <= 1.25


@given(failures=st.integers(1, 10_000), run=st.integers(1, 10_000))
def test_back_off_grows_up_to_its_ceiling(failures: int, run: int) -> None:
    wait = backoff_seconds("r", run, failures, SETTINGS)
    assert 0.75 <= wait <= 60.0
    assert wait == backoff_seconds("r", run, failures, SETTINGS)
    if failures >= 8:
        assert wait == 60.0


@pytest.mark.parametrize("failures", [1, 2, 3, 4])
def test_replicas_that_crash_together_do_not_start_together(failures: int) -> None:
    waits = {backoff_seconds(f"r{n}", 1, failures, SETTINGS) for n in range(20)}
    assert len(waits) == 20


def killed(oom_kills: int, *, exit_code: int = -9, killed: bool = False) -> ReplicaFacts:
    ended = Exit(3, exit_code, False, killed, 1000.0, 1005.0, oom_kills)
    return replace(facts(), exit=ended)


@pytest.mark.parametrize("exit_code", [-9, 137, 71], ids=["engine", "by a shell", "its core"])
def test_after_an_out_of_memory_kill_the_wait_is_long(exit_code: int) -> None:
    found = plan(killed(1, exit_code=exit_code), now=1005.0)
    assert found.out_of_memory
    assert 22.5 <= found.wait_seconds <= 37.5
    again = plan(replace(killed(1), launch=replace(LAUNCH, failures=9)), now=1005.0)
    assert again.wait_seconds == SETTINGS.max_backoff_out_of_memory_seconds


def test_a_replica_that_had_served_waits_as_long_when_memory_ran_out() -> None:
    assert plan(replace(killed(1), ready_run=3), now=1005.0).wait_seconds > 20


def test_a_replica_that_was_killed_while_it_served_is_back_at_once_however_often() -> None:
    launch = replace(LAUNCH, failures=9)
    limit = SETTINGS.max_backoff_after_kill_seconds
    serving = replace(killed(0), launch=launch, ready_run=3)
    assert plan(serving, now=1005.0).wait_seconds == limit
    starting = replace(serving, ready_run=2)
    hung = replace(killed(0, killed=True), launch=launch, ready_run=3)
    crashed = replace(killed(0, exit_code=-11), launch=launch, ready_run=3)
    for other in (starting, hung, crashed):
        assert plan(other, now=1005.0).wait_seconds >= SETTINGS.max_backoff_after_ready_seconds


@pytest.mark.parametrize(
    "replica",
    [killed(0), killed(1, exit_code=1), killed(1, killed=True)],
    ids=["no kill was counted", "it ended by itself", "the shim killed it"],
)
def test_other_ends_are_not_laid_to_memory(replica: ReplicaFacts) -> None:
    found = plan(replica, now=1005.0)
    assert not found.out_of_memory
    assert found.wait_seconds < 2


def test_a_replica_says_which_model_it_was_started_with_and_whether_it_ever_served() -> None:
    command = ReplicaCommand(Path("/m"), "org/m1", "engine.sock", "cpu", 1, ("--seed", "1"))
    launch = replace(LAUNCH, argv=ExoEngine(Path("/bin/exo-engine")).command(command))
    for ready_run, has_served in ((0, False), (2, True), (3, True)):
        found = replace(facts(ready_run=ready_run), launch=launch, draining=True)
        seen = observe(Sight(found), None, SETTINGS)
        assert (seen.models, seen.has_served) == (("org/m1",), has_served)
    assert LAUNCH.models == ()
