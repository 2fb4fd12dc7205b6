"""The two processes start, drain and die together, and leave nothing behind."""

from __future__ import annotations

import concurrent.futures
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import safetensors.torch
from exo_engine.core.host_memory import num_oom_kills

from .conftest import MODEL, Engine, is_alive, write_tiny_model

pytestmark = pytest.mark.slow

LONG = {"model": MODEL, "prompt": "fox", "max_tokens": 3000, "ignore_eos": True, "stream": True}
Start = Callable[..., Engine]


@contextmanager
def streaming(engine: Engine, **changes: Any) -> Iterator[Iterator[str]]:
    """A long stream that has begun."""
    with engine.http.stream("POST", "/v1/completions", json=LONG | changes) as response:
        lines = lines_of(response)
        assert response.status_code == 200
        assert next(lines).startswith("data: {")
        yield lines


def lines_of(response: httpx.Response) -> Iterator[str]:
    """Lines of a stream; those of httpx end at separators within texts, too."""
    rest = b""
    for chunk in response.iter_bytes():
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (each.decode() for each in whole)


def events(lines: Iterator[str]) -> list[Any]:
    """The rest of a stream; the last one may be the word [DONE]."""
    found = [line[6:] for line in lines if line.startswith("data: ")]
    return [each if each == "[DONE]" else json.loads(each) for each in found]


def test_start_can_be_watched_on_a_port_and_keys_guard_what_they_should(
    start_engine: Start,
) -> None:
    engine = start_engine("--uds", "", "--port", "0", "--api-key", "k1", "k2")
    engine.wait_until(lambda: '"listening"' in engine.log.read_text())
    line = next(line for line in engine.log.read_text().splitlines() if '"listening"' in line)
    key = {"Authorization": "Bearer k2"}
    with httpx.Client(base_url=json.loads(line)["address"]) as client:
        health = client.get("/health")
        refused = client.post("/v1/completions", json={"prompt": "a"}, headers=key)
        assert health.status_code == 503
        assert health.json()["status"] == "starting"
        assert health.json()["detail"]
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "model_loading"
        engine.wait_until(lambda: client.get("/health").status_code == 200)
        assert client.get("/health").json() == {"status": "ok"}
        assert client.get("/v1/models").status_code == 401
        assert client.get("/v1/models", headers={"Authorization": "Bearer k3"}).status_code == 401
        assert client.post("/tokenize", json={"prompt": "a"}).status_code == 401
        assert client.get("/v1/models", headers=key).status_code == 200


@pytest.fixture(scope="module")
def small_engine(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Engine]:
    """Two sequences at a time, and one that may wait."""
    directory = tmp_path_factory.mktemp("small")
    running = Engine(directory, model_dir, "--max-num-seqs", "2", "--max-num-queued-reqs", "1")
    try:
        yield running.wait_ready()
    finally:
        running.close()


def test_idle_engine_ends_with_the_process_that_computes(start_engine: Start) -> None:
    engine = start_engine("--distributed-executor-backend", "mp").wait_ready()
    children = Path(f"/proc/{engine.core_pid}/task/{engine.core_pid}/children").read_text()
    (executor,) = map(int, children.split())
    os.kill(executor, signal.SIGKILL)
    assert engine.wait_exit() == 70
    assert "the process that computes steps ended with SIGKILL" in engine.last_line


def test_hang_up_ends_the_request_in_the_core(small_engine: Engine) -> None:
    engine = small_engine

    def ended() -> float:
        return engine.metric("vllm:request_success_total", finished_reason="abort")

    # Other tests have this engine too, in any order.
    ended_before, tokens_before = ended(), engine.metric("vllm:generation_tokens_total")
    with streaming(engine, n=2):
        engine.wait_until(lambda: engine.metric("vllm:num_requests_running") == 2)
    engine.wait_until(lambda: engine.metric("vllm:num_requests_running") == 0)
    assert ended() == ended_before + 2
    assert engine.metric("vllm:generation_tokens_total") < tokens_before + 6000
    assert engine.metric("vllm:kv_cache_usage_perc") == 0
    with engine.asked(LONG | {"stream": False}):
        engine.wait_until(lambda: engine.metric("vllm:num_requests_running") == 1)
    engine.wait_until(lambda: engine.metric("vllm:num_requests_running") == 0)
    assert ended() == ended_before + 3


