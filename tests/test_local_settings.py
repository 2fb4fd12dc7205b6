"""Ports are chosen once and kept; credentials are made once and stay."""

from __future__ import annotations

import json
import os
import socket
import tomllib
from importlib import resources
from pathlib import Path

import pytest

from exo_inference.errors import ConfigurationError, UsageError
from exo_inference.local_settings import (
    ZONES,
    LocalSettings,
    ensure_credentials,
    find_listener,
    load_settings,
    prepare_settings,
    read_credentials,
    repair_settings,
    save_settings,
)
from exo_inference.state_dir import StateDir


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    state = StateDir(tmp_path / "state")
    state.create()
    return state


@pytest.fixture
def taken_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_first_start_chooses_two_free_ports(state):
    settings = prepare_settings(state).settings
    assert settings.port
    assert settings.gateway_port
    assert settings.port != settings.gateway_port
    assert settings.zone == "ch-dk-2"
    assert not state.settings_file.exists(), "preparing saves nothing"


def test_ports_are_kept_on_the_next_start(state):
    first = prepare_settings(state).settings
    save_settings(state, first)
    second = prepare_settings(state)
    assert second.settings == first
    assert second.notices == ()


def test_kept_port_that_is_taken_is_replaced_and_said_so(state, taken_port):
    first = prepare_settings(state).settings
    save_settings(state, LocalSettings(port=taken_port, gateway_port=first.gateway_port))
    second = prepare_settings(state)
    assert second.settings.port != taken_port
    assert second.settings.gateway_port == first.gateway_port
    (notice,) = second.notices
    assert str(taken_port) in notice
    assert str(second.settings.port) in notice


def test_given_port_that_is_taken_is_refused_with_flag_and_holder(state, taken_port):
    holder = find_listener(taken_port)
    assert holder is not None
    assert holder.pid == os.getpid()
    with pytest.raises(UsageError, match=f"127.0.0.1:{taken_port}.*held by") as raised:
        prepare_settings(state, gateway_port=taken_port)
    assert "--gateway-port" in (raised.value.hint or "")


def test_port_held_by_our_own_controller_counts_as_free(state, taken_port):
    state.write_record("controller", os.getpid())
    assert prepare_settings(state, port=taken_port).settings.port == taken_port


def test_both_flags_with_one_port_are_refused(state):
    free = prepare_settings(state).settings.port
    with pytest.raises(UsageError, match="held by --port of this command"):
        prepare_settings(state, port=free, gateway_port=free)


def test_listener_on_all_addresses_is_noticed(state):
    with socket.create_server(("0.0.0.0", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(UsageError, match=str(port)):
            prepare_settings(state, port=port)


def test_what_is_simulated_is_kept_until_it_is_changed(state):
    first = prepare_settings(state, simulate_gpus="gpua5000=4", simulate_speedup=20).settings
    assert (first.simulate_gpus, first.simulate_speedup) == ("gpua5000=4", 20)
    assert first.simulated == "gpua5000=4, 20 times faster"
    save_settings(state, first)
    assert prepare_settings(state).settings.simulate_gpus == "gpua5000=4"
    cleared = prepare_settings(state, simulate_gpus="", simulate_speedup=1).settings
    assert (cleared.simulate_gpus, cleared.simulated) == ("", "")


@pytest.mark.parametrize("port", [-1, 65536])
def test_port_out_of_range_is_refused(state, port):
    with pytest.raises(UsageError, match="--port"):
        prepare_settings(state, port=port)


def test_host_of_another_machine_is_refused(state):
    with pytest.raises(UsageError, match=r"192\.0\.2\.1"):
        prepare_settings(state, host="192.0.2.1")


def test_unknown_zone_is_refused_with_the_known_ones(state):
    with pytest.raises(UsageError, match="mars-1") as raised:
        prepare_settings(state, zone="mars-1")
    assert "at-vie-2" in (raised.value.hint or "")


def test_zones_are_those_of_the_published_api():
    document = json.loads((resources.files("exoscale") / "openapi.json").read_text())
    assert list(ZONES) == document["components"]["schemas"]["zone-name"]["enum"]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        pytest.param("{", "property name", id="not json"),
        pytest.param("[]", "expected an object", id="not an object"),
        pytest.param("[" * 200_000, "nested too deeply", id="nested"),
        pytest.param('{"port": "8"}', "port is '8'", id="text port"),
        pytest.param('{"port": true}', "port is True", id="boolean port"),
        pytest.param('{"simulate_gpus": 4}', "simulate_gpus is 4", id="numeric GPUs"),
        pytest.param('{"simulate_speedup": "2"}', "simulate_speedup is '2'", id="text speed-up"),
        pytest.param('{"simulate_speedup": 0}', "expected 1 or more", id="speed-up of zero"),
    ],
)
def test_damaged_settings_are_named(state, content, complaint):
    state.settings_file.write_text(content)
    with pytest.raises(UsageError, match=complaint) as raised:
        load_settings(state)
    assert str(state.settings_file) in raised.value.message


