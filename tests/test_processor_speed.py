"""What is kept of a measurement of this machine's processor, and what is not believed."""

from __future__ import annotations

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from exo_inference import host_processor, processor_speed
from exo_inference.errors import ExoError
from exo_inference.host_processor import EngineKernels, engine_kernels, has_bfloat16, processor_name
from exo_inference.planner.processor.kernels import PLAIN_LOOPS
from exo_inference.processor_speed import machine_cpu, measure_speed, read_speed, write_speed
from exo_inference.state_dir import StateDir

MEASURED: dict[str, Any] = {
    "threads": 2,
    "kernels": "avx512",
    "read_bytes": 30e9,
    "operations": {"plain": 1e12, "int8": 2e12, "int4": 1.5e12},
    "others": 0.01,
    "spread": 0.02,
}


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A stand-in for the engine's measurement, which takes seconds of all cores: what it prints, and its exit code."""
    answer: dict[str, Any] = {"stdout": json.dumps(MEASURED), "stderr": "", "code": 0}

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        assert command[1:] == ["-P", "-m", "exo_engine.machine"]
        if answer["code"]:
            raise subprocess.CalledProcessError(
                answer["code"], command, answer["stdout"], answer["stderr"]
            )
        return subprocess.CompletedProcess(command, 0, answer["stdout"], "")

    monkeypatch.setattr(processor_speed.subprocess, "run", run)
    monkeypatch.setattr(processor_speed, "engine_kernels", lambda: EngineKernels("avx512"))
    return answer


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    return StateDir(tmp_path / "never-started")


@pytest.mark.usefixtures("engine")
def test_a_measurement_is_kept_for_later_plans(state: StateDir) -> None:
    assert not machine_cpu(2**30, state).is_measured
    write_speed(state, measure_speed())
    gpu = machine_cpu(2**30, state)
    assert gpu.is_measured
    assert gpu.bandwidth == 30e9
    assert gpu.tflops["int4"] == pytest.approx(1.5)
    assert state.processor_file.stat().st_mode & 0o777 == 0o600


@pytest.mark.usefixtures("engine")
def test_one_of_another_machine_counts_as_none(state: StateDir) -> None:
    write_speed(state, measure_speed())
    kept = json.loads(state.processor_file.read_text())
    for processor in ("another one, 2 cores", kept["processor"].replace(" cores", "0 cores")):
        state.processor_file.write_text(json.dumps({**kept, "processor": processor}))
        assert read_speed(state) is None


@pytest.mark.parametrize(
    ("by_itself", "path", "measured", "counts"),
    [
        (True, "avx512_bf16", "avx512_bf16", True),
        (True, "avx512_bf16", "avx2", False),
        (True, "avx2", "avx512_bf16", False),
        (True, "", "torch", True),
        (True, "", "avx512_bf16", False),
        (True, "plain", "plain", True),
        (False, "plain", "torch", True),
        (False, "avx2", "avx2", True),
        (False, "avx2", "torch", False),
    ],
)
def test_one_of_other_kernels_counts_as_none(
    engine: dict[str, Any],
    state: StateDir,
    monkeypatch: pytest.MonkeyPatch,
    by_itself: bool,
    path: str,
    measured: str,
    counts: bool,
) -> None:
    """As where the engine was measured before it had kernels, or where others are named or switched off since."""
    monkeypatch.setattr(processor_speed, "has_bfloat16", lambda: by_itself)
    monkeypatch.setattr(processor_speed, "engine_kernels", lambda: EngineKernels(path))
    engine["stdout"] = json.dumps({**MEASURED, "kernels": measured})
    write_speed(state, measure_speed())
    gpu = machine_cpu(2**30, state)
    assert gpu.is_measured == counts
    assert gpu.supports("bf16") == (by_itself or path == "avx2")


