"""Two who write at once: exactly one of them is told that all is well, and what it asked for holds."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from exo_inference import Overwritten
from exo_inference.errors import PreconditionFailed
from exo_inference.sdk import Client

from .conftest import Exo, RunningController
from .test_apply import deployment, model, write


@pytest.fixture
def other(controller: RunningController, zone: Client) -> Client:
    """Somebody else in the same zone."""
    return zone


def flags(value: int) -> list[str]:
    return [f"--max-model-len={value}"]


def at_the_first(
    monkeypatch: pytest.MonkeyPatch, method: str, act: Callable[[], object], *, before: bool
) -> None:
    """Have somebody else act just before, or just after, the first call of a client's method."""
    from exo_inference.sdk._sync.deployments import Deployments

    original, acted = getattr(Deployments, method), threading.Event()

    def wrapped(self: object, *args: object, **kwargs: object) -> object:
        is_first = not acted.is_set()
        acted.set()
        if is_first and before:
            act()
        result = original(self, *args, **kwargs)
        if is_first and not before:
            act()
        return result

    monkeypatch.setattr(Deployments, method, wrapped)


def test_the_update_that_comes_second_is_refused_and_told_whose_it_met(
    exo: Exo, other: Client, monkeypatch: pytest.MonkeyPatch
):
    exo("apply", "-f", write(model(), deployment()), "--wait")
    uid = other.deployments.find("chat").id
    act = lambda: other.deployments.update(uid, engine_parameters=flags(700))  # noqa: E731
    at_the_first(monkeypatch, "update", act, before=True)
    ran = exo(
        "deployment", "update", "chat", "--inference-engine-params=--max-model-len=600", "--wait"
    )
    assert ran.code == 1
    assert 'updating deployment "chat": Precondition Failed: Deployment changed' in ran.err
    assert "the last change, of inference-engine-parameters, was made with the key EXO" in ran.err
    assert other.deployments.get(uid).inference_engine_parameters == flags(700)


def test_a_wait_does_not_succeed_for_what_was_overwritten(
    exo: Exo, other: Client, monkeypatch: pytest.MonkeyPatch
):
    exo("apply", "-f", write(model(), deployment()), "--wait")
    uid = other.deployments.find("chat").id
    act = lambda: other.deployments.update(uid, engine_parameters=flags(700))  # noqa: E731
    at_the_first(monkeypatch, "update", act, before=False)
    ran = exo(
        "deployment", "update", "chat", "--inference-engine-params=--max-model-len=600", "--wait"
    )
    assert ran.code == 8
    assert "was changed again with the key EXO" in ran.err
    assert "inference-engine-parameters is ['--max-model-len=700'] now" in ran.err


def test_a_wait_goes_on_when_something_else_was_changed(
    exo: Exo, other: Client, monkeypatch: pytest.MonkeyPatch
):
    exo("apply", "-f", write(model(), deployment()), "--wait")
    uid = other.deployments.find("chat").id
    at_the_first(monkeypatch, "update", lambda: other.deployments.scale(uid, 2), before=False)
    ran = exo(
        "deployment", "update", "chat", "--inference-engine-params=--max-model-len=600", "--wait"
    )
    assert ran.code == 0
    found = other.deployments.get(uid)
    assert (found.inference_engine_parameters, found.replicas) == (flags(600), 2)


def test_apply_refuses_to_write_over_what_it_has_not_seen(
    exo: Exo, other: Client, monkeypatch: pytest.MonkeyPatch
):
    exo("apply", "-f", write(model(), deployment(), deployment("gone")), "--wait")
    uid, gone = (other.deployments.find(name).id for name in ("chat", "gone"))
    file = write(model(), deployment(engineParameters=f"{flags(600)}", replicas=2))

    def act() -> None:
        other.deployments.scale(gone, 3)

    at_the_first(monkeypatch, "update", act, before=False)
    ran = exo("apply", "-f", file, "--prune", "--yes", "--wait")
    assert ran.code == 1
    assert 'deleting deployment "gone": Precondition Failed: Deployment changed' in ran.err
    assert other.deployments.get(gone).replicas == 3
    found = other.deployments.get(uid)
    assert (found.inference_engine_parameters, found.replicas) == (flags(600), 2)
    assert exo("apply", "-f", file, "--prune", "--yes", "--wait").code == 0


def test_two_updates_at_once_never_both_succeed(zone: Client):
    """Many rounds, two threads each: who is told "ready" finds what it asked for."""
    zone.models.create("org/m")
    made = zone.deployments.create("chat", model="org/m", gpu_type="cpu")
    assert made.reference is not None
    uid = made.reference.id
    zone.deployments.wait_until_ready(uid, timeout=60)
    outcomes: list[str] = []

    def change(read: object, value: int, start: threading.Barrier) -> None:
        start.wait()
        try:
            operation = zone.deployments.update(read, engine_parameters=flags(value))  # type: ignore[arg-type]
            ready = zone.deployments.wait_until_ready(uid, timeout=60, change=operation)
            assert ready.inference_engine_parameters == flags(value)
            outcomes.append("ready")
        except (PreconditionFailed, Overwritten):
            outcomes.append("told")

    for round_ in range(10):
        read, start = zone.deployments.get(uid), threading.Barrier(2)
        threads = [
            threading.Thread(target=change, args=(read, 100 + 2 * round_ + n, start))
            for n in (0, 1)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert outcomes.count("ready") == outcomes.count("told") == 10
