"""Small things that people meet: help, wrong words and numbers, narrow terminals, colours, Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from exo_inference.cli.deployment.log_lines import readable
from exo_inference.cli.rendering.table import draw_list
from exo_inference.cli.rendering.terminal import display_width
from exo_inference.cli.wait import Followed

from .conftest import Exo
from .fake_api import FakeApi

CREATE = ("ai", "deployment", "create", "chat", "--gpu-type", "gpua5000", "--gpu-count", "1")
CREATE = (*CREATE, "--model-name", "org/m1")
REPO = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("argv", "usage"),
    [
        (("help",), "Usage: exo "),
        (("help", "ai", "deployment"), "Usage: exo dedicated-inference deployment "),
        (("ai", "help"), "Usage: exo dedicated-inference "),
        (("ai", "help", "deployment", "scale"), "Usage: exo dedicated-inference deployment scale "),
    ],
)
def test_help_is_a_command_too(exo: Exo, argv: tuple[str, ...], usage: str) -> None:
    result = exo(*argv)
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(usage)


def test_help_on_what_is_not_there_is_a_usage_error(exo: Exo) -> None:
    assert exo("help", "ai", "nonsense").code == 2
    assert exo("help", "version", "x").code == 2


@pytest.mark.parametrize(
    ("argv", "suggested"),
    [
        (("ai", "stauts"), "'status'"),
        (("ia",), "'ai'"),
        (("ai", "deployment", "crate"), "'create'"),
        (("ai", "explain"), "deployment plan --explain"),
        (("ai", "scale"), "exo dedicated-inference deployment scale"),
        (("deployment",), "exo dedicated-inference deployment"),
        (("ai", "stop"), "exo dedicated-inference down"),
        (("ai", "secret"), "reveal-api-key"),
        (("ai", "sherbet"), None),
        (("ai", "deployment", "repeat"), None),
    ],
)
def test_only_what_is_near_is_suggested(
    exo: Exo, argv: tuple[str, ...], suggested: str | None
) -> None:
    result = exo(*argv)
    assert result.code == 2
    assert ("Did you mean" in result.err) is (suggested is not None)
    assert suggested is None or suggested in result.err


def test_numbers_of_replicas_have_a_range(exo: Exo, api: FakeApi) -> None:
    scaled = exo("ai", "deployment", "scale", "chat", "-1")
    assert (scaled.code, "option" in scaled.err) == (2, False)
    assert "-1 is negative" in scaled.err
    assert exo(*CREATE, "--replicas", "-1").code == 2
    none = exo(*CREATE, "--replicas", "0")
    assert (none.code, "x>=1" in none.err) == (2, True)
    assert "deployment scale <name> 0" in re.sub(r"\s+", " ", exo(*CREATE, "--help").out)
    assert api.lines == []


def test_a_dry_run_does_not_say_that_it_creates(exo: Exo, api: FakeApi) -> None:
    assert exo(*CREATE, "--dry-run").err.startswith('Creating deployment "chat" (dry run)...\n')


def test_a_list_fits_the_terminal_and_is_whole_in_a_pipe(
    exo: Exo, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = api.add_deployment("a-rather-long-name-of-a-deployment")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    narrow = exo("ai", "deployment", "list", tty=True).out
    assert {display_width(line) for line in narrow.splitlines()} == {80}
    assert "…" in narrow
    piped = exo("ai", "deployment", "list").out
    assert deployment["id"] in piped
    assert "…" not in piped


def test_columns_stay_readable_however_narrow_the_terminal_is() -> None:
    drawn = draw_list(("ID", "Name"), [("9cdbc987-1111", "日本語日本語日本語")], columns=5)
    assert "│ 9cdbc… │ 日本…  │" in drawn
    whole = draw_list(("ID", "Name"), [("9cdbc987-1111", "x")], columns=500)
    assert whole == draw_list(("ID", "Name"), [("9cdbc987-1111", "x")])


def test_states_and_errors_are_coloured_where_a_terminal_takes_it(
    exo: Exo, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    api.add_deployment("well")
    api.add_deployment("ill\x1b[31m", state="error")
    listed = exo("ai", "deployment", "list", tty=True).out
    assert "\x1b[32m ready  \x1b[0m" in listed
    assert "\x1b[31m error  \x1b[0m" in listed
    assert "ill\\x1b[31m" in listed
    assert "\x1b[" in exo("ai", "deployment", "show", "well", tty=True).out
    assert exo("ai", "deployment", "show", "nope", tty=True).err.startswith("\x1b[31m\x1b[1merror:")
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert "\x1b" not in exo("ai", "deployment", "list", tty=True).out
            assert "\x1b" not in exo("ai", "deployment", "show", "nope", tty=True).err
    assert "\x1b[32m" not in exo("ai", "deployment", "list").out


def test_ctrl_c_in_a_wait_says_that_it_goes_on(
    exo: Exo, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("exo_inference.sdk._waiting.ready_interval", interrupt)
    api.add_deployment("chat", state="deploying")
    result = exo("ai", "deployment", "scale", "chat", "2", "--wait", "-z", "at-vie-2")
    assert result.code == 130
    assert result.err.endswith(
        'interrupted: deployment "chat" goes on at the control plane\n'
        "See where it stands with `exo dedicated-inference deployment show chat --zone at-vie-2`.\n"
    )


def test_an_interrupted_deletion_goes_on_too() -> None:
    followed: Followed[Any] = Followed("model", "org/m", lambda *_, **__: None, until_gone=True)
    error = followed.interrupted("")
    assert error.message == 'the deletion of model "org/m" goes on at the control plane'
    assert followed.title == 'Waiting until model "org/m" is gone'


def test_deleting_under_a_wait_names_the_deployment(exo: Exo, api: FakeApi) -> None:
    found = api.add_deployment("dw", state="deploying")
    path = f"GET /v2/ai/deployment/{found['id']}"
    api.answers[path] = [(200, found), (404, {"title": "No such deployment"})]
    result = exo("ai", "deployment", "scale", "dw", "2", "--wait")
    assert result.code == 1
    assert 'error: deployment "dw" was deleted while it was waited for' in result.err
    assert found["id"] not in result.err


def test_a_deployment_without_replicas_is_not_called_ready(exo: Exo, api: FakeApi) -> None:
    from exo_inference import Client, NotReady

    deployment_id = api.add_deployment("off", replicas=0)["id"]
    with Client() as client:
        with pytest.raises(NotReady, match="scaled to 0") as caught:
            client.deployments.wait_until_ready(deployment_id, timeout=5)
        assert "scale off 1" in str(caught.value.hint)
        assert client.deployments.wait_until_scaled(deployment_id, timeout=5).replicas == 0
    assert exo("ai", "deployment", "update", "off", "--name", "off", "--wait").code == 0


ENTRY = {
    "time": "2026-01-01T00:00:01.500Z",
    "level": "info",
    "logger": "exo_engine.server",
    "message": "ready on cpu",
    "seconds": 2.5,
    "model": "m",
}


def test_logs_read_well_on_a_terminal_and_stay_as_they_are_elsewhere(
    exo: Exo, api: FakeApi
) -> None:
    line = json.dumps(ENTRY)
    api.logs = [{"time": "2026-01-01T00:00:01.5Z", "node": "n", "message": line}]
    api.add_deployment("chat")
    clock = datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC).astimezone().strftime("%H:%M:%S")
    logs = ("ai", "deployment", "logs", "chat")
    assert exo(*logs, tty=True).out == f"{clock} info ready on cpu seconds=2.5 model=m\n"
    assert exo(*logs).out == line + "\n"
    assert json.loads(exo(*logs, "-O", "json", tty=True).out)["message"] == line


@pytest.mark.parametrize(
    "line",
    ["INFO: started", "{", '{"message": 3}', "[1]", "{" * 5000, '{"level": "info"}', ""],
)
def test_a_line_of_another_form_is_shown_as_it_is(line: str) -> None:
    assert readable(line) == line


def test_the_demo_has_a_directory_of_its_own(tmp_path: Path) -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "EXO_STATE_DIR": "/mine",
    }
    done = subprocess.run(
        ["make", "-n", "demo", "down"],
        cwd=REPO, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    own = f"{tmp_path}/.local/state/exo-inference-demo"
    assert f'EXO_DEMO_STATE_DIR="{own}" scripts/demo' in done.stdout
    assert f'down --state-dir "{own}" --purge --force' in done.stdout
    assert "/mine" not in done.stdout
