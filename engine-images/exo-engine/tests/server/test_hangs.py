"""Real processes: a core that is stopped is seen, a step of 30 s and a long queue are not taken for it."""

from __future__ import annotations

import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from .conftest import MODEL, Engine, write_tiny_model

pytestmark = pytest.mark.slow

Start = Callable[..., Engine]
LONG = {"model": MODEL, "prompt": "fox", "max_tokens": 3000, "ignore_eos": True}
KNOWN_SECONDS, BACK_SECONDS = 5.0, 2.0


def seconds_until(engine: Engine, status: int) -> float:
    """Return when the last question was asked that got another answer: what comes late is the machine's."""
    begin = asked = last = time.monotonic()

    def is_so() -> bool:
        nonlocal asked, last
        last, asked = asked, time.monotonic()
        return engine.http.get("/health").status_code == status

    engine.wait_until(is_so)
    return last - begin


@contextmanager
def asking(engine: Engine, **changes: object) -> Iterator[threading.Thread]:
    """A request that is under way; its answer does not matter."""

    def ask() -> None:
        transport = httpx.HTTPTransport(uds=str(engine.socket))
        with httpx.Client(transport=transport, base_url="http://engine", timeout=120) as client:
            client.post("/v1/completions", json=LONG | changes)

    thread = threading.Thread(target=ask)
    thread.start()
    yield thread
    thread.join()


@pytest.mark.parametrize(
    "flags", [(), ("--distributed-executor-backend", "mp"), ("--async-scheduling",)]
)
def test_a_core_that_is_stopped_is_seen_within_5_s_and_its_return_within_2(
    start_engine: Start, flags: tuple[str, ...]
) -> None:
    engine = start_engine(*flags).wait_ready()
    core = engine.core_pid
    with engine.asked(LONG):
        engine.wait_until(lambda: engine.metric("vllm:num_requests_running") == 1)
        os.kill(core, signal.SIGSTOP)
        assert seconds_until(engine, 503) < KNOWN_SECONDS
        found = engine.http.get("/health").json()
        assert found["status"] == "stalled"
        assert "while 1 sequences are to be answered" in found["detail"]
        os.kill(core, signal.SIGCONT)
        assert seconds_until(engine, 200) < BACK_SECONDS
    engine.wait_until(lambda: engine.metric("vllm:num_requests_running") == 0)
    os.kill(core, signal.SIGSTOP)  # now it is idle, which nobody can see
    time.sleep(6)
    assert engine.http.get("/health").status_code == 200
    with engine.asked(LONG):
        seconds_until(engine, 503)
    engine.wait_until(lambda: engine.http.get("/load").json()["server_load"] == 0)
    assert engine.http.get("/health").status_code == 503  # though its only client has left
    os.kill(core, signal.SIGCONT)
    assert seconds_until(engine, 200) < BACK_SECONDS


