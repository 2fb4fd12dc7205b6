"""Global flags, the environment, the configuration file, and command lines that are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Exo
from .fake_api import FakeApi

CONFIG = """\
defaultAccount = "one"

[[accounts]]
name = "one"
key = "EXOone"
secret = "s1"
endpoint = "{endpoint}"
defaultZone = "ch-gva-2"
defaultOutputFormat = "json"

[accounts.customHeaders]
X-Team = "search"

[[accounts]]
name = "two"
key = "EXOtwo"
secretCommand = ["echo", "s2"]
endpoint = "{endpoint}"
"""


@pytest.fixture
def config(api: FakeApi, tmp_path: Path) -> Path:
    file = tmp_path / "exoscale.toml"
    file.write_text(CONFIG.format(endpoint=api.endpoint))
    return file


@pytest.mark.parametrize(
    "argv",
    [
        ("-O", "json", "-z", "at-vie-2", "ai", "model", "list"),
        ("ai", "-O", "json", "-z", "at-vie-2", "model", "list"),
        ("ai", "model", "-O", "json", "-z", "at-vie-2", "list"),
        ("ai", "model", "list", "-O", "json", "-z", "at-vie-2"),
        ("ai", "model", "list", "--output-format=json", "--zone=at-vie-2"),
        ("ai", "-z", "at-vie-2", "model", "list", "-Ojson"),
    ],
)
def test_global_flags_stand_anywhere(exo: Exo, api: FakeApi, argv: tuple[str, ...]) -> None:
    result = exo(*argv)
    assert (result.code, result.out) == (0, "[]\n")
    assert api.lines == ["GET /v2/zone", "GET /v2/ai/model"]


def test_the_flag_nearer_to_the_command_counts(exo: Exo, api: FakeApi) -> None:
    assert exo("-O", "text", "ai", "model", "list", "-O", "json").out == "[]\n"


def test_quiet_before_the_command_counts(exo: Exo, api: FakeApi) -> None:
    assert exo("-Q", "ai", "model", "create", "a/b").out == ""


def test_the_configuration_file_gives_account_zone_and_format(
    exo: Exo, api: FakeApi, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EXOSCALE_ZONE")
    deployment = api.add_deployment("d1", prefix="/z/ch-gva-2/v2")
    result = exo("-C", str(config), "ai", "deployment", "reveal-api-key", "d1")
    assert result.out == f'{{"api_key":"sk-rig-{deployment["id"][:8]}"}}\n'
    assert api.lines[1] == "GET /z/ch-gva-2/v2/ai/deployment"
    assert "credential=EXOone," in api.requests[1].headers["authorization"]
    assert api.requests[1].headers["x-team"] == "search"


def test_another_account_by_flag(exo: Exo, api: FakeApi, config: Path) -> None:
    exo("ai", "model", "list", "-C", str(config), "-A", "two", "-z", "at-vie-2")
    assert "credential=EXOtwo," in api.requests[-1].headers["authorization"]


def test_file_and_account_by_environment(
    exo: Exo, api: FakeApi, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("KEY", "SECRET", "ENDPOINT"):
        monkeypatch.delenv(f"EXOSCALE_API_{name}")
    monkeypatch.setenv("EXOSCALE_CONFIG", str(config))
    monkeypatch.setenv("EXOSCALE_ACCOUNT", "two")
    exo("ai", "model", "list", "-z", "at-vie-2")
    assert "credential=EXOtwo," in api.requests[-1].headers["authorization"]


def test_a_state_directory_is_a_configuration(
    exo: Exo, api: FakeApi, config: Path, tmp_path: Path
) -> None:
    exo("ai", "model", "list", "--state-dir", str(tmp_path), "-z", "at-vie-2")
    assert "credential=EXOone," in api.requests[-1].headers["authorization"]


def test_without_any_configuration_the_hint_is_up(exo: Exo) -> None:
    result = exo("ai", "model", "list")
    assert (result.code, result.out) == (4, "")
    assert "no control plane on this machine" in result.err
    assert "`exo dedicated-inference up`" in result.err


def test_a_control_plane_that_does_not_answer_is_named(
    exo: Exo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("exo_inference.sdk._retries.MAX_ATTEMPTS", 1)
    monkeypatch.setenv("EXOSCALE_API_ENDPOINT", "http://127.0.0.1:9/v2")
    monkeypatch.setenv("EXOSCALE_API_KEY", "EXOx")
    monkeypatch.setenv("EXOSCALE_API_SECRET", "s")
    result = exo("ai", "deployment", "show", "d1")
    assert result.code == 1
    assert "cannot connect to 127.0.0.1:9" in result.err


@pytest.mark.parametrize(
    ("variable", "value", "code"),
    [
        ("EXOSCALE_TIMEOUT", "bad", 2),
        ("EXOSCALE_API_ENDPOINT", "no url", 2),
        ("EXOSCALE_CONFIG", "/nonexistent", 0),
    ],
)
def test_a_malformed_variable_is_named(
    exo: Exo, api: FakeApi, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, code: int
) -> None:
    monkeypatch.setenv(variable, value)
    result = exo("ai", "model", "list")
    assert result.code == code
    assert variable in result.err or code == 0


@pytest.mark.parametrize(
    ("argv", "found"),
    [
        (("ia",), "unknown command 'ia'. Did you mean 'ai'?"),
        (("ai", "modle"), "unknown command 'modle'. Did you mean 'model'?"),
        (("ai", "model", "remove"), "unknown command 'remove'"),
        (
            ("ai", "deployment", "events"),
            "unknown command 'events'. Did you mean `exo dedicated-inference events`?",
        ),
        (("ai", "version"), "unknown command 'version'. Did you mean `exo version`?"),
        (("ai", "deployment", "revael-api-key", "x"), "Did you mean 'reveal-api-key'?"),
        (("ai", "model", "list", "--zoen", "x"), "Did you mean '--zone'?"),
        (("ai", "model", "list", "-X"), "no such option '-X'"),
        (("ai", "model", "list", "-O", "xml"), "'xml' is not one of"),
        (("ai", "model", "list", "--timeout", "0s"), "not a positive duration (e.g. 15s), or -1s"),
        (("ai", "model", "list", "--timeout", "soon"), "'soon' is not a positive duration"),
        (("ai", "model", "list", "surplus"), "unexpected extra argument"),
        (("ai", "model", "list", "-z"), "requires an argument"),
        (("ai", "model", "show"), "missing argument '<name-or-id>'"),
        (("ai", "model", "create"), "missing argument '<name>'"),
    ],
)
def test_a_wrong_command_line_ends_with_2_and_says_how_to_go_on(
    exo: Exo, api: FakeApi, argv: tuple[str, ...], found: str
) -> None:
    result = exo(*argv)
    assert (result.code, result.out) == (2, "")
    assert found in result.err
    assert result.err.splitlines()[-1].startswith("Run `exo")
    assert api.requests == []


def test_a_broken_configuration_file_is_named(exo: Exo, api: FakeApi, tmp_path: Path) -> None:
    (tmp_path / "exoscale.toml").write_text("defaultAccount = ")
    result = exo("ai", "model", "list", "-C", f"{tmp_path}/exoscale.toml")
    assert result.code == 2
    assert f"{tmp_path}/exoscale.toml is not valid TOML" in result.err


def test_an_unknown_account_names_the_known_ones(exo: Exo, config: Path) -> None:
    result = exo("ai", "model", "list", "-C", str(config), "-A", "three")
    assert result.code == 2
    assert "one, two" in result.err


def test_version_as_a_flag(exo: Exo) -> None:
    assert exo("--version") == exo("version")


def test_a_configuration_file_that_does_not_exist_is_a_usage_error(exo: Exo) -> None:
    result = exo("ai", "model", "list", "-C", "/nonexistent")
    assert (result.code, result.out) == (2, "")
    assert "/nonexistent (--config) does not exist" in result.err
