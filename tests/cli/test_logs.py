"""`deployment logs`."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from exo_inference.cli.durations import parse_moment

from .conftest import Exo
from .fake_api import FakeApi


def entry(number: int) -> dict[str, str]:
    return {"time": f"2026-01-01T00:00:0{number}.5Z", "node": "n", "message": f"INFO line {number}"}


@pytest.fixture
def deployment_id(api: FakeApi) -> str:
    api.logs = [entry(number) for number in range(3)]
    return str(api.add_deployment("d1")["id"])


def asked(api: FakeApi) -> dict[str, list[str]]:
    return api.requests[-1].query


def test_logs_print_the_messages(exo: Exo, api: FakeApi, deployment_id: str) -> None:
    result = exo("ai", "deployment", "logs", "d1")
    assert (result.code, result.out) == (0, "INFO line 0\nINFO line 1\nINFO line 2\n")
    path = f"/v2/ai/deployment/{deployment_id}/logs"
    assert api.lines == ["GET /v2/zone", "GET /v2/ai/deployment", f"GET {path}?tail=10"]


@pytest.mark.parametrize(("given", "sent"), [("3", "3"), ("0", "10"), ("-3", "10")])
def test_tail(exo: Exo, api: FakeApi, deployment_id: str, given: str, sent: str) -> None:
    exo("ai", "deployment", "logs", "d1", "--tail", given)
    assert asked(api) == {"tail": [sent]}


def test_timestamps_begin_each_line(exo: Exo, api: FakeApi, deployment_id: str) -> None:
    out = exo("ai", "deployment", "logs", "d1", "--timestamps").out
    assert out.splitlines()[1] == "2026-01-01T00:00:01.500Z INFO line 1"


def test_all_other_flags_are_sent(exo: Exo, api: FakeApi, deployment_id: str) -> None:
    flags = ("--since", "2026-01-31T12:00:00+01:00", "--previous", "--replica", "d1-0")
    exo("ai", "deployment", "logs", "d1", *flags)
    assert asked(api) == {
        "tail": ["10"],
        "since": ["2026-01-31T11:00:00Z"],
        "previous": ["true"],
        "replica": ["d1-0"],
    }


def test_no_previous_run_is_said_and_not_printed(exo: Exo, api: FakeApi) -> None:
    api.add_deployment("d1")
    result = exo("ai", "deployment", "logs", "d1", "--previous")
    assert (result.code, result.out) == (0, "")
    assert "No engine has run before the present one" in result.err
    assert exo("ai", "deployment", "logs", "d1").err == ""


def test_a_relative_since_counts_from_now(exo: Exo, api: FakeApi, deployment_id: str) -> None:
    exo("ai", "deployment", "logs", "d1", "--since", "2h")
    since = datetime.fromisoformat(asked(api)["since"][0])
    assert abs((datetime.now(UTC) - since).total_seconds() - 7200) < 30


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10m", datetime(2026, 1, 1, 11, 50, tzinfo=UTC)),
        ("1h30m", datetime(2026, 1, 1, 10, 30, tzinfo=UTC)),
        ("90", datetime(2026, 1, 1, 11, 58, 30, tzinfo=UTC)),
        ("2025-12-31T00:00:00Z", datetime(2025, 12, 31, tzinfo=UTC)),
        ("2025-12-31T00:00:00", None),
        ("yesterday", None),
        ("-1s", None),
        ("0", None),
        ("99999999999999999999s", None),
    ],
)
def test_moments(text: str, expected: datetime | None) -> None:
    assert parse_moment(text, now=datetime(2026, 1, 1, 12, tzinfo=UTC)) == expected


def test_a_since_that_means_nothing_is_refused(exo: Exo, api: FakeApi) -> None:
    result = exo("ai", "deployment", "logs", "d1", "--since", "yesterday")
    assert result.code == 2
    assert "neither a duration such as 10m or 2h" in result.err
    assert api.requests == []


@pytest.mark.parametrize("flag", ["--follow", "-f"])
def test_follow_prints_lines_until_the_deployment_is_gone(
    exo: Exo, api: FakeApi, deployment_id: str, flag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("exo_inference.sdk._sync.follow.RECONNECT_SECONDS", 0.0)
    lines = "".join(json.dumps(entry(number)) + "\n" for number in range(2)).encode()
    gone = (404, {"message": "no such deployment"})
    api.answers[f"GET /v2/ai/deployment/{deployment_id}/logs"] = [(200, lines), gone]
    result = exo("ai", "deployment", "logs", "d1", flag)
    assert (result.code, result.out) == (0, "INFO line 0\nINFO line 1\n")
    followed = [r.query for r in api.requests if r.path.endswith("/logs")]
    assert followed[0] == {"tail": ["10"], "follow": ["true"]}


def test_follow_and_previous_exclude_each_other(exo: Exo, api: FakeApi) -> None:
    result = exo("ai", "deployment", "logs", "d1", "--follow", "--previous")
    assert result.code == 2
    assert "were both given" in result.err


def test_an_unknown_replica_is_refused_with_the_names_there_are(exo: Exo, api: FakeApi) -> None:
    replicas = [{"name": "d2-6fbc99c8", "state": "ready"}]
    api.add_deployment("d2", replica_status=replicas)
    result = exo("ai", "deployment", "logs", "d2", "--replica", "nope")
    assert (result.code, result.out) == (1, "")
    assert result.err == ("error: deployment \"d2\" has no replica 'nope'\nIt has: d2-6fbc99c8.\n")
    assert exo("ai", "deployment", "logs", "d2", "--replica", "d2-6fbc99c8").code == 0
    assert asked(api)["replica"] == ["d2-6fbc99c8"]


def test_logs_as_json_are_one_object_per_line(exo: Exo, api: FakeApi, deployment_id: str) -> None:
    result = exo("ai", "deployment", "logs", "d1", "-O", "json")
    lines = [json.loads(line) for line in result.out.splitlines()]
    assert [line["message"] for line in lines] == [f"INFO line {n}" for n in range(3)]
    assert lines[0]["time"] == "2026-01-01T00:00:00.500Z"
    template = exo("ai", "deployment", "logs", "d1", "--output-template", "{{.Node}} {{.Message}}")
    assert template.out.splitlines()[2] == "n INFO line 2"
