"""A user's own Secret with the Hub's token: what the download gets, and which Secrets are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from exo_inference.platforms.base import DesiredModel, TokenSecretUnusable
from exo_inference.platforms.kubernetes.model_values import model_values, token_of
from exo_inference.resources import TokenSecretRef

MODEL = DesiredModel("7d3b9f0e-5a55-4b8b-9a5e-0d1f6c1d2a11", "m", "org/m", "abc", 1000)
SECRET = TokenSecretRef(name="hub")


def test_a_users_own_secret_is_named_and_another_one_is_a_new_download() -> None:
    mine = replace(MODEL, token_secret=TokenSecretRef(name="hub", key="hf"))
    values = model_values(mine, {}, "1")
    assert values["download"]["token"] == {"secretName": "hub", "secretKey": "hf"}
    other = model_values(replace(mine, token_secret=TokenSecretRef(name="hub")), {}, "1")
    assert other["download"]["token"]["secretKey"] == "token"
    assert other["commonLabels"] != values["commonLabels"]


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"type": "Opaque"}, "has no key 'token'"),
        ({"data": {"other": "aGZfeA=="}}, "has no key 'token'"),
        ({"data": {"token": ""}}, "holds no token"),
        ({"data": {"token": "aGYgeA=="}}, "holds no token"),
        ({"data": {"token": "w6Q="}}, "holds no token"),
        ({"data": {"token": "/w=="}}, "holds no token"),
        ({"type": "helm.sh/release.v1", "data": {"token": "aGZfeA=="}}, "of type helm.sh"),
        (
            {
                "metadata": {"labels": {"app.kubernetes.io/managed-by": "exo-inference"}},
                "data": {"token": "aGZfeA=="},
            },
            "the control plane's own",
        ),
    ],
)
def test_a_secret_that_holds_no_token_of_a_user_is_refused_with_the_reason(
    found: dict[str, Any], words: str
) -> None:
    with pytest.raises(TokenSecretUnusable, match=words) as refused:
        token_of({"metadata": {}, **found}, SECRET)
    assert refused.value.hint
    assert "aGZfeA" not in str(refused.value)


def test_a_secret_that_an_administrator_made_for_the_control_plane_is_refused() -> None:
    found = {"metadata": {}, "data": {"token": "aGZfeA=="}}
    assert token_of(found, SECRET, frozenset({"another"})) == "hf_x"
    with pytest.raises(TokenSecretUnusable, match="the control plane's own"):
        token_of(found, SECRET, frozenset({SECRET.name}))


def test_the_newline_that_files_end_with_is_no_part_of_a_token() -> None:
    assert token_of({"metadata": {}, "data": {"token": "aGZfeAo="}}, SECRET) == "hf_x"
