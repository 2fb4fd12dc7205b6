"""Desired deployments for tests, which name the fields of the specification beside the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from exo_inference.platforms.base import DesiredDeployment
from exo_inference.resources import DeploymentSpec, EngineRef


def desired_deployment(*, uid: str, name: str, model_path: str, **fields: Any) -> DesiredDeployment:
    """Return one with the engine `exo`, unless `engine` and `engine_version` say otherwise."""
    engine = EngineRef(name="exo")
    spec = DeploymentSpec(model="", gpu_type="cpu", replicas=1, engine=engine)
    return altered(DesiredDeployment(uid, name, spec, model_path), **fields)


def altered(desired: DesiredDeployment, **changes: Any) -> DesiredDeployment:
    """Return another one with these fields, be they of the specification or beside it."""
    engine = {
        field: changes.pop(name)
        for name, field in (("engine", "name"), ("engine_version", "version"))
        if name in changes
    }
    of_spec = {
        name: changes.pop(name) for name in [*changes] if name in DeploymentSpec.model_fields
    }
    if engine:
        of_spec["engine"] = desired.spec.engine.model_copy(update=engine)
    return replace(desired, spec=desired.spec.model_copy(update=of_spec), **changes)
