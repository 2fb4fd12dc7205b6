"""A path leads to one deployment's /v1 and nowhere else."""

from __future__ import annotations

import pytest

from exo_inference.gateway.addresses import BESIDE_V1, Target, parse_path
from exo_inference.gateway.errors import RequestRefused
from exo_inference.gateway.exchange import request_id_of


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("/chat/v1/chat/completions", Target("chat", "/v1/chat/completions")),
        ("/0b5e-1/v1/models", Target("0b5e-1", "/v1/models")),
        ("/chat/v1/models/exo/tiny-chat", Target("chat", "/v1/models/exo/tiny-chat")),
        ("/chat/v1/models/exo%2Ftiny-chat", Target("chat", "/v1/models/exo%2Ftiny-chat")),
        ("/chat/v1/models/b%C3%A4r", Target("chat", "/v1/models/b%C3%A4r")),
        ("/chat/v1", Target("chat", "/v1")),
        ("/chat/v1/", Target("chat", "/v1/")),
        *((f"/chat{path}", Target("chat", path)) for path in BESIDE_V1),
    ],
)
def test_good_paths(path, target):
    assert parse_path(path) == target


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "",
        "*",
        "/v1/chat/completions",
        "/chat",
        "/chat/",
        "/chat/v2/x",
        "/chat/v2/rerank/x",
        "/chat/v2/rerank%2F..",
        "/chat/v10",
        "/chat/healthz",
        "/chat/health/",
        "/chat/metrics",
        "/chat/server_info",
        "/chat/reset_prefix_cache",
        "/chat/score/",
        "/chat/tokenize/../metrics",
        "/chat/openapixjson",
        "//v1/x",
        "//chat/v1/x",
        "/../v1/x",
        "/%2e%2e/v1/x",
        "/chat/%76%31/x",
        "/chat%2Fv1/x",
        "/chat/v1/../health",
        "/chat/v1/%2e%2e/health",
        "/chat/v1/%2E./health",
        "/chat/v1/x%2F..%2F..%2Fhealth",
        "/chat/v1/./x",
        "/chat/v1/..%5c..%5chealth",
        "/chat/v1/a\\b",
        "/chat/v1/a%00b",
        "/chat/v1/a%0d%0aX-Evil:%201",
        "/chat/v1/%ff",
        "/ch at/v1/x",
    ],
)
def test_everything_else_is_404(path):
    with pytest.raises(RequestRefused) as refused:
        parse_path(path)
    assert refused.value.status == 404


@pytest.mark.parametrize("header", ["abc-1", "a" * 128, "req_01:x/y=z"])
def test_harmless_request_id_is_kept(header):
    assert request_id_of(header) == header


@pytest.mark.parametrize("header", [None, "", "a b", "a" * 129, 'a"b', "ü", "a\tstatus=200"])
def test_other_request_ids_are_replaced(header):
    assert request_id_of(header) != header
    assert len(request_id_of(header)) == 32