def test_a_step_that_does_not_return_is_seen_and_its_end_too(
    start_engine: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The core runs, as far as the kernel can say: it waits within a layer."""
    held = tmp_path / "held"
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys, time\n"
        "if any('core_process' in word for word in sys.orig_argv):\n"
        "    from exo_engine.models.decoder import DecoderLayer\n"
        "    call = DecoderLayer.__call__\n"
        "    def held(self, hidden, *others):\n"
        f"        while os.path.exists({str(held)!r}):\n"
        "            time.sleep(0.02)\n"
        "        return call(self, hidden, *others)\n"
        "    DecoderLayer.__call__ = held\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    engine = start_engine().wait_ready()
    with asking(engine, max_tokens=5) as thread:
        thread.join()
    held.touch()
    with asking(engine, max_tokens=5) as thread:
        seconds_until(engine, 503)
        assert engine.http.get("/health").json()["status"] == "stalled"
        assert thread.is_alive()
        held.unlink()
        seconds_until(engine, 200)
        thread.join()  # the request that it held is answered


def test_a_step_of_30_s_is_no_hang(
    start_engine: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has 24 layers, and gets on with each, in a third of the time that is taken for a hang."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, time\n"
        "if any('core_process' in word for word in sys.orig_argv):\n"
        "    from exo_engine.models.decoder import DecoderLayer\n"
        "    call = DecoderLayer.__call__\n"
        "    def slowly(self, hidden, *others):\n"
        "        time.sleep(1.3 if len(hidden) > 100 else 0)\n"
        "        return call(self, hidden, *others)\n"
        "    DecoderLayer.__call__ = slowly\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    model = write_tiny_model(tmp_path / "deep", num_layers=24)
    engine = start_engine("--max-num-batched-tokens", "512", model=model).wait_ready()
    seen = set()
    begin = time.monotonic()
    with asking(engine, prompt=[5] * 500, max_tokens=1) as thread:
        while thread.is_alive():
            seen.add(engine.http.get("/health").status_code)
            time.sleep(0.1)
    assert time.monotonic() - begin > 30
    assert engine.metric("vllm:iteration_tokens_total_count") == 1
    assert seen == {200}


def test_a_saturated_engine_is_well(start_engine: Start) -> None:
    engine = start_engine("--max-num-seqs", "1").wait_ready()
    seen = set()
    with asking(engine, n=40, max_tokens=60):
        engine.wait_until(lambda: engine.metric("vllm:num_requests_waiting") > 30)
        until = time.monotonic() + 10
        while time.monotonic() < until and engine.metric("vllm:num_requests_waiting"):
            seen.add(engine.http.get("/health").status_code)
    assert seen == {200}


def test_24_clients_that_keep_their_connections_are_answered_with_64_descriptors(
    start_engine: Start,
) -> None:
    engine = start_engine()
    resource.prlimit(engine.process.pid, resource.RLIMIT_NOFILE, (64, 64))  # long before it listens
    engine.wait_ready()
    statuses: list[int] = []

    def ask() -> None:
        transport = httpx.HTTPTransport(uds=str(engine.socket), retries=2)
        with httpx.Client(transport=transport, base_url="http://engine", timeout=60) as client:
            for _ in range(3):
                answer = client.post("/v1/completions", json=LONG | {"max_tokens": 3})
                statuses.append(answer.status_code)
            all_have_asked.wait()  # until then each keeps what connection it has

    all_have_asked = threading.Barrier(24, timeout=300)
    with ThreadPoolExecutor(24) as pool:
        for each in [pool.submit(ask) for _ in range(24)]:
            each.result()
    assert len(statuses) == 72
    assert set(statuses) <= {200, 429, 503}
    assert statuses.count(200) >= 24
    assert engine.http.get("/health").status_code == 200


def test_with_64_descriptors_that_are_all_taken_newcomers_are_told_to_come_again(
    start_engine: Start,
) -> None:
    """Eight requests whose bodies do not come keep all connections busy."""
    engine = start_engine()
    resource.prlimit(engine.process.pid, resource.RLIMIT_NOFILE, (64, 64))  # long before it listens
    engine.wait_ready()
    engine.http.close()

    def ask(method: str, path: str, **what: object) -> httpx.Response:
        transport = httpx.HTTPTransport(uds=str(engine.socket))
        with httpx.Client(transport=transport, base_url="http://engine", timeout=120) as client:
            return client.request(method, path, **what)

    with ExitStack() as held:
        for _ in range(8):
            client = held.enter_context(socket.socket(socket.AF_UNIX))
            client.connect(str(engine.socket))
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")
        told = ask("POST", "/v1/completions", json=LONG | {"max_tokens": 3})
        assert (told.status_code, told.headers["Retry-After"]) == (429, "1")
        assert told.json()["error"]["code"] == "connections_busy"
        assert ask("GET", "/health").status_code == 200
    assert ask("POST", "/v1/completions", json=LONG | {"max_tokens": 3}).status_code == 200
