"""The command line against a real control plane: what both sides must agree on."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest

from exo_inference.sdk import Client

from .conftest import Exo

CREATE = ("ai", "deployment", "create", "chat", "--gpu-type", "cpu", "--gpu-count", "1")
MODEL = ("--model-name", "exo/tiny-chat")


@pytest.fixture(scope="module")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    state_dir = tmp_path_factory.mktemp("control-plane") / "state"
    program = [sys.executable, "-m", "exo_inference.cli", "ai"]
    subprocess.run([*program, "up", "--state-dir", str(state_dir)], check=True, timeout=90)
    try:
        # By this process, whose writes have signatures of their own: a test creates the same model again.
        with Client(state_dir=state_dir) as client:
            client.models.create("exo/tiny-chat")
            client.models.wait_until_ready(client.models.find("exo/tiny-chat").id, timeout=60)
        yield state_dir
    finally:
        subprocess.run([*program, "down", "--state-dir", str(state_dir)], check=True, timeout=90)


@pytest.fixture(autouse=True)
def configured(control_plane: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Point `exo` to the control plane that these tests share; each has to leave it as it was."""
    monkeypatch.setenv("EXO_STATE_DIR", str(control_plane))
    yield
    with Client(state_dir=control_plane) as client:
        deployments, keys = client.deployments.list(), client.api_keys.list()
        models = [model for model in client.models.list() if model.name != "exo/tiny-chat"]
        for collection, left in (
            (client.deployments, deployments),
            (client.models, models),
            (client.api_keys, keys),
        ):
            for each in left:  # so that one test fails, not those that follow as well
                collection.delete(each.id)
    assert [each.name for each in (*deployments, *models, *keys)] == []


def test_a_built_in_model_is_ready_and_listed_once(exo: Exo) -> None:
    shown = json.loads(exo("ai", "model", "show", "exo/tiny-chat", "-O", "json").out)
    assert (shown["name"], shown["state"]) == ("exo/tiny-chat", "ready")
    assert shown["model_size"].endswith("MiB")
    listed = json.loads(exo("ai", "model", "list", "-O", "json").out)
    assert [(row["id"], row["zone"]) for row in listed] == [(shown["id"], "ch-dk-2")]


def test_a_dry_run_is_checked_by_the_server_and_changes_nothing(exo: Exo) -> None:
    asked = exo(*CREATE, *MODEL, "--dry-run")
    assert asked.out.startswith("Fits: exo/tiny-chat on 1 × CPU, exo-engine\n")
    assert asked.err.endswith("Deployment would be created (dry run).\n")
    assert exo("ai", "deployment", "list", "-O", "json").out == "[]\n"
    refused = exo(*CREATE, *MODEL, "--dry-run", "--replicas", "-1")
    assert refused.code == 2
    assert "--replicas" in refused.err
    too_many = exo(*CREATE, *MODEL, "--dry-run", "--replicas", "101")
    assert (too_many.code, "--replicas" in too_many.err) == (1, True)


@pytest.mark.parametrize(
    ("argv", "found"),
    [
        pytest.param((*CREATE, "--model-name", "no/such"), "no/such", id="unknown model"),
        pytest.param(
            (*CREATE, *MODEL, "--inference-engine-version", "9.9.9"),
            "--inference-engine-version is '9.9.9', expected one of: ",
            id="unknown version",
        ),
        pytest.param(
            (*CREATE[:4], "--gpu-type", "gpuxyz", "--gpu-count", "1", *MODEL),
            "gpuxyz",
            id="unknown GPU",
        ),
        pytest.param(
            ("ai", "deployment", "create", "No Label!", *CREATE[4:], *MODEL), "No Label!", id="name"
        ),
        pytest.param(("ai", "model", "create", "exo/tiny-chat"), "exo/tiny-chat", id="taken"),
        pytest.param(("ai", "model", "create", "../../etc"), "../../etc", id="path as name"),
        pytest.param(("ai", "model", "create", "file:///none"), "/none", id="missing directory"),
        pytest.param(("ai", "deployment", "scale", "none", "2"), "'none'", id="scale nothing"),
    ],
)
def test_a_refusal_is_one_clear_error(exo: Exo, argv: tuple[str, ...], found: str) -> None:
    result = exo(*argv)
    assert (result.code, result.out) == (1, "")
    assert found in result.err
    assert "Traceback" not in result.err


