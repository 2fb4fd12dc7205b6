"""The signature check: what real clients send passes, everything else is refused with 403."""

from __future__ import annotations

import base64
import hmac
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlencode

import pytest
import requests
from exoscale_auth import ExoscaleV2Auth
from hypothesis import given
from hypothesis import strategies as st

from exo_inference.controller.admission.problems import Refused
from exo_inference.controller.http.auth import CredentialFile, SignedRequest, Verifier
from exo_inference.local_settings import LocalSettings, ensure_credentials
from exo_inference.state_dir import StateDir
from exo_inference.wire import SIGNATURE_PROBLEM
from exo_inference.wire.signature import compute_signature, string_to_sign
from tests.controller.conftest import Controller
from tests.controller.openapi import check_answer

KEY, SECRET, NOW = "EXOrigkey", "rigsecret", 1795207604 - 600


def verifier(now: float = NOW) -> Verifier:
    return Verifier({KEY: SECRET}.get, lambda: now)


def signed(
    method: str = "GET",
    path: str = "/v2/ai/model",
    *,
    query: str = "",
    body: bytes = b"",
    values: tuple[str, ...] = (),
    names: str = "",
    expires: int = NOW + 600,
    key: str = KEY,
    secret: str = SECRET,
) -> SignedRequest:
    signature = compute_signature(secret, string_to_sign(method, path, body, values, expires))
    listed = f"signed-query-args={names}," if names else ""
    header = f"EXO2-HMAC-SHA256 credential={key},{listed}expires={expires},signature={signature}"
    return SignedRequest(method, path, query, body, [header])


@pytest.mark.parametrize(
    ("request_", "expires"),
    [
        pytest.param(
            SignedRequest(
                "POST",
                "/v2/ai/model",
                "",
                b'{"name":"swiss-ai/Apertus-8B-Instruct-2509"}',
                [
                    "EXO2-HMAC-SHA256 credential=EXOrigkey,expires=1795207604,"
                    "signature=IckundErP3WURmqktmj1EYguGpkOWg257IaKgTk1vyw="
                ],
            ),
            1795207604,
            id="body, from the vendor's command line",
        ),
        pytest.param(
            SignedRequest(
                "GET",
                "/v2/ai/help/inference-engine-parameters",
                "version=0.25.0",
                b"",
                [
                    "EXO2-HMAC-SHA256 credential=EXOrigkey,signed-query-args=version,"
                    "expires=1795207680,signature=51HZgcTAOKl8Yd/y6VRAwN3i1YaAwJB7+NTe273MB2A="
                ],
            ),
            1795207680,
            id="query, from the vendor's command line",
        ),
        pytest.param(
            SignedRequest(
                "GET",
                "/v2/ai/deployment/7975a975-fef8-405e-88a5-d1e68af90398/logs",
                "tail=3&stream=True",
                b"",
                [
                    "EXO2-HMAC-SHA256 credential=EXOrigkey,signed-query-args=stream;tail,"
                    "expires=1795208012,signature=no8PKUyeDeyIFMIFyZauWUyG5ak+aJWMiCeL99ScPn8="
                ],
            ),
            1795208012,
            id="two arguments, from the vendor's Python client",
        ),
    ],
)
def test_signatures_of_real_clients_pass(request_: SignedRequest, expires: int) -> None:
    assert verifier(expires - 600).verify(request_).key == KEY


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(
            signed(query="visibility=a&visibility=b", names="visibility"), id="listed, two values"
        ),
        pytest.param(signed(query="a=1&visibility=", names="a", values=("1",)), id="blank"),
        pytest.param(
            signed(query="a=", names="a", values=("",)), id="blank, listed as the Go client does"
        ),
        pytest.param(
            signed(query="v=a+b%26c%3Dd%2B%C3%A9", names="v", values=("a b&c=d+é",)), id="encoded"
        ),
        pytest.param(signed(path="/v2//ai/model"), id="double slash, as sent"),
        pytest.param(signed(path="/v2/ai/model/%C3%A9"), id="encoded path"),
    ],
)
def test_odd_requests_with_a_right_signature_pass(request_: SignedRequest) -> None:
    assert verifier().verify(request_).key == KEY