def test_requests_beyond_the_queue_get_429_and_the_others_go_on(small_engine: Engine) -> None:
    engine = small_engine
    body = LONG | {"stream": False, "max_tokens": 20}
    with concurrent.futures.ThreadPoolExecutor() as pool, streaming(engine, n=2):
        # Before that it is the second of the stream that waits.
        engine.wait_until(lambda: engine.metric("vllm:num_requests_running") == 2)
        queued = pool.submit(engine.http.post, "/v1/completions", json=body)
        engine.wait_until(lambda: engine.metric("vllm:num_requests_waiting") == 1)
        refused = engine.http.post("/v1/completions", json=body)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["code"] == "queue_full"
    assert queued.result().status_code == 200


def test_sigterm_drains_and_ends_with_zero(start_engine: Start) -> None:
    engine = start_engine().wait_ready()
    core = engine.core_pid
    with streaming(engine, max_tokens=500) as lines:
        os.kill(core, signal.SIGSTOP)  # or it may be over before we look
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(core, number)  # as Ctrl-C in a terminal reaches the whole group
        engine.terminate()
        engine.wait_until(lambda: engine.http.get("/health").json()["status"] == "draining")
        refused = engine.http.post("/v1/completions", json={"prompt": "a"})
        assert refused.status_code == 503
        assert refused.headers["x-exo-draining"] == "1"
        assert engine.http.get("/health").status_code == 503
        os.kill(core, signal.SIGCONT)
        rest = events(lines)
    assert rest[-1] == "[DONE]"
    assert rest[-2]["choices"][0]["finish_reason"] == "length"
    assert engine.wait_exit() == 0
    assert not is_alive(core)
    assert sorted(path.name for path in engine.directory.iterdir()) == ["engine.log"]


def test_drain_gives_up_after_its_time_and_says_so_to_the_client(start_engine: Start) -> None:
    engine = start_engine("--shutdown-timeout", "0").wait_ready()
    with streaming(engine) as lines:
        engine.terminate()
        rest = events(lines)
    assert rest[-1]["error"]["code"] == "engine_stopped"
    assert engine.wait_exit() == 0


def test_second_signal_ends_at_once(start_engine: Start) -> None:
    engine = start_engine().wait_ready()
    with streaming(engine) as lines:
        engine.terminate()
        engine.wait_until(lambda: engine.http.get("/health").json()["status"] == "draining")
        engine.process.send_signal(signal.SIGINT)
        assert "error" in events(lines)[-1]
    assert engine.wait_exit() == 0


def test_sigterm_while_starting_ends_at_once(start_engine: Start) -> None:
    engine = start_engine().wait_listening()
    core = engine.core_pid
    engine.terminate()
    assert engine.wait_exit() == 0
    assert '"ready"' not in engine.log.read_text()
    assert not is_alive(core)
    assert not engine.socket.exists()


def test_killed_core_ends_the_server_and_its_streams_with_an_error(start_engine: Start) -> None:
    engine = start_engine().wait_ready()
    with streaming(engine) as lines:
        os.kill(engine.core_pid, signal.SIGKILL)
        rest = events(lines)
    assert rest[-1]["error"]["code"] == "engine_stopped"  # and no [DONE]: it is not whole
    # The kernel may say that it killed nobody for want of memory.
    assert engine.wait_exit() == (71 if num_oom_kills() is None else 70)
    assert engine.last_line.startswith("exo-engine: error: the engine core was killed by signal 9")
    assert not engine.socket.exists()


def test_crashed_core_is_an_internal_error(start_engine: Start) -> None:
    engine = start_engine().wait_ready()
    os.kill(engine.core_pid, signal.SIGABRT)
    assert engine.wait_exit() == 70
    assert "SIGABRT" in engine.last_line


def test_killed_server_takes_its_core_along(start_engine: Start) -> None:
    engine = start_engine().wait_ready()
    core = engine.core_pid
    engine.process.kill()
    engine.process.wait()
    engine.wait_until(lambda: not is_alive(core))


def test_server_killed_while_starting_takes_its_core_along(start_engine: Start) -> None:
    engine = start_engine().wait_listening()
    core = engine.core_pid
    engine.process.kill()
    engine.process.wait()
    engine.wait_until(lambda: not is_alive(core))


