"""The adapter as a process, with a stub in the place of each engine's program."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from exo_adapter.engines import ENGINES

from scripts.free_ports import free_port
from tests.images.conftest import ADAPTER

pytestmark = pytest.mark.slow

STUB = Path(__file__).with_name("stub_engine.py")
PROGRAMS = {
    "exo": "exo-engine",
    "vllm": "vllm",
    "sglang": "sglang",
    "tensorrt-llm": "trtllm-serve",
    "tgi": "text-generation-launcher",
    "llama-cpp": "llama-server",
}


def wait_for(is_so: Callable[[], bool], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.02)


class Container:
    """The adapter and its stub, as they would run in a container."""

    def __init__(self, directory: Path, engine: str, **variables: str) -> None:
        self.stub = directory / "stub"
        self.termination_log = directory / "termination-log"
        model, programs = directory / "model", directory / "bin"
        for path in (self.stub, model, programs):
            path.mkdir(exist_ok=True)
        (model / "model.gguf").touch()
        self._install(programs, PROGRAMS[engine])
        self.probe_port = free_port()
        self.environment = {
            "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            # SGLang is started as a module of Python's.
            "PYTHONPATH": f"{ADAPTER}:{programs}",
            "STUB_DIR": str(self.stub),
            "EXO_ENGINE": engine,
            "EXO_SERVED_MODEL_NAME": "chat",
            "EXO_MODEL_PATH": str(model),
            "EXO_PARAMETERS_FILE": str(directory / "parameters.json"),
            "EXO_HTTP_PORT": str(free_port()),
            "EXO_PROBE_PORT": str(self.probe_port),
            "EXO_TERMINATION_LOG": str(self.termination_log),
            **variables,
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "exo_adapter"],
            env=self.environment,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _install(self, programs: Path, name: str) -> None:
        if name == "sglang":
            (programs / "sglang").mkdir()
            (programs / "sglang" / "launch_server.py").write_text(STUB.read_text())
            return
        (programs / name).write_text(STUB.read_text())
        (programs / name).chmod(0o755)

    def probe(self, path: str) -> tuple[int, str]:
        url = f"http://127.0.0.1:{self.probe_port}{path}"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return answer.status, json.loads(answer.read())["detail"]
        except urllib.error.HTTPError as exc:
            with exc:
                return exc.code, json.loads(exc.read())["detail"]
        except OSError:
            return 0, "nobody answers"

    def show(self, busy: float, progress: float) -> None:
        """Let the stub's metrics say so."""
        engine = ENGINES[self.environment["EXO_ENGINE"]]
        engine = engine if engine.busy_metrics else ENGINES["vllm"]  # whose names exo-engine has
        text = f'{engine.busy_metrics[0]}{{model="chat"}} {busy}\n'
        text += f"{engine.progress_metrics[0]} {progress}\n"
        temporary = self.stub / "metrics.new"
        temporary.write_text(text)
        temporary.rename(self.stub / "metrics")

    def become_ready(self) -> None:
        (self.stub / "healthy").touch()
        wait_for(lambda: self.probe("/health")[0] == 200, "ready")

    def has(self, name: str) -> bool:
        return (self.stub / name).exists()

    def wait(self) -> int:
        return self.process.wait(15)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            (self.stub / "exit.new").write_text("0")  # the stub looks for it, nobody else will
            (self.stub / "exit.new").rename(self.stub / "exit")
        self.process.communicate(timeout=15)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Container]]:
    started: list[Container] = []

    def start_one(engine: str = "vllm", **variables: str) -> Container:
        started.append(Container(tmp_path, engine, **variables))
        return started[-1]

    yield start_one
    for container in started:
        container.close()


Start = Callable[..., Container]


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_starts_becomes_ready_and_drains(
    start: Start, tmp_path: Path, engine: str
) -> None:
    (tmp_path / "parameters.json").write_text('["--seed", "1"]')
    container = start(engine, EXO_DEVICE="cpu" if engine == "exo" else "cuda")
    wait_for(lambda: container.has("argv"), "the engine's program runs")
    assert json.loads((container.stub / "argv").read_text())[-2:] == ["--seed", "1"]
    wait_for(lambda: container.probe("/live")[0] == 200, "alive while it starts")
    assert container.probe("/health")[0] == 503
    container.show(busy=0, progress=0)
    container.become_ready()
    container.process.send_signal(signal.SIGTERM)
    assert container.wait() == 0
    assert container.has("terminated")


def test_requests_in_flight_are_waited_for(start: Start) -> None:
    container = start()
    container.show(busy=2, progress=1)
    container.become_ready()
    container.process.send_signal(signal.SIGTERM)
    wait_for(lambda: container.probe("/health") == (503, "draining"), "draining")
    time.sleep(1)  # longer than two looks
    assert not container.has("terminated")
    container.show(busy=0, progress=9)
    assert container.wait() == 0
    assert container.has("terminated")


def test_an_engine_that_drains_itself_is_told_at_once(start: Start) -> None:
    container = start("exo", EXO_DEVICE="cpu")
    container.show(busy=2, progress=1)
    container.become_ready()
    container.process.send_signal(signal.SIGTERM)
    wait_for(lambda: container.has("terminated"), "told")
    assert container.wait() == 0


