"""`POST /ai/plan`: an answer for every well-formed request, whatever the model and the GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from exo_inference.foreign_files import client
from exo_inference.foreign_files import pool as pool_module
from exo_inference.foreign_files.pool import Pool
from exo_inference.planner import find_model, load_models
from exo_inference.planner.model import architecture
from exo_inference.state_dir import StateDir
from tests.controller.conftest import Controller
from tests.controller.fakes import GPU_FAMILIES, FakePlatform

MINISTRAL = "mistralai/Ministral-3-8B-Instruct-2512"
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
COMMIT = "5f2a8b3c" * 5

GPUS = """
[lab-card]
memory-mib = 49152
bandwidth-gbps = 900
tflops = {bf16 = 100}
compute-capability = 8.9
"""


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    state = StateDir(tmp_path_factory.mktemp("plans") / "state")
    state.create()
    (state.root / "gpus.toml").write_text(GPUS)
    made = Controller(state, platform=FakePlatform(families=GPU_FAMILIES))
    made.hub.known["acme/hub-only"] = find_model("Qwen/Qwen3-8B")
    with made.running():
        made.create_model(LLAMA)
        yield made


def plan(controller: Controller, **fields: Any) -> dict[str, Any]:
    body = {"gpu-type": "gpua5000", **{key.replace("_", "-"): v for key, v in fields.items()}}
    answer = controller.call("POST", "/v2/ai/plan", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def by_name(name: str) -> dict[str, str]:
    return {"name": name}


def test_a_plan_that_fits_says_what_it_takes(controller: Controller) -> None:
    flags = ["--max-model-len=60000"]
    found = plan(controller, model=by_name(MINISTRAL), inference_engine_parameters=flags)
    assert (found["verdict"], found["engine"], found["gpu-type"]) == ("fits", "vllm", "gpua5000")
    assert found["kv-capacity-tokens"] > 60000
    assert {each["name"] for each in found["components"]} >= {"weights"}
    assert found["speed"]["batches"]


def test_a_refused_plan_is_an_answer_with_advice(controller: Controller) -> None:
    found = plan(controller, model=by_name(MINISTRAL))
    assert found["verdict"] == "refused"
    assert found["problems"][0]["code"] == "memory"
    assert found["advice"][0]["plan"]["verdict"] == "fits"
    bare = plan(controller, model=by_name(MINISTRAL), without_advice=True)
    assert (bare["verdict"], bare["advice"]) == ("refused", [])


def test_wrong_flags_are_an_answer_too(controller: Controller) -> None:
    found = plan(
        controller,
        model=by_name(MINISTRAL),
        inference_engine_parameters=["--seed=1", "--max-modle-len=4"],
    )
    (problem,) = found["problems"]
    assert found["verdict"] == "refused"
    assert problem["location"] == "$['inference-engine-parameters'][1]"
    assert problem["flag"] == "--max-modle-len"


@pytest.mark.parametrize(
    ("gpu_type", "name"),
    [
        ("H100", "NVIDIA H100 80GB SXM5"),
        ("RTX 4090", "NVIDIA GeForce RTX 4090"),
        ("gpub300", "NVIDIA B300 SXM"),
        ("gpurtx6000pro", "NVIDIA RTX PRO 6000 Blackwell Server Edition"),
        ("lab-card", "lab-card"),
    ],
)
def test_gpus_are_found_by_family_common_name_and_user_file(
    controller: Controller, gpu_type: str, name: str
) -> None:
    found = plan(controller, model=by_name(LLAMA), gpu_type=gpu_type)
    assert (found["gpu"], found["gpu-type"]) == (name, gpu_type)


def test_a_model_of_the_control_plane_is_found_by_id(controller: Controller) -> None:
    (model,) = controller.client().list_models()["models"]
    found = plan(controller, model={"id": model["id"]})
    assert found["model"] == LLAMA


def test_files_that_are_here_count_more_than_the_catalogue(
    controller: Controller, tmp_path: Path
) -> None:
    config = dict(load_models()[LLAMA]["config"], num_hidden_layers=1)
    paths = list(controller.state.root.rglob("model.safetensors"))
    assert len(paths) == 1
    full = plan(controller, model=by_name(LLAMA))["weights-bytes-per-gpu"]
    target = paths[0].parent / "config.json"
    target.write_text(json.dumps(config))
    try:
        small = plan(controller, model=by_name(LLAMA))["weights-bytes-per-gpu"]
    finally:
        target.unlink()
    assert small < full / 3
    assert plan(controller, model=by_name(LLAMA))["weights-bytes-per-gpu"] == full


def test_a_config_can_be_sent_along(controller: Controller) -> None:
    config = load_models()[LLAMA]["config"]
    found = plan(controller, model_config=config)
    same = plan(controller, model=by_name(LLAMA))
    assert found["weights-bytes-per-gpu"] == same["weights-bytes-per-gpu"]
    odd = plan(controller, model_config={"model_type": "nobody-knows"})
    assert odd["verdict"] == "unknown"
    assert odd["problems"] or odd["notes"]


def test_a_config_is_read_in_a_child_and_never_in_the_controller(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a foreign config is read in this process")

    config = load_models()[LLAMA]["config"]
    monkeypatch.setattr(architecture, "_read", refuse)
    assert plan(controller, model_config=config)["weights-bytes-per-gpu"] > 15 * 10**9


@pytest.fixture
def _impatient_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the child that reads foreign files end after a second of processor time."""
    for limit in ("MAX_PROCESSOR_SECONDS", "QUICK_PROCESSOR_SECONDS"):
        monkeypatch.setattr(pool_module, limit, 0)
    monkeypatch.setattr(client, "pool", Pool(num_children=1))