def test_taken_port_is_a_clear_error(tmp_path: Path, model_dir: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = run_engine("serve", str(model_dir), "--port", str(port))
    assert result.returncode == 75
    assert result.stderr.splitlines()[-1].startswith(
        f"exo-engine: error: cannot listen on 127.0.0.1:{port}: it is taken."
    )


@pytest.mark.parametrize("damage", ["missing", "config", "weights", "tokenizer", "template"])
def test_unusable_model_ends_with_78_and_one_last_line(
    start_engine: Start, tmp_path: Path, damage: str
) -> None:
    model = write_tiny_model(tmp_path / "model")
    if damage == "missing":
        model = tmp_path / "nothing"
    elif damage == "config":
        (model / "config.json").write_text("{")
    elif damage == "weights":
        with (model / "model.safetensors").open("r+b") as file:
            file.truncate(2000)
    elif damage == "tokenizer":
        (model / "tokenizer.json").write_text("{}")
    else:
        (model / "chat_template.jinja").write_text("{% if %}")
    engine = start_engine(model=model)
    assert engine.wait_exit() == 78
    assert engine.last_line.startswith("exo-engine: error: ")
    assert not engine.socket.exists()


def test_too_small_cache_for_the_length_asked_for_is_78(start_engine: Start) -> None:
    engine = start_engine("--num-gpu-blocks-override", "4", "--max-model-len", "4096")
    assert engine.wait_exit() in (71, 78)
    assert engine.last_line.startswith("exo-engine: error: ")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["serve"], "no model is named"),
        (["serve", "m", "--enable-lora"], "is a vLLM flag that exo-engine does not support"),
        (["serve", "m", "--max-modl-len", "4"], "Did you mean --max-model-len?"),
        (["serve", "m", "--max-num-seqs", "9999999999999"], "must be at most 65536"),
        (["dance"], "no command 'dance'"),
        (["serve", "/nowhere"], "no such directory"),
    ],
    ids=["no model", "vllm flag", "typo", "size", "command", "directory"],
)
def test_wrong_command_line_is_one_line_and_78(words: list[str], text: str) -> None:
    result = run_engine(*words)
    assert result.returncode == 78
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("exo-engine: error: ")
    assert text in lines[0]


def test_many_streams_at_once_are_all_answered(engine: Engine) -> None:
    """Streams of many clients are neither mixed up nor cut off."""

    def ask(number: int) -> str:
        body = {"model": MODEL, "prompt": f"number {number}", "temperature": 0, "max_tokens": 30}
        return str(engine.http.post("/v1/completions", json=body).json()["choices"][0]["text"])

    alone = [ask(number) for number in range(12)]
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        together = list(pool.map(ask, range(12)))
    assert together == alone


def test_slow_reader_gets_everything_in_the_end(engine: Engine) -> None:
    with streaming(engine, max_tokens=400) as lines:
        threading.Event().wait(0.5)
        rest = events(lines)
    text = [each["choices"][0] for each in rest[:-1]]
    assert text[-1]["finish_reason"] == "length"


def test_model_that_computes_no_numbers_says_so(start_engine: Start, tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model")
    tensors = safetensors.torch.load_file(model / "model.safetensors")
    tensors["lm_head.weight"] += float("nan")
    safetensors.torch.save_file(tensors, model / "model.safetensors")
    engine = start_engine(model=model).wait_ready()
    answer = engine.http.post("/v1/completions", json={"prompt": "a", "max_tokens": 3})
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "model_output_not_a_number"
    assert "NaN" in answer.json()["error"]["message"]
    assert "--dtype float32" in answer.json()["error"]["message"]
    assert engine.metric("vllm:corrupted_requests_total") == 1
    assert "the model's output was not a number" in engine.log.read_text()


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/metrics", "/version"])
def test_head_is_answered_without_a_body_or_versions(engine: Engine, path: str) -> None:
    answer = engine.http.head(path)
    assert answer.status_code == 200
    assert answer.content == b""
    assert answer.headers["server"] == "exo-engine"


def run_engine(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "exo_engine.server.main", *words],
        capture_output=True,
        text=True,
        check=False,
    )
