from __future__ import annotations

import base64
import hashlib
import hmac
import re

import pytest

from exo_inference.sdk import Client
from exo_inference.sdk.signing import Credentials, sign
from exo_inference.wire.signature import compute_signature, string_to_sign

from .fake_api import FakeApi

RIG = Credentials("EXOrigkey", "rigsecret")
LOGS = "/v2/ai/deployment/7975a975-fef8-405e-88a5-d1e68af90398/logs"
MODEL_BODY = b'{"name":"swiss-ai/Apertus-8B-Instruct-2509"}'

# Recorded from the real clients; see the protocol notes, section 2.
VECTORS = [
    pytest.param(
        ("POST", "/v2/ai/model", (), MODEL_BODY, 1795207604),
        "IckundErP3WURmqktmj1EYguGpkOWg257IaKgTk1vyw=",
        id="body",
    ),
    pytest.param(
        (
            "GET",
            "/v2/ai/help/inference-engine-parameters",
            (("version", "0.25.0"),),
            b"",
            1795207680,
        ),
        "51HZgcTAOKl8Yd/y6VRAwN3i1YaAwJB7+NTe273MB2A=",
        id="one-query-argument",
    ),
    pytest.param(
        ("GET", LOGS, (("tail", "3"), ("stream", "True")), b"", 1795208012),
        "no8PKUyeDeyIFMIFyZauWUyG5ak+aJWMiCeL99ScPn8=",
        id="query-arguments-are-signed-in-order-of-their-names",
    ),
]


@pytest.mark.parametrize(("request_parts", "signature"), VECTORS)
def test_signatures_equal_those_of_the_real_clients(request_parts, signature):
    method, path, query, body, expires = request_parts
    header = sign(RIG, method, path, query, body, expires=expires)
    assert header.startswith("EXO2-HMAC-SHA256 credential=EXOrigkey,")
    assert header.endswith(f",expires={expires},signature={signature}")


def test_signed_arguments_are_listed_sorted():
    header = sign(RIG, "GET", LOGS, (("tail", "3"), ("stream", "True")), expires=1)
    assert "signed-query-args=stream;tail," in header


def test_repeated_argument_is_neither_listed_nor_signed():
    once = sign(RIG, "GET", "/x", (("b", "1"),), expires=1)
    repeated = sign(RIG, "GET", "/x", (("a", "1"), ("a", "2"), ("b", "1")), expires=1)
    assert once == repeated


def test_signed_text_has_five_parts_with_an_empty_fourth():
    assert string_to_sign("GET", "/v2/zone", b"", (), 7) == b"GET /v2/zone\n\n\n\n7"
    assert string_to_sign("PUT", "/p", b"b", ("x", "y"), 7) == b"PUT /p\nb\nxy\n\n7"


def test_signature_is_plain_hmac_in_standard_base64():
    expected = base64.b64encode(hmac.new(b"s", b"m", hashlib.sha256).digest()).decode()
    assert compute_signature("s", b"m") == expected


def test_what_is_signed_is_what_is_sent(api: FakeApi, client: Client):
    """Blanks, slashes and unicode in arguments and bodies survive the HTTP library unchanged."""
    api.on("GET", "/ai/deployment/d-1/logs", {"logs": []})
    list(client.deployments.logs("d-1", tail=3, replica="a b/ü+%"))
    seen = api.seen[-1]
    assert seen.query == {"tail": "3", "replica": "a b/ü+%"}
    header = seen.headers["authorization"]
    expires = int(re.search(r"expires=(\d+)", header)[1])
    text = string_to_sign("GET", "/v2/ai/deployment/d-1/logs", b"", ("a b/ü+%", "3"), expires)
    assert header.endswith("signature=" + compute_signature("rigsecret", text))


def test_credentials_do_not_show_their_secret():
    assert "rigsecret" not in repr(RIG)