@pytest.mark.usefixtures("_impatient_child")
def test_an_expression_that_never_ends_is_refused(controller: Controller) -> None:
    endless = {"quant_method": "fp8", "modules_to_not_convert": ["re:(.+)+(.+)+(.+)+X$"]}
    config = {**load_models()[LLAMA]["config"], "quantization_config": endless}
    body = {"gpu-type": "gpua5000", "model-config": config}
    answer = controller.call("POST", "/v2/ai/plan", json=body)
    assert answer.status_code == 400, answer.text
    (error,) = answer.json()["errors"]
    assert error["location"] == "$['model-config']"
    assert "processor time" in error["detail"]
    assert plan(controller, model=by_name(LLAMA))["verdict"] in ("fits", "refused")


def test_a_config_beyond_all_models_is_refused(controller: Controller) -> None:
    config = {**load_models()[LLAMA]["config"], "num_hidden_layers": 10**6}
    body = {"gpu-type": "gpua5000", "model-config": config}
    answer = controller.call("POST", "/v2/ai/plan", json=body)
    assert answer.status_code == 400, answer.text
    assert "num_hidden_layers in config.json is 1000000" in answer.text


def test_a_model_of_the_hub_is_asked_for(controller: Controller) -> None:
    controller.hub.asked.clear()
    found = plan(controller, model=by_name("acme/hub-only"))
    assert found["weights-bytes-per-gpu"] > 15 * 10**9
    assert controller.hub.asked == [("acme/hub-only", None, None)]


def test_a_model_here_is_asked_for_with_its_own_token_and_commit(controller: Controller) -> None:
    client = controller.client()
    name = "acme/gated"
    uid = client.create_model(name=name, huggingface_token="hf_mine")["reference"]["id"]
    controller.wait_for(lambda: client.get_model(id=uid)["state"] == "ready")
    controller.hub.asked.clear()
    found = plan(controller, model=by_name(name))
    assert found["verdict"] == "unknown"
    assert controller.hub.asked == [(name, "commit-1", "hf_mine")]
    assert "hf_mine" not in json.dumps(found)
    client.delete_model(id=uid)


def test_without_the_hub_the_reason_is_a_problem_of_the_model(controller: Controller) -> None:
    found = plan(controller, model=by_name("acme/nowhere"))
    assert found["verdict"] == "unknown"
    (problem,) = found["problems"]
    assert problem["detail"] == "cannot reach the Hub. Check the network."
    assert (problem["code"], problem["location"]) == ("unknown-model", "$['model']")
    assert not problem["refuses"]


@pytest.mark.parametrize("name", ["file:///etc", "exo/none", "no-slash", "a/../b"])
def test_other_names_never_reach_hub_or_files(controller: Controller, name: str) -> None:
    controller.hub.asked.clear()
    assert plan(controller, model=by_name(name))["verdict"] == "unknown"
    assert controller.hub.asked == []


