"""Shell completion: the scripts, and names from the API."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading

import pytest
from click.shell_completion import ShellComplete

from exo_inference.cli.completion import names as completing
from exo_inference.cli.root import root

from .conftest import Exo
from .fake_api import FakeApi


def complete(words: str, index: int) -> list[str]:
    """Ask as bash does; return the values offered."""
    environment = os.environ | {
        "_EXO_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(index),
    }
    done = subprocess.run(
        [sys.executable, "-m", "exo_inference.cli"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_script_names_both_programs(exo: Exo, shell: str) -> None:
    result = exo("completion", shell)
    assert result.code == 0
    assert f"_EXO_COMPLETE={shell}_complete" in result.out
    assert "exo-inference" in result.out


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_the_bash_script_is_valid_bash(exo: Exo) -> None:
    script = exo("completion", "bash").out
    done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_unknown_shell_is_a_usage_error(exo: Exo) -> None:
    assert exo("completion", "tcsh").code == 2


def test_commands_and_flags_are_completed() -> None:
    assert complete("exo ai dep", 2) == ["deployment"]
    assert "--follow" in complete("exo ai deployment logs --fo", 4)


def offered(*words: str) -> list[str]:
    """Ask in this process; the last word is the one being typed."""
    shell = ShellComplete(root, {}, "exo", "_EXO_COMPLETE")
    return [item.value for item in shell.get_completions(list(words[:-1]), words[-1])]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a slow machine answer in its time."""
    monkeypatch.setattr(completing, "LIMIT_SECONDS", 30.0)


def test_names_come_from_the_api(api: FakeApi, patient: None) -> None:
    api.add_deployment("chat")
    api.add_deployment("code")
    api.add_model("org/m1")
    assert offered("ai", "deployment", "show", "c") == ["chat", "code"]
    assert offered("ai", "model", "delete", "") == ["org/m1"]
    assert offered("ai", "model", "list", "-z", "ch") == ["ch-gva-2"]
    assert offered("ai", "deployment", "create", "x", "--gpu-type", "gpua") == ["gpua5000"]


def test_flags_before_count_for_completion(api: FakeApi, patient: None) -> None:
    api.add_deployment("chat", prefix="/z/ch-gva-2/v2")
    assert offered("-z", "ch-gva-2", "ai", "deployment", "show", "c") == ["chat"]
    assert offered("-z", "at-vie-2", "ai", "deployment", "show", "c") == []


def test_names_that_could_drive_the_terminal_are_not_offered(api: FakeApi, patient: None) -> None:
    api.add_deployment("evil\x1b[2J")
    api.add_deployment("even")
    assert offered("ai", "deployment", "show", "e") == ["even"]


def test_without_a_configuration_nothing_is_offered_and_nothing_said() -> None:
    assert complete("exo ai deployment show c", 4) == []


def test_an_api_that_does_not_answer_is_given_up_on(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completing, "LIMIT_SECONDS", 0.2)
    release, ended = threading.Event(), threading.Event()

    def hang(_: object) -> tuple[int, object]:
        release.wait(15)
        ended.set()
        return 200, {}

    api.answers["GET /v2/ai/deployment"] = hang
    try:
        assert offered("ai", "deployment", "show", "c") == []
        assert not ended.is_set()
    finally:
        release.set()
