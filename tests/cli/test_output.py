"""Output that every command shares: templates, tables, sizes, times, and terminals kept safe."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone

import pytest

from exo_inference.cli.rendering.table import draw_list, draw_rows
from exo_inference.cli.rendering.template import parse_template
from exo_inference.cli.rendering.terminal import display_width, harmless
from exo_inference.cli.rendering.views import format_moment, format_size
from exo_inference.errors import UsageError

from .conftest import Exo
from .fake_api import FakeApi

EVIL = "x\x1b]0;owned\x07\x1b[2J\x9b31m\u202etxt\r\n\x00y"


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("{{.ID}}|{{.State}}", {"ID": "7", "State": "ready"}, "7|ready"),
        ("{{ .ID }}", {"ID": "7"}, "7"),
        ("no fields }} at all", {}, "no fields }} at all"),
        ("", {}, ""),
        ("{{.A}}{{.A}}", {"A": "{{.B}}"}, "{{.B}}{{.B}}"),
    ],
)
def test_template(text: str, values: dict[str, str], expected: str) -> None:
    template = parse_template(text)
    template.check(tuple(values))
    assert template.render(values) == expected


@pytest.mark.parametrize(
    "text",
    ["{{range .}}", "{{.A | json}}", "{{.A.B}}", "{{}}", "{{.A", "{{A}}", "{{- .A -}}", "{{ . }}"],
)
def test_what_is_more_than_a_field_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--output-template"):
        parse_template(text)


def test_an_unknown_field_is_refused_before_anything_is_sent(exo: Exo, api: FakeApi) -> None:
    result = exo("ai", "model", "list", "--output-template", "{{.Sate}}")
    assert result.code == 2
    assert "there is no field .Sate here" in result.err
    assert "Did you mean {{.State}}?" in result.err
    assert api.requests == []


def test_a_template_beats_the_format(exo: Exo, api: FakeApi) -> None:
    api.add_model("org/m1")
    result = exo("ai", "model", "list", "-O", "json", "--output-template", "{{.Name}}")
    assert result.out == "org/m1\n"


@pytest.mark.parametrize(
    ("size_bytes", "expected"),
    [
        (0, ""),
        (-1, ""),
        (9, "9 B"),
        (10, "10 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (5033165, "4.8 MiB"),
        (16069713920, "15 GiB"),
        (10 * 1024**3 - 1, "10 GiB"),
        (1024**4, "1.0 TiB"),
        (2**63, "8.0 EiB"),
    ],
)
def test_sizes_are_rounded_as_the_exo_cli_does(size_bytes: int, expected: str) -> None:
    assert format_size(size_bytes) == expected


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        (None, "0001-01-01T00:00:00Z"),
        (datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC), "2026-01-02T03:04:05Z"),
        (
            datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=2))),
            "2026-01-02T03:04:05+02:00",
        ),
    ],
)
def test_times_have_whole_seconds_and_keep_their_offset(
    moment: datetime | None, expected: str
) -> None:
    assert format_moment(moment) == expected


def test_wide_characters_do_not_break_the_frame() -> None:
    lines = draw_list(["name", "x"], [["日本", "1"], ["e\u0301", "2"], ["abcd", "3"]]).splitlines()
    assert len({display_width(line) for line in lines}) == 1


def test_a_cell_stays_on_its_line() -> None:
    long = "x" * 60
    drawn = draw_rows([("A", long), ("B", "y")], columns=30)
    assert drawn.splitlines() == [f"| A | {long} |", "| B | y" + " " * 21 + " |"]
    assert draw_rows([("A", "one\ntwo")]) == "| A | one\\ntwo |\n"


def test_harmless_shows_what_a_terminal_would_act_on() -> None:
    shown = harmless(EVIL)
    assert shown == r"x\x1b]0;owned\x07\x1b[2J\x9b31m\u202etxt\r\n\x00y"
    assert shown.isprintable()
    assert harmless("naïve 日本 😀") == "naïve 日本 😀"
    assert harmless("a\nb\t", keep="\n\t") == "a\nb\t"


@pytest.mark.parametrize("form", ["table", "json", "text"])
def test_names_from_the_server_are_harmless_on_a_terminal(
    exo: Exo, api: FakeApi, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    api.add_model(EVIL)
    result = exo("ai", "model", "list", "-O", form, tty=True)
    assert "\x1b" not in result.out
    assert "\x9b" not in result.out
    assert "\u202e" not in result.out
    assert "owned" in result.out


def test_json_is_safe_and_true_to_the_name_everywhere(exo: Exo, api: FakeApi) -> None:
    api.add_model(EVIL)
    result = exo("ai", "model", "list", "-O", "json")
    assert "\x9b" not in result.out
    assert json.loads(result.out)[0]["name"] == EVIL


def test_text_into_a_pipe_is_what_the_server_sent(exo: Exo, api: FakeApi) -> None:
    api.add_model("a\x1b[31mb")
    assert "a\x1b[31mb" in exo("ai", "model", "list", "-O", "text").out


def test_errors_from_the_server_are_harmless(exo: Exo, api: FakeApi) -> None:
    api.answers["POST /v2/ai/model"] = (400, {"title": "T", "detail": EVIL})
    result = exo("ai", "model", "create", "a/b")
    assert "\x1b" not in result.err
    assert r"\x1b]0;owned" in result.err


def test_log_lines_are_harmless_on_a_terminal_and_raw_in_a_pipe(exo: Exo, api: FakeApi) -> None:
    api.add_deployment("d1")
    api.logs = [{"time": "2026-01-01T00:00:00Z", "node": "n", "message": "a\x1b[2Jb\n\tc"}]
    assert exo("ai", "deployment", "logs", "d1", tty=True).out == "a\\x1b[2Jb\n\tc\n"
    assert exo("ai", "deployment", "logs", "d1").out == "a\x1b[2Jb\n\tc\n"