@pytest.mark.usefixtures("engine")
def test_the_machine_is_measured_with_all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    given: dict[str, Any] = {}
    run = processor_speed.subprocess.run

    def look(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        given.update(options["env"])
        return run(command, **options)

    monkeypatch.setattr(processor_speed.subprocess, "run", look)
    measure_speed()
    assert "PATH" in given
    assert "OMP_NUM_THREADS" not in given


def test_where_no_engine_starts_the_machine_says_so(
    state: StateDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = EngineKernels(refusal="it says no")
    monkeypatch.setattr(processor_speed, "engine_kernels", lambda: refused)
    assert machine_cpu(2**30, state).refusal == "it says no"
    assert machine_cpu(2**30, state).kernels == ""


@pytest.mark.parametrize(
    "change",
    [
        {"read_bytes": 0},
        {"read_bytes": -1.0},
        {"read_bytes": 1e30},
        {"read_bytes": float("nan")},
        {"read_bytes": "30e9"},
        {"operations": {}},
        {"operations": {**MEASURED["operations"], "int8": float("inf")}},
        {"operations": {**MEASURED["operations"], "fp64": 1.0}},
        {"operations": [1, 2, 3]},
        {"operations": None},
        {"operations": list(MEASURED["operations"])},
        {"read_bytes": True},
        {"read_bytes": 1e-320},
        {"others": "none"},
        {"spread": float("nan")},
        {"more": 1},
    ],
    ids=str,
)
@pytest.mark.usefixtures("engine")
def test_what_no_machine_has_is_not_believed(change: dict[str, Any], state: StateDir) -> None:
    write_speed(state, measure_speed())
    kept = json.loads(state.processor_file.read_text())
    assert read_speed(state) is not None
    state.processor_file.write_text(json.dumps({**kept, **change}))
    assert read_speed(state) is None
    assert not machine_cpu(2**30, state).is_measured


@pytest.mark.parametrize("text", ["", "[]", "null", '"x"', "{", "\x00"])
def test_a_damaged_file_counts_as_none(text: str, state: StateDir) -> None:
    state.root.mkdir()
    state.processor_file.write_text(text)
    assert read_speed(state) is None


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (
            {"code": 1, "stderr": "Traceback\nOSError: no torch"},
            "the engine failed: OSError: no torch",
        ),
        ({"code": -9}, "it printed nothing"),
        ({"stdout": "no JSON"}, "cannot measure this machine"),
        ({"stdout": json.dumps({**MEASURED, "read_bytes": 0})}, "figures that no machine has"),
    ],
    ids=["fails", "is killed", "prints no JSON", "measures nothing"],
)
def test_an_engine_that_cannot_measure_is_an_error(
    answer: dict[str, Any], told: str, engine: dict[str, Any]
) -> None:
    engine |= answer
    with pytest.raises(ExoError, match=told):
        measure_speed()


def test_without_the_engine_its_installation_is_advised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor_speed, "find_spec", lambda name: None)
    with pytest.raises(ExoError) as refused:
        measure_speed()
    assert "pip install" in str(refused.value.hint)


def test_a_processor_has_the_name_that_the_kernel_gives_it(tmp_path: Path) -> None:
    assert processor_name(tmp_path) == ""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "cpuinfo").write_text(
        "processor\t: 0\nmodel name\t: A: B\nmodel name : C\n"
    )
    assert processor_name(tmp_path) == "A: B"


