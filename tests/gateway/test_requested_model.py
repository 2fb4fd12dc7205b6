"""Which model a request asks for."""

from __future__ import annotations

import json

import pytest

from exo_inference.gateway.models.requested_model import RequestedModel
from exo_inference.gateway.table import Deployment, Replica

OLD, NEW = "exo/old", "exo/new"


def asked(body: bytes, known=(OLD, NEW), path="/v1/chat/completions"):
    return RequestedModel(path, body)._find(known)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(b'{"model":"exo/old"}', OLD, id="plain"),
        pytest.param(
            b'{"messages":[],\r\n "model" :\t"exo\\/old"}', OLD, id="escaped, with blanks"
        ),
        pytest.param(b'{"m\\u006fdel":"exo/old"}', OLD, id="key with an escape"),
        pytest.param(json.dumps({"model": OLD}).encode("utf-16"), OLD, id="UTF-16"),
        pytest.param(b'{"model":"exo/other"}', "exo/other", id="unknown"),
        pytest.param(b'{"model":"exo/old","m":{"model":"x"}}', OLD, id="another one within"),
        pytest.param(b'{"m":{"model":"exo/new"},"model":"exo/old"}', OLD, id="a known one within"),
        pytest.param(b'{"model":"exo/new","model":"exo/old"}', OLD, id="twice: the last"),
        pytest.param(b'{"input":"\\"model\\":\\"exo/new\\""}', None, id="within a text"),
        pytest.param(b'{"role":"model","model":"exo/old"}', OLD, id="as a value"),
        pytest.param(b'{"model":null}', None, id="null"),
        pytest.param(b'{"model":7}', None, id="a number"),
        pytest.param(b'{"model":""}', None, id="empty"),
        pytest.param(b'{"model":"exo/old', None, id="cut off"),
        pytest.param(b"[" * 100_000 + b'"\\u006d"', None, id="deep"),
        pytest.param(b"--b\r\nname", None, id="a form that is none"),
        pytest.param(b"", None, id="nothing"),
        pytest.param(b'{"a":[' + b'{"model":"x"},' * 99 + b'0],"model":"exo/old"}', OLD, id="many"),
    ],
)
def test_the_name_in_a_body(body: bytes, expected: str | None) -> None:
    assert asked(body) == expected


def test_a_long_body_is_searched_and_never_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    text = b"x" * (4 << 20)
    parsed = []
    real = json.loads
    monkeypatch.setattr(json, "loads", lambda text: parsed.append(len(text)) or real(text))
    assert asked(b'{"input":"' + text + b'","model":"exo/old"}') == OLD
    assert asked(b'{"m":{"model":"exo/new"},"input":"' + text + b'","model":"exo/old"}') == ""
    assert max(parsed) < 100


def test_a_body_is_looked_at_only_while_models_differ() -> None:
    deployment = Deployment("d", "chat", "ready", "", (), (Replica("a", "http://a"),), 8)
    model = RequestedModel("/v1/completions", b'{"model":"exo/old"}')
    assert model.narrow(deployment) is deployment
    assert model._names is None
