"""One deployment is the same value, whichever way it was written."""

from __future__ import annotations

from dataclasses import replace

from exo_inference.controller.admission.bodies import read_update, read_wanted
from exo_inference.resources import (
    DeploymentSpec,
    EngineRef,
    InferenceDeployment,
    ObjectMeta,
)
from exo_inference.resources.wanted import WantedDeployment
from exo_inference.resources.yaml import dump_manifest, parse_manifests
from exo_inference.wire import CreateDeployment, Deployment, ModelRef

WANTED = WantedDeployment(
    name="chat",
    model=ModelRef(name="org/m"),
    gpu_type="gpua5000",
    gpu_count=2,
    replicas=3,
    engine="vllm",
    engine_version="0.28.0",
    engine_parameters=("--seed=1",),
    product_name="p",
)
BODY = {
    "name": "chat",
    "model": {"name": "org/m"},
    "gpu-type": "gpua5000",
    "gpu-count": 2,
    "replicas": 3,
    "inference-engine": "vllm",
    "inference-engine-version": "0.28.0",
    "inference-engine-parameters": ["--seed=1"],
    "product-name": "p",
}


def test_body_and_object_become_the_same() -> None:
    spec = DeploymentSpec(
        model="org/m",
        gpu_type="gpua5000",
        gpu_count=2,
        replicas=3,
        engine=EngineRef(name="vllm", version="0.28.0"),
        engine_parameters=("--seed=1",),
        product_name="p",
    )
    stored = InferenceDeployment(metadata=ObjectMeta(name="chat", uid="u-1"), spec=spec)
    assert read_wanted(CreateDeployment, BODY) == (WANTED, ())
    assert WantedDeployment.of(stored) == WANTED


def test_manifest_and_what_the_api_shows_become_the_same() -> None:
    spec = WANTED.to_manifest()
    text = dump_manifest(InferenceDeployment.KIND, "chat", spec)
    (manifest,), problems = parse_manifests(text, "chat.yaml")
    assert problems == []
    assert WantedDeployment.of_manifest("chat", manifest.spec) == WANTED
    assert WantedDeployment.of_manifest("chat", {"model": "org/m"}).to_manifest() == {
        "model": "org/m"
    }
    shown = {**BODY, "id": "u-1", "state": "ready", "inference-engine": "vllm 0.28.0"}
    view = Deployment.model_validate(shown)
    assert WantedDeployment.of_view(view) == replace(WANTED, product_name=None)


def test_what_is_left_open_is_taken_from_below() -> None:
    update, issues = read_update({"inference-engine-parameters": [], "name": None})
    assert issues == ()
    assert update.over(WANTED).engine_parameters == ()
    assert update.over(WANTED).name == "chat"


def test_what_is_wrong_is_left_open_and_told_with_its_path_in_the_order_of_the_fields() -> None:
    wanted, issues = read_wanted(
        CreateDeployment, {**BODY, "name": None, "gpu-count": "2", "replicas": True}
    )
    assert (wanted.name, wanted.gpu_count, wanted.replicas) == (None, None, None)
    assert [(issue.location, issue.sentence) for issue in issues] == [
        ("$['name']", "name is required, found null"),
        ("$['gpu-count']", "gpu-count must be a whole number, found a string"),
        ("$['replicas']", "replicas must be a whole number, found true"),
    ]
    assert read_wanted(CreateDeployment, {**BODY, "name": None}, may_lack=("name",))[1] == ()
