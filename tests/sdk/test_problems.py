from __future__ import annotations

import json

import pytest

from exo_inference import errors
from exo_inference.sdk._problems import api_error
from exo_inference.wire import SIGNATURE_PROBLEM


def error(status, body, headers=None):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return api_error(status, headers or {}, raw, "creating x")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, errors.BadRequest),
        (401, errors.AuthenticationFailed),
        (403, errors.AuthenticationFailed),
        (404, errors.NotFound),
        (409, errors.Conflict),
        (412, errors.PreconditionFailed),
        (422, errors.BadRequest),
        (429, errors.TooManyRequests),
        (451, errors.ApiError),
        (500, errors.ServerError),
        (503, errors.ServerError),
    ],
)
def test_each_status_has_its_class(status, kind):
    assert type(error(status, {"message": "m"})) is kind


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"message": "Invalid request signature"}, errors.AuthenticationFailed),
        ({"title": "Forbidden", "detail": "no such key"}, errors.AuthenticationFailed),
        (b"<html>no</html>", errors.AuthenticationFailed),
        ({"type": SIGNATURE_PROBLEM, "title": "Signature refused"}, errors.AuthenticationFailed),
        ({"type": "about:blank", "title": "Model not created"}, errors.ApiError),
    ],
)
def test_a_403_is_about_the_credentials_unless_its_problem_says_otherwise(body, kind):
    found = error(403, body)
    assert type(found) is kind
    assert (found.hint is not None) == (kind is errors.AuthenticationFailed)
    assert found.exit_code == (4 if kind is errors.AuthenticationFailed else 1)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        pytest.param(
            {"title": "Bad count", "detail": "too many", "message": "x"},
            "creating x: Bad Request: Bad count: too many",
            id="title-and-detail",
        ),
        pytest.param(
            {"title": "Bad Request", "detail": "too many"},
            "creating x: Bad Request: too many",
            id="title-that-repeats-the-phrase",
        ),
        pytest.param({"title": "T"}, "creating x: Bad Request: T", id="title-alone"),
        pytest.param({"detail": "D"}, "creating x: Bad Request: D", id="detail-alone"),
        pytest.param({"message": "M"}, "creating x: Bad Request: M", id="message"),
        pytest.param({"error": "E"}, "creating x: Bad Request: E", id="error"),
        pytest.param(
            {"error": {"message": "inner", "code": 3}},
            "creating x: Bad Request: inner",
            id="error-object-of-openai",
        ),
        pytest.param(
            {"message": {"a": 1}}, 'creating x: Bad Request: {"a": 1}', id="object-message"
        ),
        pytest.param({}, "creating x: Bad Request", id="empty-object"),
        pytest.param(b"", "creating x: Bad Request", id="empty-body"),
        pytest.param(b"<h1>no</h1>", "creating x: Bad Request: <h1>no</h1>", id="not-json"),
        pytest.param(b"\xff\xfe", "creating x: Bad Request: ��", id="not-text"),
        pytest.param("plain", "creating x: Bad Request: plain", id="json-string"),
        pytest.param(None, "creating x: Bad Request", id="json-null"),
    ],
)
def test_every_form_of_body_becomes_a_message(body, message):
    assert error(400, body).message == message


def test_problems_are_data_and_shown_each_on_its_line():
    found = error(
        400,
        {
            "title": "Invalid",
            "detail": "two problems",
            "errors": [
                {"location": "$['replicas']", "detail": "must be at least 1"},
                {"location": "$['model']['name']", "detail": "unknown"},
                "a plain one",
                {"detail": 'does not have a value in the enumeration ["a","b"]', "location": "$.v"},
            ],
        },
    )
    assert found.problems == (
        ("replicas", "must be at least 1"),
        ("model.name", "unknown"),
        ("", "a plain one"),
        ("v", "invalid value; valid values are: a, b"),
    )
    assert str(found).splitlines()[1] == "  - replicas: must be at least 1"
    assert str(found).splitlines()[3] == "  - a plain one"


def test_list_body_gives_problems():
    assert error(400, ["one", "two"]).problems == (("", "one"), ("", "two"))


@pytest.mark.parametrize("entries", [["chat", "code"], [{"name": "chat"}, {"id": "code"}]])
def test_deployments_that_block_a_deletion_are_named(entries):
    found = error(412, {"deployments": entries})
    assert found.deployments == ("chat", "code")
    assert found.hint == "Delete what uses it first: chat, code."


def test_long_foreign_bodies_are_cut():
    assert len(error(502, b"x" * 100_000).message) < 400


def test_retry_after_in_seconds_and_as_a_date():
    assert error(429, {}, {"retry-after": "7"}).retry_after_seconds == 7
    past = {"retry-after": "Fri, 20 Nov 2020 20:00:00 GMT"}
    assert error(429, {}, past).retry_after_seconds == 0
    assert error(429, {}, {"retry-after": "soon"}).retry_after_seconds is None


def test_redirect_says_where_the_endpoint_went():
    found = error(308, b"", {"location": "https://new/v2"})
    assert "https://new/v2" in found.hint
    assert found.status_code == 308


def test_one_problem_of_one_field_is_told_in_its_whole_sentence():
    found = error(
        400,
        {
            "title": "Not created",
            "detail": "1 problem",
            "message": "replicas must be at least 1",
            "errors": [{"location": "$['replicas']", "detail": "must be at least 1"}],
        },
    )
    assert found.message == "creating x: Bad Request: Not created: replicas must be at least 1"
    assert found.problems == (("replicas", "must be at least 1"),)


@pytest.mark.parametrize("plan", [7, [], {"verdict": "fits"}], ids=["number", "list", "half"])
def test_a_plan_of_another_form_is_left_out(plan):
    assert error(412, {"title": "t", "detail": "d", "plan": plan}).plan is None


@pytest.mark.parametrize(
    ("message", "detail"),
    [
        ("gpu-count must be at least 1", "must be at least 1"),
        (
            "gpu-type is 'x', expected one of: cpu, gpua5000",
            'does not have a value in the enumeration ["cpu","gpua5000"]',
        ),
    ],
    ids=["text", "choices"],
)
def test_a_single_problem_is_told_once(message: str, detail: str) -> None:
    body = {
        "title": "Deployment not created",
        "detail": "1 problem",
        "message": message,
        "errors": [{"location": "$['field']", "detail": detail}],
    }
    found = api_error(400, {}, json.dumps(body).encode(), "creating it")
    assert str(found) == f"creating it: Bad Request: Deployment not created: {message}"
    assert found.problems
