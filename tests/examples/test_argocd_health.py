"""Argo CD's health check, run by a real Lua 5.1 on an object in every state.

Argo CD runs it in gopher-lua, which is Lua 5.1, without the libraries that are taken away here.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.examples.files import only
from tests.examples.states import ALL, Seen

lua51 = pytest.importorskip("lupa.lua51", reason="no Lua here: pip install -c constraints.txt lupa")

SCRIPTS = only("argocd/argocd-cm.yaml", "ConfigMap", "argocd-cm")["data"]
PREFIX = "resource.customizations.health.inference.exo.dev_"
HEALTH = {"waiting": "Progressing", "well": "Healthy", "broken": "Degraded"}


def health(body: dict[str, Any]) -> dict[str, str]:
    """Return what Argo CD would show of an object."""
    runtime = lua51.LuaRuntime(register_eval=False, register_builtins=False)
    runtime.execute("io, os, string, math, debug, require = nil, nil, nil, nil, nil, nil")
    runtime.globals().obj = runtime.table_from(body, recursive=True)
    return dict(runtime.execute(SCRIPTS[PREFIX + body["kind"]]))


def test_there_is_a_script_for_each_kind_that_has_conditions() -> None:
    assert set(SCRIPTS) == {PREFIX + "InferenceDeployment", PREFIX + "InferenceModel"}


@pytest.mark.parametrize("seen", ALL, ids=lambda seen: f"{seen.body['kind']}, {seen.state}")
def test_health_is_what_a_person_would_say(seen: Seen) -> None:
    found = health(seen.body)
    assert found["status"] == HEALTH[seen.verdict]
    assert seen.words in found["message"]


@pytest.mark.parametrize(
    "status", [None, {}, {"observedGeneration": 1}], ids=["no", "empty", "bare"]
)
def test_an_object_without_conditions_is_waited_for(status: dict[str, Any] | None) -> None:
    body: dict[str, Any] = {"kind": "InferenceModel", "metadata": {"generation": 1}}
    if status is not None:
        body["status"] = status
    assert health(body) == {"status": "Progressing", "message": "waiting for the controller"}
