"""A whole control plane, started by the command line as a user would, for the tests of this folder.

Nothing here is a fake: supervisor, controller, gateway and engine run as processes of their own on
the built-in model.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def clean_environment(state_dir: Path) -> dict[str, str]:
    """Return this process's environment without anything that configures a client."""
    drop = ("EXOSCALE_", "EXO_", "HF_", "CLOUDSTACK_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(drop)}
    return {**kept, "HOME": str(state_dir.parent), "EXO_STATE_DIR": str(state_dir)}


@dataclass(frozen=True)
class Stack:
    """One running control plane and how to talk to it."""

    state_dir: Path
    endpoint: str
    zone: str
    gateway: str
    key: str
    secret: str

    def exo(self, *args: str, **kwargs: Any) -> subprocess.CompletedProcess[str]:
        """Run `exo dedicated-inference ARGS` against it."""
        return run_exo(self.state_dir, *args, **kwargs)

    def status(self) -> dict[str, Any]:
        """Return `status -O json`."""
        return json.loads(self.exo("status", "-O", "json").stdout)


def run_exo(
    state_dir: Path,
    *args: str,
    check: bool = True,
    timeout: float = 120,
    variables: dict[str, str] | None = None,
    **kwargs: Any,
) -> subprocess.CompletedProcess[str]:
    result = subprocess.run(
        [sys.executable, "-m", "exo_inference.cli", "dedicated-inference", *args],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**clean_environment(state_dir), **(variables or {})},
        **kwargs,
    )
    assert not check or result.returncode == 0, (args, result.stdout, result.stderr)
    return result


def start_stack(state_dir: Path, *flags: str, variables: dict[str, str] | None = None) -> Stack:
    """Run `up` with some flags, and read the secret from the one file that has it."""
    import tomllib

    run_exo(state_dir, "up", *flags, variables=variables)
    status = json.loads(run_exo(state_dir, "status", "-O", "json").stdout)
    account = tomllib.loads(Path(status["config_file"]).read_text())["accounts"][0]
    return Stack(
        state_dir=state_dir,
        endpoint=status["endpoint"],
        zone=status["zone"],
        gateway=status["gateway"],
        key=status["api_key"],
        secret=account["secret"],
    )


def processes_of(state_dir: Path) -> dict[int, str]:
    """Return the running processes that name the state directory or stand in it, by pid."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            working = os.readlink(entry / "cwd")
        except OSError:
            continue
        if str(state_dir) in command or working.startswith(str(state_dir)):
            found[int(entry.name)] = command
    return found


TALK_FLAGS = "--max-num-seqs=8 --max-model-len=1024"


@pytest.fixture(scope="session")
def talk(stack: Stack) -> dict[str, Any]:
    """A deployment of one replica with `TALK_FLAGS`, and its key: started once, as a start takes seconds."""
    stack.exo("model", "create", "exo/tiny-chat", "--wait")
    stack.exo(
        *("deployment", "create", "talk", "--model-name", "exo/tiny-chat", "--gpu-type", "cpu"),
        *("--gpu-count", "1", "--inference-engine-params", TALK_FLAGS, "--wait"),
        timeout=300,  # engines give way to all else, and beside other work start in minutes
    )
    shown = json.loads(stack.exo("deployment", "show", "talk", "-O", "json").stdout)
    revealed = json.loads(stack.exo("deployment", "reveal-api-key", "talk", "-O", "json").stdout)
    return {**shown, **revealed}


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    state_dir = tmp_path_factory.mktemp("stack") / "state"
    running = start_stack(state_dir)
    try:
        yield running
    finally:
        run_exo(state_dir, "down", check=False)
        assert processes_of(state_dir) == {}
