"""A change of what a replica is started with replaces it, on every platform."""

from __future__ import annotations

import pytest

from exo_inference.platforms.base import DesiredDeployment
from exo_inference.platforms.kubernetes.release_values import build_release
from exo_inference.platforms.kubernetes.settings import PlatformValues
from exo_inference.platforms.local.lifecycle import spec_hash
from exo_inference.resources.deployment import DeploymentSpec, EngineRef

CHANGES = {
    "model": "org/other",
    "gpu_type": "gpurtx6000pro",
    "gpu_count": 2,
    "engine": EngineRef(name="vllm", version="0.32.0"),
    "engine_parameters": ("--max-model-len=1024",),
}
LEFT_AS_THEY_ARE = {
    "replicas": 3,
    "product_name": "ai-inference",
}
"""Fields that no replica is started with."""

SPEC = DeploymentSpec(
    model="org/model", gpu_type="gpua5000", engine=EngineRef(name="vllm", version="0.28.0")
)


def hashes(spec: DeploymentSpec) -> tuple[str, str]:
    """Return what tells versions of a deployment apart on one machine and on a cluster."""
    desired = DesiredDeployment("uid", "chat", spec, "pvc:models/m")
    return spec_hash(desired), build_release(desired, PlatformValues()).pods_hash


def test_of_each_field_it_is_said_what_a_change_does() -> None:
    assert DeploymentSpec.model_fields.keys() == CHANGES.keys() | LEFT_AS_THEY_ARE.keys()


@pytest.mark.parametrize("field", CHANGES)
def test_a_field_that_replicas_are_started_with_replaces_them(field: str) -> None:
    changed = hashes(SPEC.model_copy(update={field: CHANGES[field]}))
    assert [one != other for one, other in zip(changed, hashes(SPEC), strict=True)] == [True, True]


def test_other_fields_replace_none() -> None:
    assert hashes(SPEC.model_copy(update=LEFT_AS_THEY_ARE)) == hashes(SPEC)