@pytest.mark.parametrize("content", ["", "{", "[]", '{"port": "8"}', "\0" * 100])
def test_damaged_settings_are_had_from_their_copy_and_nothing_is_lost(state, content):
    settings = LocalSettings(port=8, gateway_port=9, zone="at-vie-1", simulate_gpus="h100=8")
    save_settings(state, settings)
    state.settings_file.write_text(content)
    assert load_settings(state) == settings
    assert state.settings_file.read_text() == content, "only a start writes"
    done = repair_settings(state)
    assert str(state.settings_file) in done
    assert "settings.json.damaged" in done
    assert (state.root / "settings.json.damaged").read_text() == content
    assert json.loads(state.settings_file.read_text())["port"] == 8
    assert repair_settings(state) == ""


def test_settings_that_are_damaged_twice_say_how_to_mend_them(state):
    state.settings_file.write_text("{")
    state.settings_copy.write_text("{")
    with pytest.raises(UsageError) as raised:
        repair_settings(state)
    assert str(state.settings_file) in raised.value.message
    assert "exoscale.toml" in raised.value.hint
    assert state.settings_file.read_text() == "{"


def test_settings_that_were_deleted_are_not_had_from_their_copy(state):
    save_settings(state, LocalSettings(port=8))
    state.settings_file.unlink()
    assert load_settings(state) is None


def test_unknown_settings_of_a_newer_version_are_ignored(state):
    state.settings_file.write_text('{"port": 8, "colour": "red"}')
    assert load_settings(state) == LocalSettings(port=8)


def test_no_settings_before_the_first_start(state):
    assert load_settings(state) is None


@pytest.mark.parametrize(
    ("host", "reached"),
    [("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("::1", "[::1]"), ("10.0.0.7", "10.0.0.7")],
)
def test_urls_name_an_address_that_can_be_reached(host, reached):
    settings = LocalSettings(host=host, port=1, gateway_host=host, gateway_port=2)
    assert settings.endpoint == f"http://{reached}:1/v2"
    assert settings.gateway_url == f"http://{reached}:2"


def test_credentials_are_made_once_and_endpoint_follows(state):
    first = ensure_credentials(state, LocalSettings(port=1111))
    second = ensure_credentials(state, LocalSettings(port=2222, zone="at-vie-2"))
    assert (second.key, second.secret) == (first.key, first.secret)
    assert second.endpoint == "http://127.0.0.1:2222/v2"
    assert second.zone == "at-vie-2"
    assert read_credentials(state) == second
    assert len(first.key) == 27
    assert first.key.startswith("EXO")


def test_configuration_file_is_private_and_of_the_clients_form(state):
    made = ensure_credentials(state, LocalSettings(port=1))
    state.config_file.chmod(0o644)
    ensure_credentials(state, LocalSettings(port=1))
    assert state.config_file.stat().st_mode & 0o777 == 0o600
    assert tomllib.loads(state.config_file.read_text()) == {
        "defaultAccount": "local",
        "accounts": [
            {
                "name": "local",
                "key": made.key,
                "secret": made.secret,
                "endpoint": "http://127.0.0.1:1/v2",
                "defaultZone": "ch-dk-2",
            }
        ],
    }


def test_secret_never_shows_in_repr(state):
    made = ensure_credentials(state, LocalSettings(port=1))
    assert made.secret not in repr(made)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("x = [", id="not toml"),
        pytest.param("accounts = 3", id="no accounts"),
        pytest.param('[[accounts]]\nname = "local"\nkey = "EXO1"\n', id="no secret"),
        pytest.param('[[accounts]]\nname = "other"\n', id="another account"),
    ],
)
def test_damaged_credentials_are_refused_and_left_alone(state, content):
    state.config_file.write_text(content)
    with pytest.raises(UsageError, match=r"exoscale\.toml"):
        read_credentials(state)
    with pytest.raises(UsageError):
        ensure_credentials(state, LocalSettings(port=1))
    assert state.config_file.read_text() == content


def test_missing_credentials_name_the_next_step(state):
    with pytest.raises(ConfigurationError) as raised:
        read_credentials(state)
    assert "up" in (raised.value.hint or "")


def test_named_pipes_are_told_and_not_waited_for(state):
    os.mkfifo(state.settings_file)
    with pytest.raises(UsageError, match="it is not a regular file"):
        load_settings(state)
    os.mkfifo(state.config_file)
    with pytest.raises(UsageError, match="it is not a regular file"):
        read_credentials(state)


def test_credentials_that_are_nested_too_deeply_are_told(state):
    state.config_file.write_text("a = " + "[" * 200_000)
    with pytest.raises(UsageError, match="cannot read credentials"):
        read_credentials(state)