def test_a_drain_ends_with_its_time(start: Start) -> None:
    container = start(EXO_DRAIN_SECONDS="1")
    container.show(busy=1, progress=1)
    container.become_ready()
    container.process.send_signal(signal.SIGTERM)
    assert container.wait() == 0
    assert container.has("terminated")


def test_a_second_sigterm_ends_at_once(start: Start) -> None:
    container = start()
    (container.stub / "stubborn").touch()
    container.show(busy=1, progress=1)
    container.become_ready()
    container.process.send_signal(signal.SIGTERM)
    wait_for(lambda: container.probe("/health") == (503, "draining"), "draining")
    container.process.send_signal(signal.SIGTERM)
    assert container.wait() == 0


@pytest.mark.parametrize(("engine", "status"), [("exo", 200), ("vllm", 404)])
def test_what_a_start_has_measured_is_told_beside_the_probes(
    start: Start, engine: str, status: int
) -> None:
    """So that whoever asks needs no way to the engine itself; vLLM does not say it."""
    container = start(engine, EXO_DEVICE="cpu" if engine == "exo" else "cuda")
    wait_for(lambda: container.has("argv"), "the engine's program runs")
    assert container.probe("/measurements")[0] == 404
    (container.stub / "metrics").write_text('{"detail": "of the engine itself"}')
    container.become_ready()
    found = container.probe("/measurements")
    assert found == ((200, "of the engine itself") if status == 200 else (404, ""))


def test_metrics_are_told_beside_the_probes(start: Start) -> None:
    """So that Prometheus needs no way to the engine itself, which asks nobody for a key."""
    container = start()
    wait_for(lambda: container.has("argv"), "the engine's program runs")
    url = f"http://127.0.0.1:{container.probe_port}/metrics"
    assert container.probe("/metrics")[0] == 404
    container.show(busy=1, progress=5)
    container.become_ready()
    with urllib.request.urlopen(url, timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert answer.read().decode() == (container.stub / "metrics").read_text()
    with pytest.raises(urllib.error.HTTPError):  # nothing else of the engine
        urllib.request.urlopen(url.replace("/metrics", "/v1/models"), timeout=10)


def test_an_engine_that_stalls_is_not_alive(start: Start) -> None:
    container = start(EXO_STALL_SECONDS="1")
    container.show(busy=0, progress=5)
    container.become_ready()
    container.show(busy=1, progress=5)
    wait_for(lambda: container.probe("/live")[0] == 503, "stalled")
    assert container.probe("/health")[0] == 200
    progress = count(6)

    def goes_on() -> bool:
        container.show(
            busy=1, progress=next(progress)
        )  # or it would have stalled again in a second
        return container.probe("/live")[0] == 200

    wait_for(goes_on, "goes on")


def test_an_engine_that_says_itself_that_it_hangs_is_believed(start: Start) -> None:
    container = start("exo", EXO_DEVICE="cpu", EXO_STALL_SECONDS="1")
    container.show(busy=1, progress=5)
    container.become_ready()
    (container.stub / "healthy").unlink()
    wait_for(lambda: container.probe("/health")[0] == 503, "gets no requests")
    wait_for(lambda: container.probe("/live")[0] == 503, "hangs")
    container.become_ready()
    wait_for(lambda: container.probe("/live")[0] == 200, "goes on")


@pytest.mark.parametrize("status", [0, 1, 78])
def test_the_engines_exit_status_is_passed_on(start: Start, status: int) -> None:
    container = start()
    wait_for(lambda: container.has("argv"), "runs")
    (container.stub / "exit.new").write_text(str(status))
    (container.stub / "exit.new").rename(container.stub / "exit")
    assert container.wait() == status
    assert not container.termination_log.exists()  # the kubelet then shows the log


def test_an_engine_killed_by_the_kernel_ends_with_137(start: Start) -> None:
    container = start()
    wait_for(lambda: container.has("argv"), "runs")
    children = Path(f"/proc/{container.process.pid}/task/{container.process.pid}/children")
    os.kill(int(children.read_text().split()[0]), signal.SIGKILL)
    assert container.wait() == 137


def test_wrong_settings_end_with_78_and_a_last_word(start: Start) -> None:
    container = start(EXO_TENSOR_PARALLEL_SIZE="two")
    assert container.wait() == 78
    said = container.termination_log.read_text()
    assert said.startswith("exo-adapter: error: EXO_TENSOR_PARALLEL_SIZE is 'two'")


def test_a_program_that_is_missing_ends_with_127(start: Start) -> None:
    container = start("vllm", EXO_ENGINE="tgi")
    assert container.wait() == 127
    assert "text-generation-launcher is not in this image" in container.termination_log.read_text()


def test_the_health_check_of_the_image_asks_the_probe(start: Start) -> None:
    container = start()
    check = [sys.executable, "-m", "exo_adapter", "check"]
    environment = container.environment
    assert subprocess.run(check, env=environment, capture_output=True, check=False).returncode == 1
    container.become_ready()
    assert subprocess.run(check, env=environment, capture_output=True, check=False).returncode == 0