def test_a_wrong_secret_ends_with_4(exo: Exo, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = json.loads(exo("ai", "status", "-O", "json").out)["endpoint"]
    monkeypatch.delenv("EXO_STATE_DIR")
    monkeypatch.setenv("EXOSCALE_API_ENDPOINT", endpoint)
    monkeypatch.setenv("EXOSCALE_API_KEY", "EXOwrong")
    monkeypatch.setenv("EXOSCALE_API_SECRET", "wrong")
    result = exo("ai", "deployment", "show", "chat")
    assert result.code == 4
    assert "Forbidden" in result.err


def test_a_model_in_use_is_not_deleted_and_the_deployment_named(exo: Exo) -> None:
    assert exo(*CREATE, *MODEL).code == 0
    refused = exo("ai", "model", "delete", "exo/tiny-chat", "-f")
    assert (refused.code, refused.out) == (1, "")
    assert "chat" in refused.err
    deleted = exo("ai", "deployment", "delete", "chat", "-f", "--wait", "--timeout", "60")
    assert (deleted.code, deleted.out) == (0, "Deployment(s) deleted.\n"), deleted.err


def test_the_engines_flags_are_listed(exo: Exo) -> None:
    result = exo("ai", "deployment", "create", "--inference-engine-parameter-help")
    assert result.code == 0
    assert "  --max-model-len MAX_MODEL_LEN\n" in result.out


def test_plans_of_models_that_only_the_control_plane_has(exo: Exo, tmp_path: Path) -> None:
    folder = tmp_path / "of-mine"
    shutil.copytree(resources.files("exo_inference.hub") / "builtin_models" / "tiny-chat", folder)
    source = f"file://{folder}"
    assert exo("ai", "model", "create", source, "--wait", "--timeout", "60").code == 0
    argv = ("ai", "deployment", "plan", "--model-name", source, "--gpu-type", "cpu", "-O", "json")
    plan = json.loads(exo(*argv).out)
    assert (plan["verdict"], plan["model"], plan["engine"]) == ("fits", source, "exo")
    assert plan["weights_bytes_per_gpu"] > 0
    assert exo(*argv, "--offline").code == 2
    assert exo("ai", "model", "delete", source, "-f", "--wait", "--timeout", "60").code == 0


def test_refusal_for_memory_shows_where_it_goes(exo: Exo) -> None:
    flags = ("--inference-engine-params", "--max-model-len=512 --kv-cache-memory-bytes=4K")
    refused = exo(*CREATE, *MODEL, *flags, "--dry-run")
    assert refused.code == 1
    assert "█ weights" in refused.err


def test_keys_are_made_shown_once_listed_and_taken_back(exo: Exo) -> None:
    assert exo(*CREATE, *MODEL).code == 0
    try:
        made = exo("ai", "api-key", "create", "phone", "--deployment", "chat", "-O", "json")
        assert made.code == 0, made.err
        key = json.loads(made.out)
        assert list(key) == [
            "id", "name", "opens", "created_at", "updated_at", "scope", "deployment", "value",
        ]  # fmt: skip
        assert (key["name"], key["opens"], key["deployment"]) == ("phone", "chat", "chat")
        revealed = json.loads(exo("ai", "api-key", "reveal", "phone", "-O", "json").out)
        assert revealed == {name: key[name] for name in ("id", "name", "value")}
        for name in ("APIKey", "Value"):  # as of `deployment reveal-api-key`
            template = f"{{{{.{name}}}}}"
            shown = exo("ai", "api-key", "reveal", "phone", "--output-template", template)
            assert shown.out == key["value"]
        assert exo("ai", "api-key", "create", "ci", "--all").code == 0
        listed = exo("ai", "api-key", "list", "-O", "json")
        assert [(k["name"], k["opens"]) for k in json.loads(listed.out)] == [
            ("phone", "chat"),
            ("ci", "every deployment"),
        ]
        assert key["value"] not in listed.out
        assert "every deployment" in exo("ai", "api-key", "ls").out
        shown = json.loads(exo("ai", "api-key", "show", "phone", "-O", "json").out)
        assert shown == {name: value for name, value in key.items() if name != "value"}
        rotated = json.loads(exo("ai", "api-key", "rotate", "phone", "-O", "json").out)
        assert (rotated["id"], rotated["value"] == key["value"]) == (key["id"], False)
        assert exo("ai", "api-key", "update", "phone").code == 2
        updated = exo("ai", "api-key", "update", "phone", "--all", "--name", "tablet", "-O", "json")
        assert (json.loads(updated.out)["opens"], json.loads(updated.out)["name"]) == (
            "every deployment",
            "tablet",
        )
        assert exo("ai", "api-key", "update", "tablet", "--name", "phone").out == (
            "API key updated.\n"
        )
        gone = json.loads(exo("ai", "api-key", "delete", "phone", "ci", "-f", "-O", "json").out)
        assert [each["kind"] for each in gone] == ["api-key", "api-key"]
    finally:
        exo("ai", "deployment", "delete", "chat", "-f", "--wait", "--timeout", "60")
    assert exo("ai", "api-key", "list", "-O", "json").out == "[]\n"
    unknown = exo("ai", "api-key", "show", "phone")
    assert (unknown.code, "api-key list" in unknown.err) == (1, True)


@pytest.mark.parametrize("flags", [(), ("--all", "--deployment", "chat")])
def test_what_a_key_opens_has_to_be_said(exo: Exo, flags: tuple[str, ...]) -> None:
    result = exo("ai", "api-key", "create", "x", *flags)
    assert (result.code, "--deployment" in result.err) == (2, True)


def test_events_of_a_deployment_end_when_it_is_gone(exo: Exo) -> None:
    assert exo(*CREATE, *MODEL).code == 0
    listed = json.loads(exo("ai", "events", "chat", "-O", "json").out)
    assert list(listed[0]) == ["time", "type", "reason", "count", "message"]
    assert "Created" in {event["reason"] for event in listed}
    assert "Created" in exo("ai", "events", "chat").out
    with pytest.MonkeyPatch.context() as terminal:
        terminal.setenv("NO_COLOR", "1")
        terminal.setenv("COLUMNS", "80")  # a table would cut what happened to a few letters
        narrow = exo("ai", "events", "chat", tty=True).out
        assert "Normal  Created: deployment chat was created\n" in narrow
        terminal.setenv("COLUMNS", "400")
        assert "│ deployment chat was created " in exo("ai", "events", "chat", tty=True).out
    restarted = json.loads(exo("ai", "deployment", "restart", "chat", "-O", "json").out)
    assert restarted["name"] == "chat"
    follow = [sys.executable, "-m", "exo_inference.cli", "ai", "events", "chat", "-f", "-O", "json"]
    with subprocess.Popen(follow, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        assert json.loads(following.stdout.readline())["reason"] == "Created"
        exo("ai", "deployment", "delete", "chat", "-f", "--wait", "--timeout", "60")
        rest = following.stdout.read()  # `communicate` would leave out what is buffered
    assert "Restarted" in {json.loads(line)["reason"] for line in rest.splitlines()}
    assert following.returncode == 0
    missing = exo("ai", "events", "nothing-of-that-name")
    assert (missing.code, "no deployment and no model" in missing.err) == (1, True)