def test_equal_requests_may_repeat() -> None:
    check = verifier()
    assert [check.verify(signed()).key for _ in range(3)] == [KEY] * 3


def replace(request_: SignedRequest, **changes: object) -> SignedRequest:
    fields = {name: getattr(request_, name) for name in SignedRequest.__dataclass_fields__}
    return SignedRequest(**{**fields, **changes})


HEADER = signed().authorization[0]


@pytest.mark.parametrize(
    ("request_", "because"),
    [
        pytest.param(replace(signed(), method="DELETE"), "does not match", id="other method"),
        pytest.param(replace(signed(), raw_path="/v2/ai/deployment"), "does not match", id="path"),
        pytest.param(replace(signed(), raw_path="/v2//ai/model"), "does not match", id="slashes"),
        pytest.param(replace(signed(), body=b"{}"), "does not match", id="other body"),
        pytest.param(
            replace(signed(), query="dry-run=dry-run"), "not covered", id="added argument"
        ),
        pytest.param(
            signed(query="a=2", names="a", values=("1",)), "does not match", id="other argument"
        ),
        pytest.param(signed(secret="other"), "does not match", id="wrong secret"),
        pytest.param(signed(key="EXOother"), "not known", id="unknown key"),
        pytest.param(signed(key=""), "not known", id="empty key"),
        pytest.param(signed(expires=NOW - 60), "expired 60 s ago", id="a minute ago"),
        pytest.param(signed(expires=NOW - 3600), "expired 3600 s ago", id="expired"),
        pytest.param(signed(expires=NOW + 901), "at most 900 s", id="valid for too long"),
        pytest.param(replace(signed(), authorization=[]), "no signature", id="no header"),
        pytest.param(replace(signed(), authorization=[HEADER] * 2), "more than one", id="two"),
        pytest.param(
            replace(signed(), authorization=["Bearer x"]), "not of the scheme", id="bearer"
        ),
        pytest.param(replace(signed(), authorization=[""]), "not of the scheme", id="empty"),
        pytest.param(
            replace(signed(), authorization=["EXO2-HMAC-SHA256"]),
            "cannot be read",
            id="scheme only",
        ),
        pytest.param(
            replace(signed(), authorization=[HEADER + ",credential=x"]),
            "cannot be read",
            id="twice",
        ),
        pytest.param(
            replace(signed(), authorization=[HEADER.replace("expires=", "expires=-")]),
            "not a Unix time",
            id="negative expiry",
        ),
        pytest.param(
            replace(signed(), authorization=[HEADER.replace("expires=", "expires=٣")]),
            "not a Unix time",
            id="digits of another script",
        ),
        pytest.param(
            replace(signed(), authorization=[HEADER.rpartition(",")[0]]), "incomplete", id="cut"
        ),
        pytest.param(
            replace(signed(), authorization=[HEADER[:-8]]),
            "not one in base64",
            id="short signature",
        ),
    ],
)
def test_everything_else_is_refused(request_: SignedRequest, because: str) -> None:
    with pytest.raises(Refused, match=because) as refused:
        verifier().verify(request_)
    assert refused.value.status_code == 403
    assert refused.value.hint


@given(header=st.text(max_size=200), query=st.text(max_size=60))
def test_no_garbage_passes(header: str, query: str) -> None:
    for text in (header, f"EXO2-HMAC-SHA256 {header}", f"{HEADER[:-44]}{header}"):
        request_ = SignedRequest("GET", "/v2/ai/model", query, b"", [text])
        with pytest.raises(Refused) as refused:
            verifier().verify(request_)
        assert refused.value.status_code == 403


