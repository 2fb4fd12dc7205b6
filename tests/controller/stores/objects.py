"""Small objects for the tests of the stores."""

from __future__ import annotations

from exo_inference.resources import (
    Condition,
    DeploymentSpec,
    InferenceDeployment,
    ObjectMeta,
)


def deployment(name: str = "chat", *, finalizers: tuple[str, ...] = ()) -> InferenceDeployment:
    return InferenceDeployment(
        metadata=ObjectMeta(
            name=name, finalizers=finalizers, labels={"team": "ml"}, annotations={"for": "é"}
        ),
        spec=DeploymentSpec(model="org/m1", gpu_type="cpu", engine_parameters=("--seed=1",)),
    )


def with_replicas(obj: InferenceDeployment, replicas: int) -> InferenceDeployment:
    return obj.model_copy(update={"spec": obj.spec.model_copy(update={"replicas": replicas})})


def with_status(obj: InferenceDeployment, ready: int) -> InferenceDeployment:
    conditions = (Condition(type="Available", status="True", reason="ReplicasReady"),)
    status = obj.status.model_copy(update={"ready_replicas": ready, "conditions": conditions})
    return obj.model_copy(update={"status": status})


def without_finalizers(obj: InferenceDeployment) -> InferenceDeployment:
    metadata = obj.metadata.model_copy(update={"finalizers": ()})
    return obj.model_copy(update={"metadata": metadata})
