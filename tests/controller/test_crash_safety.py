"""`kill -9` at random moments while writes go on: what was acknowledged is there afterwards."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import requests

from exo_inference.local_settings import LocalSettings, ensure_credentials, save_settings
from exo_inference.state_dir import StateDir
from tests.controller.conftest import DistinctAuth

ROOT = Path(__file__).parents[2]


@dataclass
class Ledger:
    """What the server acknowledged, and what it may or may not have done.

    Attributes:
        replicas: the last acknowledged number of replicas of each live deployment.
        keys: its inference key, which must never change.
        flags: those of the last acknowledged replacement of each.
        doubtful: deployments with a request that was never answered.
    """

    operations: list[str] = field(default_factory=list)
    replicas: dict[str, int] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    flags: dict[str, list[str]] = field(default_factory=dict)
    doubtful: set[str] = field(default_factory=set)


class CrashingController:
    """A controller process on a port of its own, killed and started again."""

    def __init__(self, state: StateDir) -> None:
        self.state = state
        state.create()
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        settings = LocalSettings(port=port, gateway_port=1)
        save_settings(state, settings)
        credentials = ensure_credentials(state, settings)
        self.auth = DistinctAuth(credentials.key, credentials.secret)
        self.endpoint = settings.endpoint
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.controller.fake_controller"]
        with (self.state.logs_dir / "controller.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--state-dir", str(self.state.root)], stderr=log, cwd=ROOT
            )
        deadline = time.monotonic() + 30
        while True:
            with contextlib.suppress(requests.ConnectionError):
                if requests.get(f"{self.endpoint}/zone", timeout=5).ok:
                    return
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.05)

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def log(self) -> str:
        return (self.state.logs_dir / "controller.log").read_text()[-3000:]

    def call(self, method: str, path: str, body: Any = None) -> Any:
        url = self.endpoint + path
        answer = requests.request(method, url, json=body, auth=self.auth, timeout=10)
        answer.raise_for_status()
        return answer.json()

    def find_details(self, uid: str) -> str | None:
        """Return the state details of a deployment; None when it is gone."""
        url = f"{self.endpoint}/ai/deployment/{uid}"
        answer = requests.get(url, auth=self.auth, timeout=10)
        return None if answer.status_code == 404 else answer.json()["state-details"]


@pytest.fixture
def crashing(tmp_path: Path) -> Iterator[CrashingController]:
    controller = CrashingController(StateDir(tmp_path / "state"))
    controller.start()
    try:
        yield controller
    finally:
        controller.kill()


def write_until_killed(
    controller: CrashingController, ledger: Ledger, names: Iterator[str], seed: int
) -> None:
    """Create, scale, replace and delete until a request finds nobody; note each acknowledgement at once."""
    chance = random.Random(seed)
    while True:
        live = [uid for uid in list(ledger.replicas) if uid not in ledger.doubtful]
        choice = chance.random()
        uid = chance.choice(live) if live else ""
        try:
            if not live or choice < 0.4:
                body = {"model": {"name": "org/m1"}, "gpu-type": "cpu", "gpu-count": 1}
                made = controller.call("POST", "/ai/deployment", {**body, "name": next(names)})
                uid = made["reference"]["id"]
                ledger.replicas[uid] = 1
                ledger.operations.append(made["id"])
                ledger.keys[uid] = controller.call("GET", f"/ai/deployment/{uid}/api-key")[
                    "api-key"
                ]
            elif choice < 0.6:
                count, flags = 1 + chance.randrange(2), [f"--seed={chance.randrange(10**9)}"]
                body = {"model": {"name": "org/m1"}, "gpu-type": "gpua5000", "gpu-count": count}
                body |= {"inference-engine-parameters": flags}
                ledger.doubtful.add(uid)
                made = controller.call("PUT", f"/ai/deployment/{uid}", body)
                ledger.operations.append(made["id"])
                ledger.flags[uid] = flags
                ledger.doubtful.discard(uid)
            elif choice < 0.85:
                wanted = chance.randrange(5)
                ledger.doubtful.add(uid)
                made = controller.call("POST", f"/ai/deployment/{uid}/scale", {"replicas": wanted})
                ledger.replicas[uid] = wanted
                ledger.operations.append(made["id"])
                ledger.doubtful.discard(uid)
            else:
                ledger.doubtful.add(uid)
                ledger.operations.append(controller.call("DELETE", f"/ai/deployment/{uid}")["id"])
                ledger.deleted.add(uid)
                ledger.replicas.pop(uid)
        except (requests.ConnectionError, requests.exceptions.ChunkedEncodingError):
            return  # nobody is there, or the kill came in the middle of an answer


def check(controller: CrashingController, ledger: Ledger) -> None:
    listed = controller.call("GET", "/ai/deployment")["deployments"]
    stored = {deployment["id"]: deployment for deployment in listed}
    for uid, replicas in ledger.replicas.items():
        if uid in ledger.doubtful:
            continue
        assert uid in stored, f"acknowledged deployment {uid} is lost"
        assert stored[uid]["replicas"] == replicas
        if uid in ledger.flags:
            shown = controller.call("GET", f"/ai/deployment/{uid}")
            assert shown["inference-engine-parameters"] == ledger.flags[uid]
        if uid in ledger.keys:
            key = controller.call("GET", f"/ai/deployment/{uid}/api-key")["api-key"]
            assert key == ledger.keys[uid]
    for uid in ledger.operations:
        assert controller.call("GET", f"/operation/{uid}")["state"] == "success"
    for uid in ledger.deleted & stored.keys():
        details = controller.find_details(uid)
        assert details is None or "deleting" in details


def crash_often(controller: CrashingController, kills: int) -> None:
    seed = int(os.environ.get("EXO_TEST_SEED", "7"))
    chance, ledger, names = random.Random(seed), Ledger(), (f"d{n}" for n in itertools.count())
    controller.call("POST", "/ai/model", {"name": "org/m1"})
    for number in range(kills):
        writer = threading.Thread(
            target=write_until_killed, args=(controller, ledger, names, seed + number)
        )
        writer.start()
        while (
            not ledger.operations and writer.is_alive()
        ):  # a busy machine acknowledges none so soon
            time.sleep(0.01)
        time.sleep(chance.uniform(0.05, 0.6))
        controller.kill()
        writer.join()
        controller.start()
        check(controller, ledger)
    assert ledger.operations
    deadline = time.monotonic() + 20
    for deployment in controller.call("GET", "/ai/deployment")["deployments"]:
        with contextlib.suppress(requests.HTTPError):  # one that was being deleted has gone
            controller.call("DELETE", f"/ai/deployment/{deployment['id']}")
    while controller.call("GET", "/ai/deployment")["deployments"]:
        assert time.monotonic() < deadline, "a deployment is stuck"
        time.sleep(0.2)


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_by_kill_9(crashing: CrashingController) -> None:
    crash_often(crashing, kills=2)


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_nothing_acknowledged_is_lost_by_fifty_kills(crashing: CrashingController) -> None:
    crash_often(crashing, kills=50)


@pytest.mark.slow
def test_a_second_controller_on_the_same_state_is_refused(crashing: CrashingController) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "exo_inference.controller", "--state-dir", crashing.state.root],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert process.returncode == 78
    assert "another controller runs" in process.stderr.splitlines()[-1]


@pytest.mark.slow
def test_the_secret_key_must_fit_the_database(crashing: CrashingController) -> None:
    crashing.call("POST", "/ai/model", {"name": "org/m1"})
    crashing.kill()
    key = crashing.state.secret_key_file
    original = key.read_bytes()
    for text in (None, "AAAA"):
        key.unlink() if text is None else key.write_text(text)
        command = [sys.executable, "-m", "exo_inference.controller", "--state-dir"]
        process = subprocess.run(
            [*command, crashing.state.root], capture_output=True, text=True, timeout=60
        )
        assert process.returncode == 78, process.stderr
        assert "secret.key" in process.stderr.splitlines()[-1]
        assert text is None or key.read_text() == text
        key.write_bytes(original)
    crashing.start()
    assert len(crashing.call("GET", "/ai/model")["models"]) == 1


def test_a_taken_port_is_said_to_be_taken(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    state.create()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        save_settings(state, LocalSettings(port=port, gateway_port=1))
        command = [sys.executable, "-m", "exo_inference.controller", "--state-dir", str(tmp_path)]
        process = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert process.returncode == 78
    assert f"cannot listen on 127.0.0.1:{port}" in process.stderr.splitlines()[-1]


@pytest.mark.slow
def test_connections_made_while_the_controller_is_restarted_wait_for_it(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    state.create()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port, number = listener.getsockname()[1], listener.fileno()
        save_settings(state, LocalSettings(port=port, gateway_port=1))
        for _ in range(2):
            process = subprocess.Popen(
                [sys.executable, "-m", "exo_inference.controller", "--state-dir", str(tmp_path)],
                env={**os.environ, "EXO_LISTEN_FD": str(number)},
                pass_fds=[number],
                stderr=subprocess.DEVNULL,
            )
            try:
                # Connected before it runs, answered once it does.
                assert requests.get(f"http://127.0.0.1:{port}/healthz", timeout=30).ok
            finally:
                process.terminate()
                process.wait()
            assert process.returncode == 0
