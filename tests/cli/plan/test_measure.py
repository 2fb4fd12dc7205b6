"""`deployment plan --measure`: the machine is measured, that is kept, and an idle machine is asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from exo_inference import processor_speed
from exo_inference.cli.plan import planners
from exo_inference.errors import ExoError
from exo_inference.host_processor import EngineKernels
from exo_inference.processor_speed import ProcessorSpeed, measure_speed, read_speed
from exo_inference.state_dir import StateDir
from tests.cli.conftest import Exo

PLAN = (
    "ai", "deployment", "plan", "--model-name", "Qwen/Qwen2.5-0.5B-Instruct", "--offline",
)  # fmt: skip
RATES = {"plain": 1e12, "int8": 2e12, "int4": 1.5e12}


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StateDir:
    monkeypatch.setenv("EXO_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(processor_speed, "engine_kernels", lambda: EngineKernels("avx512"))
    return StateDir(tmp_path / "state")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Have the measurement, which takes seconds of all cores, be this one."""
    from exo_inference.processor_speed import _this_processor

    def set_others(others: float, spread: float = 0.02) -> None:
        speed = ProcessorSpeed(_this_processor(), 2, "avx512", 30e9, RATES, others, spread)
        monkeypatch.setattr(planners, "measure_speed", lambda: speed)

    return set_others


def test_a_measurement_is_told_kept_and_used(
    exo: Exo, state: StateDir, measured: Callable[..., None]
) -> None:
    before = exo(*PLAN, "--gpu-type", "cpu").out
    assert "an assumed machine of 40 GB/s" in " ".join(before.split())
    measured(0.01)
    first = exo(*PLAN, "--gpu-type", "cpu", "--measure")
    assert "30.0 GB/s of weights" in first.err
    assert "1,500 in int4" in first.err
    later = exo(*PLAN, "--gpu-type", "cpu")
    assert later.err == ""
    for found in (first.out, later.out):
        assert "the engine measured on this machine" in " ".join(found.split())
    assert read_speed(state) is not None


def test_what_a_busy_machine_gives_is_told_and_not_kept(
    exo: Exo, state: StateDir, measured: Callable[..., None]
) -> None:
    measured(1.5)
    found = exo(*PLAN, "--gpu-type", "cpu", "--measure")
    assert found.code == 0
    assert "warning: that is not kept: other processes used 150% of a core" in found.err
    assert "an assumed machine" in " ".join(found.out.split())
    assert not state.processor_file.exists()


def test_what_an_uneven_machine_gives_is_told_and_not_kept(
    exo: Exo, state: StateDir, measured: Callable[..., None]
) -> None:
    measured(0.0, spread=0.9)
    found = exo(*PLAN, "--gpu-type", "cpu", "--measure")
    assert found.code == 0
    assert "that is not kept: equal work took 90% longer at the median than at best" in found.err
    assert not state.processor_file.exists()


@pytest.mark.usefixtures("state")
def test_a_plan_that_another_machine_makes_is_not_measured_for(
    exo: Exo, measured: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(0.0)
    monkeypatch.setenv("EXOSCALE_API_KEY", "EXOaaaaaaaaaaaaaaaaaaaaaaaa")
    monkeypatch.setenv("EXOSCALE_API_SECRET", "b" * 43)
    monkeypatch.setenv("EXOSCALE_API_ENDPOINT", "http://127.0.0.1:9/v2")
    model = "11111111-2222-4333-8444-555555555555"
    refused = exo("ai", "deployment", "plan", "--model-id", model, "--gpu-type", "cpu", "--measure")
    assert refused.code == 2
    assert "--measure is about this machine, but http://127.0.0.1:9" in refused.err


@pytest.mark.usefixtures("state")
def test_it_is_about_this_machine_alone(exo: Exo, measured: Callable[..., None]) -> None:
    measured(0.0)
    refused = exo(*PLAN, "--gpu-type", "l40s", "--measure")
    assert refused.code == 2
    assert "--measure is about this machine's processor" in refused.err
    assert exo(*PLAN, "--compare", "cpu,l40s", "--measure").code == 0


def test_it_is_kept_where_the_control_plane_of_c_looks(
    exo: Exo, tmp_path: Path, measured: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EXO_STATE_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    state = StateDir(tmp_path / "other")
    state.create()
    state.settings_file.write_text("{}")
    (state.root / "exoscale.toml").write_text("")
    measured(0.0)
    exo("-C", str(state.root / "exoscale.toml"), *PLAN, "--gpu-type", "cpu", "--measure")
    assert state.processor_file.exists()


def test_an_engine_that_fails_is_an_error(
    exo: Exo, state: StateDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("exo_inference.processor_speed.find_spec", lambda name: None)
    refused = exo(*PLAN, "--gpu-type", "cpu", "--measure")
    assert refused.code == 1
    assert "exo-engine is not installed" in refused.err
    assert not state.processor_file.exists()
    with pytest.raises(ExoError):
        measure_speed()


def test_replicas_that_share_the_cores_are_told(exo: Exo, state: StateDir) -> None:
    told = "8 replicas on one machine share its cores"
    assert told in " ".join(exo(*PLAN, "--gpu-type", "cpu", "--replicas", "8").out.split())
    assert told in exo(*PLAN, "--gpu-type", "cpu", "--replicas", "8", "-O", "json").out
    for flags in ((), ("--replicas", "8", "--inference-engine-params", "--dtype=float32")):
        assert "share its cores" not in exo(*PLAN, "--gpu-type", "cpu", *flags).out
    demand = ("--for", "requests=50/s input=100 output=100")
    assert (
        "Each replica on a CPU has a machine of its own"
        in exo(*PLAN, "--gpu-type", "cpu", *demand).out
    )
    assert "machine of its own" not in exo(*PLAN, "--gpu-type", "H100", *demand).out