@pytest.mark.parametrize(
    ("fields", "location", "words"),
    [
        ({"gpu-type": None}, "$['gpu-type']", "is required"),
        ({"gpu-type": "H1000"}, "$['gpu-type']", "Did you mean"),
        ({"gpu-count": 0}, "$['gpu-count']", "from 1 to 1024, found 0"),
        ({"gpu-count": 10**30}, "$['gpu-count']", "far out of range"),
        ({"model": {}}, "$['model']", "needs a name or an id"),
        ({"model": {"id": "x"}}, "$['model']", "no model with the id"),
        ({"model": "m"}, "$['model']", "must be an object"),
        ({"model-config": []}, "$['model-config']", "must be an object"),
        ({"inference-engine": "x"}, "$['inference-engine']", '["exo","llama-cpp",'),
        ({"inference-engine-version": "9"}, "$['inference-engine-version']", "enumeration"),
        ({"inference-engine-parameters": "x"}, "$['inference-engine-parameters']", "a list"),
        (
            {"inference-engine-parameters": ["--seed=1"] * 201},
            "$['inference-engine-parameters']",
            "at most 200 items",
        ),
        (
            {"inference-engine-parameters": ["--chat-template=" + "x" * 33_000]},
            "$['inference-engine-parameters']",
            "at most 32768 bytes together, found 33016",
        ),
        ({"without-advice": "yes"}, "$['without-advice']", "true or false"),
    ],
)
def test_a_malformed_request_is_refused_with_its_place(
    controller: Controller, fields: dict[str, Any], location: str, words: str
) -> None:
    body = {"gpu-type": "gpua5000", "model": by_name(LLAMA), **fields}
    answer = controller.call("POST", "/v2/ai/plan", json=body)
    assert answer.status_code == 400, answer.text
    (error,) = answer.json()["errors"]
    assert error["location"] == location
    assert words in error["detail"]


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4)
    ),
    max_leaves=12,
)
flags = st.sampled_from(
    [
        "--max-model-len=0",
        "--max-model-len=99999999999999999",
        "--tensor-parallel-size=99999999999999999",
        "--pipeline-parallel-size=7",
        "--gpu-memory-utilization=nan",
        "--kv-cache-memory-bytes=1",
        "--max-num-seqs=999999999999",
        "--max-num-batched-tokens=1",
        "--block-size=16",
        '--speculative-config={"model": 5}',
        '--speculative-config={"model": "x", "num_speculative_tokens": -1}',
        '--limit-mm-per-prompt={"image": -5}',
        "--speculative-config=[[[[",
        "--quantization",
        "-tp",
        "",
        "=",
    ]
)
config_values = st.one_of(
    json_values, st.sampled_from(["llama", "mamba", "deepseek_v3", 0, -1, 1 << 60, 4096, 32])
)
configs = st.dictionaries(
    st.sampled_from(
        [
            "model_type",
            "architectures",
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "vocab_size",
            "intermediate_size",
            "quantization_config",
            "text_config",
            "vision_config",
            "layer_types",
            "sliding_window",
            "max_position_embeddings",
        ]
    ),
    config_values,
)
bodies = st.fixed_dictionaries(
    {
        "gpu-type": st.sampled_from(["gpua5000", "cpu", "H100", "lab-card"]) | json_values,
        "model": st.sampled_from([{"name": LLAMA}, {"name": MINISTRAL}]) | json_values,
    },
    optional={
        "gpu-count": st.integers(0, 1025) | json_values,
        "model-config": configs | json_values,
        "inference-engine-parameters": st.lists(flags | st.text(max_size=12), max_size=4)
        | json_values,
        "inference-engine-version": st.sampled_from(["0.12.0", "0.28.0"]) | json_values,
        "inference-engine": st.sampled_from(["exo", "vllm"]) | json_values,
        "without-advice": st.just(True) | json_values,
    },
)


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(body=bodies)
def test_any_json_is_answered_with_a_plan_or_a_refusal(
    controller: Controller, body: dict[str, Any]
) -> None:
    answer = controller.call("POST", "/v2/ai/plan", json=body)
    assert answer.status_code in (200, 400), (answer.text, body)


def test_plans_that_wait_for_a_reader_are_bounded(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        def num_waiting(self, owner: str) -> int:
            return 64 if owner == "plans" else 0

    monkeypatch.setattr(client, "pool", Full())
    body = {"gpu-type": "gpua5000", "model-config": load_models()[LLAMA]["config"]}
    answer = controller.call("POST", "/v2/ai/plan", json=body)
    assert answer.status_code == 429, answer.text
    assert answer.headers["retry-after"] == "5"