def test_a_processor_may_have_a_name_of_any_bytes(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    text = b"processor\t: 0\nmodel name\t: QEMU \xae\nflags\t\t: fpu avx512_bf16\n"
    (tmp_path / "proc" / "cpuinfo").write_bytes(text)
    assert processor_name(tmp_path) == "QEMU \ufffd"
    assert has_bfloat16(tmp_path)


def write_features(root: Path, features: str) -> Path:
    (root / "proc").mkdir()
    (root / "proc" / "cpuinfo").write_text(f"processor\t: 0\n{features}\nbugs\t\t: bf16 avx2\n")
    return root


@pytest.mark.parametrize(
    ("features", "by_itself"),
    [
        ("flags\t\t: fpu avx2 fma avx512f avx512_bf16", True),
        ("flags\t\t: fpu avx2 fma amx_tile amx_bf16", True),
        ("flags\t\t: fpu avx2 fma", False),
        ("Features\t: fp asimd bf16 i8mm", True),
        ("Features\t: fp asimd", False),
    ],
)
def test_a_processor_says_whether_it_has_bfloat16(
    features: str, by_itself: bool, tmp_path: Path
) -> None:
    assert has_bfloat16(write_features(tmp_path, features)) == by_itself


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine is asked anew, as one answer is kept for each value of the variable."""
    monkeypatch.setattr(host_processor, "_ask_engine", host_processor._ask_engine.__wrapped__)
    monkeypatch.setattr(host_processor, "_ASK_AGAIN", {})


@pytest.mark.usefixtures("fresh")
def test_without_the_engine_there_are_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_processor, "find_spec", lambda name: None)
    assert engine_kernels() == EngineKernels()


@pytest.mark.usefixtures("fresh")
def test_an_engine_that_does_not_answer_counts_as_without_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host_processor, "find_spec", lambda name: name)
    monkeypatch.setattr(host_processor, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(host_processor.sys, "executable", "/bin/false")
    assert engine_kernels() == EngineKernels()
    monkeypatch.setattr(host_processor.sys, "executable", "/nowhere")
    assert engine_kernels() == EngineKernels()


@pytest.mark.parametrize("script", ["exit 1", "echo avx2"])
def test_many_plans_at_once_ask_the_engine_once(
    script: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also where it gives no answer: each that asked would hold a thread of the controller."""
    engine, log = tmp_path / "engine", tmp_path / "asked"
    engine.write_text(f"#!/bin/sh\necho once >> {log}\n{script}\n")
    engine.chmod(0o755)
    monkeypatch.setattr(host_processor, "_ASK_AGAIN", {})
    monkeypatch.setenv(host_processor.KERNELS_VARIABLE, f"asked by many: {script}")
    monkeypatch.setattr(host_processor, "find_spec", lambda name: name)
    monkeypatch.setattr(host_processor.sys, "executable", str(engine))
    with ThreadPoolExecutor(16) as pool:
        found = set(pool.map(lambda _: engine_kernels(), range(300)))
    assert found == {EngineKernels("avx2" if "avx2" in script else "")}
    assert log.read_text().count("once") == 1


def test_an_engine_that_was_killed_once_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engine = tmp_path / "engine"
    monkeypatch.setattr(host_processor, "_ASK_AGAIN", {})
    monkeypatch.setattr(host_processor, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setenv(host_processor.KERNELS_VARIABLE, "asked twice")
    monkeypatch.setattr(host_processor, "find_spec", lambda name: name)
    monkeypatch.setattr(host_processor.sys, "executable", str(engine))
    for script, found in (
        ("kill -9 $$", EngineKernels()),
        ("exit 78", EngineKernels()),
        ("printf 'no \\351' >&2; exit 78", EngineKernels(refusal="no \ufffd")),
    ):
        engine.write_text(f"#!/bin/sh\n{script}\n")
        engine.chmod(0o755)
        assert engine_kernels() == found


@pytest.mark.parametrize("named", ["", "auto", "off", "plain", "avx2", "none", "best"])
def test_the_engine_says_the_same_of_this_machine(
    named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = pytest.importorskip("exo_engine.kernels.library")
    errors = pytest.importorskip("exo_engine.errors")
    monkeypatch.setenv(library.VARIABLE, named)
    found = engine_kernels()
    if named in ("none", "best"):
        with pytest.raises(errors.ConfigurationError) as refused:
            library.chosen_kernels()
        told = refused.value
        assert found == EngineKernels(refusal=f"{told.message}. {told.hint}")
        return
    if named not in ("", "auto", "off", *library.available_paths()):
        pytest.skip(f"this machine has no {named}")
    kernels = library.chosen_kernels()
    assert found == EngineKernels("" if kernels is None else kernels.path)
    assert found.has_vectors == (kernels is not None and kernels.path != library.PLAIN_LOOPS)
    assert library.PLAIN_LOOPS == PLAIN_LOOPS