def test_credentials_follow_the_file_and_fail_closed(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    credentials = CredentialFile(state)
    assert credentials.find_secret("any") is None
    first = ensure_credentials(state, LocalSettings(port=1))
    assert credentials.find_secret(first.key) == first.secret
    assert credentials.find_secret("other") is None
    state.config_file.write_text("not toml =")
    assert credentials.find_secret(first.key) is None
    state.config_file.unlink()
    assert credentials.find_secret(first.key) is None
    second = ensure_credentials(state, LocalSettings(port=1))
    assert credentials.find_secret(first.key) is None
    assert credentials.find_secret(second.key) == second.secret


def test_unsigned_requests_get_no_further(idle_controller: Controller) -> None:
    for method, path in (
        ("GET", "/ai/model"),
        ("POST", "/ai/model"),
        ("GET", "/ai/nothing"),
        ("POST", "/zone"),
    ):
        url = idle_controller.endpoint + path
        answer = requests.request(method, url, timeout=5)
        assert answer.status_code == 403, (method, path)
        check_answer(method, path, 403, answer.json())
        assert "Authorization header" in answer.json()["detail"]


def test_zones_and_health_are_open(idle_controller: Controller) -> None:
    root = idle_controller.endpoint.removesuffix("/v2")
    for path in ("/v2/zone", "/v2//zone", "/healthz"):
        assert requests.get(root + path, timeout=5).status_code == 200
    wrong = {"Authorization": "EXO2-HMAC-SHA256 credential=old,expires=1,signature=x"}
    assert requests.get(root + "/v2/zone", headers=wrong, timeout=5).status_code == 200


def test_a_signature_for_one_path_does_not_open_another(idle_controller: Controller) -> None:
    auth = ExoscaleV2Auth(idle_controller.key, idle_controller.secret)
    prepared = requests.Request("GET", idle_controller.endpoint + "/ai/model", auth=auth).prepare()
    with requests.Session() as session:
        assert session.send(prepared).status_code == 200
        assert session.send(prepared).status_code == 200
        prepared.url = idle_controller.endpoint + "/ai/deployment"
        assert session.send(prepared).status_code == 403


def test_an_expired_request_gets_a_hint_about_clocks(idle_controller: Controller) -> None:
    auth = ExoscaleV2Auth(idle_controller.key, idle_controller.secret)
    prepared = requests.Request("GET", idle_controller.endpoint + "/ai/model").prepare()
    auth._sign_request(prepared, int(time.time()) - 60)
    with requests.Session() as session:
        answer = session.send(prepared)
    assert answer.status_code == 403
    assert answer.json()["type"] == SIGNATURE_PROBLEM
    assert "expired 6" in answer.json()["message"]
    assert "clock" in answer.json()["message"]


# -- as each of the vendor's clients signs

HELP = "/v2/ai/help/inference-engine-parameters"


def as_go(method: str, path: str, query: dict[str, str], body: bytes, now: int) -> str:
    """egoscale: names sorted, every argument listed, blank ones too; ten minutes."""
    values = "".join(query[name] for name in sorted(query))
    names = f"signed-query-args={';'.join(sorted(query))}," if query else ""
    return _header(method, path, body, values, names, now + 600)


def as_java(method: str, path: str, query: dict[str, str], body: bytes, now: int) -> str:
    """exoscale-sdk-java: it expires in the present second, and no argument is signed."""
    return _header(method, path, body, "", "", now)


def _header(method: str, path: str, body: bytes, values: str, names: str, expires: int) -> str:
    text = f"{method} {path}\n".encode() + body + f"\n{values}\n\n{expires}".encode()
    digest = base64.b64encode(hmac.new(SECRET.encode(), text, "sha256").digest()).decode()
    return f"EXO2-HMAC-SHA256 credential={KEY},{names}expires={expires},signature={digest}"


def as_python(method: str, path: str, query: dict[str, str], body: bytes, now: int) -> str:
    """The package `exoscale` itself."""
    url = f"http://127.0.0.1{path}" + (f"?{urlencode(query)}" if query else "")
    request = requests.Request(method, url, data=body or None).prepare()
    ExoscaleV2Auth(KEY, SECRET)._sign_request(request, now + 600)
    return str(request.headers["Authorization"])


@pytest.mark.parametrize("sign", [as_go, as_python, as_java])
@pytest.mark.parametrize("seconds_late", [0, 2, 59])
@pytest.mark.parametrize(
    ("method", "path", "query", "body"),
    [
        ("GET", "/v2/ai/model", {}, b""),
        ("GET", HELP, {"version": "0.25.0"}, b""),
        ("GET", "/v2/ai/deployment/x/logs", {"tail": "3", "stream": "true"}, b""),
        ("GET", "/v2/ai/deployment", {"visibility": "private"}, b""),
        ("POST", "/v2/ai/model", {}, b'{"name":"a/b"}'),
        ("DELETE", "/v2/ai/model/x", {}, b""),
    ],
)
def test_what_each_client_of_the_vendor_signs_is_accepted(
    sign: Callable[..., str],
    seconds_late: int,
    method: str,
    path: str,
    query: dict[str, str],
    body: bytes,
) -> None:
    header = sign(method, path, query, body, NOW)
    request_ = SignedRequest(method, path, urlencode(query), body, [header])
    assert verifier(NOW + seconds_late).verify(request_).key == KEY


@pytest.mark.parametrize(
    ("method", "path", "query", "body", "names", "signature"),
    [
        ("GET", "/instance/0b12cb6b-7e3e-4c0e-9e10-1e5d8a7c4b2a", "", b"", "",
         "xdOhvE746GnETaaYoflEK4ucguvSsVJW1fnXZAboV54="),
        ("GET", "/instance", "labels=web&manager-type=instance-pool", b"", "labels;manager-type",
         "gVbvdwVNMPtM6KFi0aNOcMfJ6P4kJhgUX/r6KT+mt9k="),
        ("GET", "/instance", "labels=a%20b", b"", "labels",
         "c52iAK8YkX82SvWfz2L0NB3ifLH+B4tVwMAhdczd+hA="),
        ("POST", "/instance", "", b'{"disk-size":10,"name":"foo"}', "",
         "ZqEE7tXE57UIydqAXHsqZgGA/UzTft1t9PFFVKvNGtA="),
        ("PUT", "/instance/0b12cb6b-7e3e-4c0e-9e10-1e5d8a7c4b2a", "include-deprecated=true",
         b'{"tags":["a"]}', "include-deprecated", "X8y11+VpWDTXeX7V88MtwWBn33rCh4d+d6nLtDkzC3g="),
        ("DELETE", "/vpc/0b12cb6b-7e3e-4c0e-9e10-1e5d8a7c4b2a", "", b"", "",
         "7ZZ1cRu5alwvGdq5CVMcme5fbWCinBUfxeQmyb3IDoA="),
    ],
)  # fmt: skip
def test_the_vectors_of_the_typescript_sdk_are_accepted(
    method: str, path: str, query: str, body: bytes, names: str, signature: str
) -> None:
    """exoscale/exoscale-sdk-ts, test/signing.shared.ts@60f1838: made by the Go implementation."""
    listed = f"signed-query-args={names}," if names else ""
    header = (
        f"EXO2-HMAC-SHA256 credential=test-key,{listed}expires=1750000000,signature={signature}"
    )
    check = Verifier({"test-key": "0123456789abcdef"}.get, lambda: 1750000000.0 - 600)
    request_ = SignedRequest(method, path, query, body, [header])
    assert check.verify(request_).key == "test-key"


@pytest.mark.parametrize(
    ("method", "query"),
    [("POST", "version=1"), ("DELETE", "tail=1"), ("GET", "follow=true"), ("GET", "x=1")],
)
def test_only_the_vendors_arguments_of_reads_may_be_unsigned(method: str, query: str) -> None:
    with pytest.raises(Refused, match="not covered"):
        verifier().verify(replace(signed(method), query=query))
