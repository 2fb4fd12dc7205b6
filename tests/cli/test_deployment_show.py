"""`deployment list` and `show`: tables, JSON, text and templates."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .conftest import Exo
from .fake_api import TIME, FakeApi


def test_list_as_table_json_and_text(exo: Exo, api: FakeApi) -> None:
    deployment = api.add_deployment("d1", state="deploying")
    deployment_id = deployment["id"]
    table = exo("ai", "deployment", "list").out.splitlines()
    assert table[1] == (
        "│ ID                                   │ NAME │ ZONE     │ STATUS    │ GPU TYPE │ GPU COUNT "
        "│ REPLICAS │ MODEL NAME │"
    )
    assert table[3] == (
        f"│ {deployment_id} │ d1   │ at-vie-2 │ deploying │ gpua5000 │ 2         │ 1        │ org/m1     │"
    )
    assert exo("ai", "deployment", "ls", "-O", "json").out == (
        f'[{{"id":"{deployment_id}","name":"d1","zone":"at-vie-2","state":"deploying",'
        '"gpu_type":"gpua5000","gpu_count":2,"replicas":1,"model_name":"org/m1"}]\n'
    )
    assert exo("ai", "deployment", "ls", "-O", "text").out == (
        f"{deployment_id}\td1\tat-vie-2\tdeploying\tgpua5000\t2\t1\torg/m1\n"
    )


def shown(api: FakeApi, **more: Any) -> dict[str, Any]:
    return api.add_deployment(
        "d2",
        id="f6b7d6f4-d4e7-424b-9bf0-2dd7b0e6e5ec",
        deployment_url="https://f6b7.example.test/v1",
        state_details="",
        inference_engine_parameters=["--gpu-memory-usage=0.8", "--max-tokens=4096"],
        inference_engine_version="0.25.0",
        **more,
    )


def test_show_as_table(exo: Exo, api: FakeApi) -> None:
    shown(api)
    result = exo("ai", "deployment", "show", "d2")
    rows = [
        ("ID", "f6b7d6f4-d4e7-424b-9bf0-2dd7b0e6e5ec"),
        ("Name", "d2"),
        ("Status", "ready"),
        ("Status Details", ""),
        ("GPU Type", "gpua5000"),
        ("GPU Count", "2"),
        ("Replicas", "1"),
        ("Inference Engine Parameters", "--gpu-memory-usage=0.8 --max-tokens=4096"),
        ("Inference Engine Version", "0.25.0"),
        ("Service Level", "pro"),
        ("Deployment URL", "https://f6b7.example.test/v1"),
        ("Model ID", "39791b86-f80d-41ed-9cab-854099d4ed37"),
        ("Model Name", "org/m1"),
        ("Created At", TIME),
        ("Updated At", TIME),
    ]
    assert result.out == "".join(f"| {label:27} | {value:40} |\n" for label, value in rows)
    path = "/v2/ai/deployment"
    assert api.lines == [
        "GET /v2/zone",
        f"GET {path}",
        f"GET {path}/f6b7d6f4-d4e7-424b-9bf0-2dd7b0e6e5ec",
    ]


def test_show_as_json_text_and_template(exo: Exo, api: FakeApi) -> None:
    shown(api)
    assert exo("ai", "deployment", "get", "d2", "-O", "json").out == (
        '{"id":"f6b7d6f4-d4e7-424b-9bf0-2dd7b0e6e5ec","name":"d2","state":"ready",'
        '"state_details":"","gpu_type":"gpua5000","gpu_count":2,"replicas":1,'
        '"inference_engine_parameters":"--gpu-memory-usage=0.8 --max-tokens=4096",'
        '"inference_engine_version":"0.25.0","service_level":"pro",'
        '"deployment_url":"https://f6b7.example.test/v1",'
        '"model_id":"39791b86-f80d-41ed-9cab-854099d4ed37","model_name":"org/m1",'
        f'"created_at":"{TIME}","updated_at":"{TIME}"}}\n'
    )
    assert exo("ai", "deployment", "get", "d2", "-O", "text").out == (
        "f6b7d6f4-d4e7-424b-9bf0-2dd7b0e6e5ec\td2\tready\t\tgpua5000\t2\t1\t"
        "--gpu-memory-usage=0.8 --max-tokens=4096\t0.25.0\tpro\thttps://f6b7.example.test/v1\t"
        f"39791b86-f80d-41ed-9cab-854099d4ed37\torg/m1\t{TIME}\t{TIME}"
    )
    template = "{{.DeploymentURL}} {{.State}}"
    assert exo("ai", "deployment", "get", "d2", "--output-template", template).out == (
        "https://f6b7.example.test/v1 ready"
    )


def test_show_adds_replicas_to_the_table_and_after_the_known_keys(exo: Exo, api: FakeApi) -> None:
    replicas = [
        {"name": "d2-0", "state": "ready", "details": "", "pid": 4711, "restarts": 0},
        {"name": "d2-1", "state": "starting", "details": "loading weights 43 %", "restarts": 2},
    ]
    shown(api, ready_replicas=1, replica_status=replicas, inference_engine="exo 0.1.0")
    table = exo("ai", "deployment", "show", "d2").out
    assert f"| {'Ready Replicas':27} | {'1':42} |\n" in table
    assert f"| {'Replica d2-0':27} | {'ready, pid 4711':42} |\n" in table
    assert f"| {'Replica d2-1':27} | starting, loading weights 43 %, restarts 2 |\n" in table
    keys = list(json.loads(exo("ai", "deployment", "show", "d2", "-O", "json").out))
    assert keys[14:] == ["updated_at", "inference_engine", "ready_replicas", "replica_status"]


SERVED = {
    "model": "org/m0",
    "gpu-type": "gpua5000",
    "gpu-count": 2,
    "inference-engine": "vllm 0.25.0",
    "inference-engine-parameters": ["--seed=1", "--served-model-name=a b"],
}


def in_effect(exo: Exo, api: FakeApi, served: dict[str, Any], **more: Any) -> dict[str, str]:
    """Return the rows that say what serves and what to do, by their labels."""
    shown(api, last_in_effect=SERVED | served, inference_engine="vllm 0.25.0", **more)
    table = exo("ai", "deployment", "show", "d2").out
    cells = [line.strip("|\n ").split(" | ", 1) for line in table.splitlines()]
    wanted = ("Serves Now", "Served Last", "Next Step")
    return {c[0].strip(): c[1].strip() for c in cells if c[0].strip() in wanted}


def test_show_says_what_serves_after_a_replacement_that_failed_and_what_to_do(
    exo: Exo, api: FakeApi
) -> None:
    told = in_effect(exo, api, {}, state="error", ready_replicas=1)
    assert told == {
        "Serves Now": "org/m0 on 2 x gpua5000, vllm 0.25.0, --seed=1 '--served-model-name=a b'",
        "Next Step": "mend the cause and try again: `exo dedicated-inference deployment update d2`; or take "
        "it back: `exo dedicated-inference apply --replace` with the manifest from before",
    }
    shown = json.loads(exo("ai", "deployment", "show", "d2", "-O", "json").out)["last_in_effect"]
    assert shown == {key.replace("-", "_"): value for key, value in SERVED.items()}


@pytest.mark.parametrize(
    ("served", "more", "label", "words"),
    [
        pytest.param(
            {"model": "org/m1"},
            {"state": "error"},
            "Served Last",
            "update d2 --inference-engine-params '--seed=1 '\"'\"'--served-model-name=a b'\"'\"''`",
            id="other flags",
        ),
        pytest.param(
            {
                "model": "org/m1",
                "inference-engine-parameters": [],
                "inference-engine": "vllm 0.24.0",
            },
            {"state": "error"},
            "Served Last",
            "update d2 --clear-inference-engine-params --inference-engine-version 0.24.0`",
            id="another version without flags",
        ),
        pytest.param(
            {},
            {"state": "updating", "ready_replicas": 1},
            "Serves Now",
            "wait, or follow it: `exo dedicated-inference events d2 --follow`",
            id="on its way",
        ),
        pytest.param(
            {},
            {"replicas": 0},
            "Served Last",
            "try what is asked for now: `exo dedicated-inference deployment scale d2 1`",
            id="scaled to 0",
        ),
    ],
)
def test_the_next_step_fits_what_became_of_the_change(
    exo: Exo, api: FakeApi, served: dict[str, Any], more: dict[str, Any], label: str, words: str
) -> None:
    told = in_effect(exo, api, served, **more)
    assert set(told) == {label, "Next Step"}
    assert told["Next Step"].endswith(words)


def test_templates_of_show_may_use_every_field_of_the_table(exo: Exo, api: FakeApi) -> None:
    api.add_deployment("d1", ready_replicas=1, state_details="up")
    template = "{{.StateDetails}} {{.ReadyReplicas}} {{.InferenceEngine}}|{{.ReplicaStatus}}"
    result = exo("ai", "deployment", "show", "d1", "--output-template", template)
    assert (result.code, result.out) == (0, "up 1 |")
    replicas = [{"name": "d2-0", "state": "ready", "details": "", "restarts": 0}]
    api.add_deployment("d2", replica_status=replicas)
    result = exo("ai", "deployment", "show", "d2", "--output-template", "{{.ReplicaStatus}}")
    assert json.loads(result.out)[0]["name"] == "d2-0"
