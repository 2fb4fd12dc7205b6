from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from exo_inference.config_file import read_accounts
from exo_inference.errors import ConfigurationError, UsageError
from exo_inference.settings import (
    DEFAULT_ENDPOINT,
    Flags,
    load_settings,
    parse_duration,
    resolve_state_dir,
)

KEYS = {"EXOSCALE_API_KEY": "EXOenv", "EXOSCALE_API_SECRET": "env-secret"}

TWO_ACCOUNTS = """\
defaultAccount = "prod"

[[accounts]]
name = "prod"
key = "EXOprod"
secret = "prod-secret"
endpoint = "https://prod.example/v2/"
defaultZone = "at-vie-2"
defaultOutputFormat = "json"
[accounts.customHeaders]
X-Team = "ml"

[[accounts]]
name = "lab"
key = "EXOlab"
secretCommand = ["printf", "lab-secret\\n"]
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(file: Path, text: str = TWO_ACCOUNTS) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def load(home: Path, environ: dict[str, str] | None = None, **flags: object):
    return load_settings(Flags(**flags), {"HOME": str(home), **(environ or {})})


def test_key_and_secret_in_the_environment_are_enough(home):
    settings = load(home, KEYS)
    assert (settings.key, settings.read_secret()) == ("EXOenv", "env-secret")
    assert settings.endpoint == DEFAULT_ENDPOINT
    assert settings.zone is None
    assert settings.output_format == "table"
    assert settings.source == "the environment"


@pytest.mark.parametrize(
    ("key", "secret"),
    [
        ("EXOSCALE_KEY", "EXOSCALE_SECRET"),
        ("EXOSCALE_KEY", "EXOSCALE_SECRET_KEY"),
        ("CLOUDSTACK_KEY", "CLOUDSTACK_SECRET_KEY"),
    ],
)
def test_old_names_of_the_variables_are_read(home, key, secret):
    settings = load(home, {key: "EXOold", secret: "old"})
    assert (settings.key, settings.secret) == ("EXOold", "old")


def test_environment_beats_the_file(home):
    write(home / ".config/exoscale/exoscale.toml")
    environ = {**KEYS, "EXOSCALE_API_ENDPOINT": "http://h:1/v2", "EXOSCALE_ZONE": "z"}
    settings = load(home, environ)
    assert (settings.key, settings.endpoint, settings.zone) == ("EXOenv", "http://h:1/v2", "z")


def test_flags_beat_the_environment(home):
    environ = {**KEYS, "EXOSCALE_API_ENDPOINT": "http://h:1/v2", "EXOSCALE_ZONE": "z"}
    settings = load(
        home,
        environ,
        key="EXOflag",
        secret="s",
        endpoint="http://f/v2",
        zone="y",
        output_format="text",
    )
    assert (settings.key, settings.endpoint, settings.zone) == ("EXOflag", "http://f/v2", "y")
    assert settings.output_format == "text"


@pytest.mark.parametrize("flag", ["config_file", "state_dir", "account"])
def test_file_named_by_a_flag_beats_exported_credentials(home, flag):
    write(home / ".config/exoscale/exoscale.toml")
    write(home / "state/exoscale.toml")
    values = {
        "config_file": home / ".config/exoscale/exoscale.toml",
        "state_dir": str(home / "state"),
        "account": "prod",
    }
    environ = {**KEYS, "EXOSCALE_API_ENDPOINT": "http://env/v2"}
    settings = load(home, environ, **{flag: values[flag]})
    assert settings.key == "EXOprod"
    assert settings.endpoint == "https://prod.example/v2"


@pytest.mark.parametrize(
    ("place", "environ"),
    [
        (".config/exoscale", {}),
        ("xdg/exoscale", {"XDG_CONFIG_HOME": "xdg"}),
        (".exoscale", {}),
        ("", {}),
    ],
)
def test_file_is_found_in_each_of_its_places(home, place, environ):
    write(home / place / "exoscale.toml")
    settings = load(home, {name: str(home / value) for name, value in environ.items()})
    assert settings.key == "EXOprod"
    assert settings.endpoint == "https://prod.example/v2"
    assert settings.zone == "at-vie-2"
    assert settings.output_format == "json"
    assert dict(settings.custom_headers) == {"X-Team": "ml"}


def test_account_is_chosen_by_flag_then_variable_then_file(home):
    write(home / "exoscale.toml")
    assert load(home, {"EXOSCALE_ACCOUNT": "lab"}).key == "EXOlab"
    assert load(home, {"EXOSCALE_ACCOUNT": "lab"}, account="prod").key == "EXOprod"


def test_secret_command_is_run_only_when_the_secret_is_needed(home):
    settings = load(home, {"EXOSCALE_CONFIG": str(write(home / "x.toml"))}, account="lab")
    assert settings.secret is None
    assert settings.read_secret() == "lab-secret"


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ('["false"]', "exit status 1"),
        ('["/does/not/exist"]', "FileNotFoundError"),
        ('["true"]', "printed nothing"),
    ],
)
def test_failing_secret_command_is_named(home, command, reason):
    text = f'[[accounts]]\nname="a"\nkey="k"\nsecretCommand={command}\n'
    settings = load(home, config_file=write(home / "x.toml", text))
    with pytest.raises(ConfigurationError, match=reason):
        settings.read_secret()


def test_only_account_needs_no_default(home):
    write(home / "exoscale.toml", '[[accounts]]\nname="a"\nkey="k"\nsecret="s"\n')
    assert load(home).key == "k"


def test_unknown_accounts_are_refused_with_the_known_ones(home):
    file = write(home / "exoscale.toml")
    with pytest.raises(UsageError, match="no account 'x'; the file has: prod, lab"):
        load(home, account="x")
    write(file, TWO_ACCOUNTS.replace('"prod"\n\n', '"gone"\n\n'))
    with pytest.raises(UsageError, match=r"exoscale.toml:1: there is no account 'gone'"):
        load(home)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = 1\ndefaultAccount = x\n", r"x.toml is not valid TOML: .*line 2"),
        ("defaultAccount = 3", r"x.toml:1: defaultAccount must be a string"),
        ("accounts = 3", r"x.toml:1: accounts must be \[\[accounts\]\] tables"),
        ('[[accounts]]\nname="a"\nkey=5\nsecret="s"', r"x.toml:3: key must be a string"),
        ('[[accounts]]\nname="a"\nkey="k"', r"x.toml:3: key must be given .* with secret"),
        ('[[accounts]]\nkey="k"\nsecret="s"', r"x.toml:1: name must be given"),
        (
            '[[accounts]]\nname="a"\nkey="k"\nsecret="s"\n'
            '[[accounts]]\nname="b"\nkey="k"\nsecret="s"\nendpoint="h:1"\n',
            r"x.toml:9: endpoint must be an http",
        ),
        ('[[accounts]]\nname="a"\nkey="k"\nsecretCommand="x"', r"x.toml:4: secretCommand must be"),
        (
            '[[accounts]]\nname="a"\nkey="k"\nsecret="s"\n[accounts.customHeaders]\nA=1',
            r"x.toml:5: customHeaders must be",
        ),
    ],
    ids=lambda value: value[:24],
)
def test_malformed_files_are_refused_with_file_and_line(home, text, message):
    with pytest.raises(UsageError, match=message):
        load(home, config_file=write(home / "x.toml", text))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("EXOSCALE_TIMEOUT", "soon"),
        ("EXOSCALE_TIMEOUT", "0"),
        ("EXOSCALE_API_ENDPOINT", "localhost:8080"),
        ("EXOSCALE_API_ENDPOINT", "http://h/v2?x=1"),
    ],
)
def test_malformed_variables_are_named(home, name, value):
    with pytest.raises(UsageError, match=name):
        load(home, {**KEYS, name: value})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("15s", 15), ("1m30s", 90), ("500ms", 0.5), ("2h", 7200), ("2.5", 2.5), ("-1s", math.inf)],
)
def test_durations(text, seconds):
    assert parse_duration(text, "--timeout") == seconds


@pytest.mark.parametrize("text", ["", "x", "-5s", "0s", "5 apples", "nan", "inf", "1s2"])
def test_wrong_durations_name_their_flag(text):
    with pytest.raises(UsageError, match="--timeout is"):
        parse_duration(text, "--timeout")


def test_local_control_plane_is_used_when_nothing_is_configured(home):
    text = '[[accounts]]\nname="local"\nkey="EXOl"\nsecret="s"\nendpoint="http://127.0.0.1:1/v2"\n'
    write(home / ".local/state/exo-inference/exoscale.toml", text)
    assert load(home).key == "EXOl"
    write(home / "state/exo-inference/exoscale.toml", text.replace("EXOl", "EXOx"))
    assert load(home, {"XDG_STATE_HOME": str(home / "state")}).key == "EXOx"
    write(home / ".config/exoscale/exoscale.toml")
    assert load(home).key == "EXOprod"


def test_state_dir_names_a_control_plane(home):
    text = '[[accounts]]\nname="local"\nkey="EXOl"\nsecret="s"\n'
    write(home / "plane/exoscale.toml", text)
    write(home / ".config/exoscale/exoscale.toml")
    assert load(home, {"EXO_STATE_DIR": str(home / "plane")}).key == "EXOl"
    assert load(home, state_dir=home / "plane").key == "EXOl"
    with pytest.raises(ConfigurationError, match="no control plane was ever started") as caught:
        load(home, state_dir=home / "none")
    assert f"up --state-dir {home / 'none'}" in caught.value.hint


def test_state_dir_that_is_meant(home):
    assert resolve_state_dir("a", {}) == Path("a")
    assert resolve_state_dir(None, {"EXO_STATE_DIR": "b"}) == Path("b")
    assert resolve_state_dir(None, {}).name == "exo-inference"


def test_nothing_configured_says_what_to_do(home):
    with pytest.raises(ConfigurationError, match="no credentials") as caught:
        load(home)
    assert caught.value.exit_code == 4
    assert "exo dedicated-inference up" in caught.value.hint


@pytest.mark.parametrize(("given", "missing"), [("KEY", "SECRET"), ("SECRET", "KEY")])
def test_half_of_the_credentials_is_told(home, given, missing):
    with pytest.raises(ConfigurationError, match=f"EXOSCALE_API_{missing} is not"):
        load(home, {f"EXOSCALE_API_{given}": "x"})
    with pytest.raises(ConfigurationError, match="only one of key and secret"):
        load(home, **{given.lower(): "x"})


def test_named_file_must_exist(home):
    with pytest.raises(UsageError, match=r"none.toml \(EXOSCALE_CONFIG\) does not exist"):
        load(home, {"EXOSCALE_CONFIG": str(home / "none.toml")})


def test_secrets_are_not_shown(home):
    settings = load(home, config_file=write(home / "x.toml"))
    assert "prod-secret" not in repr(settings)
    assert "X-Team" not in repr(settings)
    assert "s3cret" not in repr(Flags(secret="s3cret"))


def test_reading_settings_loads_only_the_standard_library():
    code = (
        "import sys, exo_inference.settings;"
        "print(sorted({'httpx', 'pydantic', 'click', 'yaml', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_named_pipe_as_configuration_is_told_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "exoscale.toml")
    with pytest.raises(UsageError, match="it is not a regular file"):
        read_accounts(tmp_path / "exoscale.toml")


@pytest.mark.parametrize("directory", ["/dev/fd", "/proc/self/fd"])
def test_a_pipe_that_the_shell_makes_is_read(directory: str) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"accounts = []")
    os.close(writer)
    try:
        assert read_accounts(Path(f"{directory}/{reader}")) == ([], None)
    finally:
        os.close(reader)
